"""The basis of every room, without any Kafka.

The host's ports and the real host, timers, ticks, periodic tasks, the event queue, the purgatory, transition tables,
ids, metrics and logging.
"""
