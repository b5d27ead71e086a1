"""The replicas of one broker: what the controller tells of them, and the tasks that look after them.

`replica_manager` takes LeaderAndIsr, StopReplica and UpdateMetadata, `role_changes` has partitions lead or follow,
`controller_fence` and `deletion_fence` keep what is old from being obeyed, `log_moves` has replicas go from one log
directory of the broker to another.
"""
