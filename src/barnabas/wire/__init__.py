"""The Kafka protocol, sans I/O: schemas, codec, record batches, errors."""
