"""Who may do what, without I/O: ACLs as Apache Kafka's `AclAuthorizer` decides by them.

`acls` has the words: resources, patterns, entries, and the filters that pick them. `acl_rules` holds the ACLs of a
cluster, found by resource, and decides; `acl_znodes` is how ZooKeeper holds them. No API asks them yet: a broker
refuses `authorizer.class.name` until all do.
"""
