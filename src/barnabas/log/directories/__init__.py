"""A log directory: its own files, the names of what is in it, and what is to go from it."""
