"""The log of one replica: appended to, read, made durable and truncated. `partition_log` puts it together."""
