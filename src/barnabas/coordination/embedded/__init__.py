"""The embedded coordinator: a single-server ZooKeeper in Python, durable, on the wire protocol that every ZooKeeper client speaks."""
