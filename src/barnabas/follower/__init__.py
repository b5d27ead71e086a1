"""What a follower does: fetches from leaders, and cuts off what they never had.

`replica_fetcher` fetches from one leader; `follower_session`, `fetcher_partitions`, `truncation` and `fetch_pacing` are
the rules it follows, without I/O. `log_copier` copies logs to other directories of this broker.
"""
