"""What moving partitions onto a new broker does to producers of others, beside Apache Kafka."""
