"""Groups and their committed offsets, and what is of classic groups only, over `__consumer_offsets`."""
