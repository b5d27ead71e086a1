"""The replicated log on disk, in the files of Apache Kafka 3.9."""
