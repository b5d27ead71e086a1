"""The controller: who leads which partition, decided by one broker for all."""
