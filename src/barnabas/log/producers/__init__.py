"""What a log knows of its producers: idempotence, open transactions, and the snapshots of both."""
