"""How much may pass in a second: measured rates and their bounds, without I/O.

`simple_rate` measures as Apache Kafka does; `replication_quota` says which replicas are throttled, and whether the
bound is exceeded (KIP-73). Absent: the quotas of clients.
"""
