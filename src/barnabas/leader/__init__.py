"""What a leader does for a partition: who is in sync, how far all of them are, and what the controller says to that.

`partition` is one replica, which leads or follows; `isr` and `remote_replica` are the rules, without I/O;
`in_sync_replicas` decides who is in the ISR and moves the high watermark, `alter_partition` asks the controller, and
`wake_ups` tells those who wait. Absent: ISR changes by znode (inter.broker.protocol.version below 2.7).
"""
