"""The embedded coordinator: a durable server of the ZooKeeper wire protocol, on one host and in one event loop."""
