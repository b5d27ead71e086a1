"""Consumer groups of the next generation (KIP-848): the broker assigns, and members follow by heartbeats."""
