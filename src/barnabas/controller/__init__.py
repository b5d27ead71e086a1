"""The controller: one broker decides which replica leads each partition.

`Controller` is the shell that a broker starts: it stands for election, owns the queue of events, the channels to the
brokers and the gauges. What the events do is a core without I/O, plain generators that yield effects: the context,
elections, the state machines of partitions and replicas, and, on these, what happens when brokers, topics and ISRs
change (`ControllerTerm`).

Not here yet: elections of preferred leaders.
"""
