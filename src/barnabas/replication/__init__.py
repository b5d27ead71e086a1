"""Replication: partitions and their leaders and followers, the ISR and the high watermark, fetching from leaders, and
what clients do with partitions.

`partition` is one replica; `isr`, `remote_replica`, `truncation`, `follower_session` and `fetcher_partitions` are the
rules it follows, without I/O; `replica_manager` hosts the partitions of a broker and applies what the controller says;
`replica_fetcher` fetches from one leader. Absent: ISR changes by znode (inter.broker.protocol.version below 2.7),
replication throttles, moving replicas between log directories.
"""
