"""One segment of a log: batches, their indexes, and how both are searched and read."""
