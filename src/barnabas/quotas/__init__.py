"""How much may pass in a second: measured rates and their bounds, without I/O.

`simple_rate`, `rate` and `token_bucket` measure as Apache Kafka does; `replication_quota` says which replicas are
throttled, and whether the bound is exceeded (KIP-73); `connection_rates` how long a connection is to wait, of which too
many come (KIP-612); `client_quotas` whose a client's quota is, and for how long he is
to wait.
"""
