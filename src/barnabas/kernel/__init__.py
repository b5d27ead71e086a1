"""What every room stands on, with no Kafka in it: the host's ports, timers, scheduling, queues, purgatory, transition tables."""
