"""Large requests to our broker and to Apache Kafka: `python -m benchmarks.large_requests`."""
