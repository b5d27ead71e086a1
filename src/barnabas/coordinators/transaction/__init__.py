"""What producers need beyond a partition: their ids, and transactions over several partitions."""
