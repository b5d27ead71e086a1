"""What a log directory that stops answering does to a cluster, beside Apache Kafka."""
