"""Who may do what: ACLs as Apache Kafka's `AclAuthorizer` decides by them and keeps them.

`acls` has the words: resources, patterns, entries, and the filters that pick them. `acl_rules` holds the ACLs of a
cluster, found by resource, and decides; both are without I/O. `acl_znodes` is how ZooKeeper holds ACLs, `acl_store`
reads and changes them there, `acl_changes` follows what other brokers change, and `authorizer` is who an API asks.
`docs/acls.md` has who needs what.

`delegation_tokens` has the tokens of a cluster and decides about them, without I/O; `token_store` and `token_changes`
are to them what `acl_store` and `acl_changes` are to ACLs.

`login` is how far the client of a connection is with its login, without I/O; `scram_credentials` has those of users.
"""
