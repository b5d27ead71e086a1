"""The controller: who leads which partition, decided by one broker for all.

What is here is the core, without I/O: the context, elections, the state machines of partitions and replicas, the
requests they make to brokers, and where the replicas of new partitions go. Absent are the election of the controller
itself, its events and their loop, timers, watches, deletion and reassignment of topics, and the channels to brokers.
"""
