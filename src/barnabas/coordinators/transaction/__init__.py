"""What producers need beyond a partition: their ids."""
