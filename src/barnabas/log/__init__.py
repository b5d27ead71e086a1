"""The replicated log on disk, in the files of Apache Kafka 3.9.

Here: the names and small files of a log directory, the indexes, the segment, leader epochs, producer state. Not here
yet: the log of a partition made of these (high watermark, retention, recovery over all segments), the manager of
several log directories, the cleaner.
"""
