"""The replicas of one broker: what the controller tells of them, and the tasks that look after them.

`replica_manager` hosts the partitions and applies LeaderAndIsr, StopReplica and UpdateMetadata. Absent: moving replicas
between log directories.
"""
