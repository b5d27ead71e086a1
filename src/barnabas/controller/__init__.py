"""The controller: who leads which partition, decided by one broker for all.

`Controller` is the shell that a broker starts: it stands for election, owns the queue of events, the channels to the
brokers and the gauges. What the events do is a core without I/O, plain generators that yield effects: the context,
elections, the state machines of partitions and replicas, and, on these, what happens when brokers, topics and ISRs
change (`ControllerTerm`).

Absent are reassignments (partitions that another kind of broker has begun to reassign keep the replicas they have),
elections of preferred leaders, and what follows when a broker announces a failed log directory.
"""
