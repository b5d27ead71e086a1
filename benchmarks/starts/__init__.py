"""How long brokers with much data take to start, beside Apache Kafka."""
