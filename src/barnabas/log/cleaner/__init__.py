"""Compaction: what is kept of a log, how a child process writes it, and how the log takes it over."""
