"""Side by side with other Python codecs of the Kafka protocol: `python -m benchmarks.codec`."""
