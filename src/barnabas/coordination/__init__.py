"""Coordination by ZooKeeper's protocol: znode layout, an asyncio client, and an embedded coordinator."""
