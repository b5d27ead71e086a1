"""What admin requests do to znodes: topics and partitions made and deleted, configs changed. Handlers share it.

Source of the order of checks and of the writes: Kafka's ZkAdminManager and AdminZkClient.
"""
