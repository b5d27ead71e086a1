"""Record batches: reading, writing and checking them, side by side with kafka-python and aiokafka."""
