"""The replicated log on disk, in the files of Apache Kafka 3.9.

`LogManager` (in `manager`) has a `PartitionLog` (in `partition`) for each replica, over one or several log directories.
A log is made of segments with their indexes, leader epochs and the state of producers; `log_loader` puts right what a
crash has left; the write queue says when an append counts as written. Not here yet: tiered storage.
"""
