"""Tiered storage (KIP-405): segments of a partition's log in remote storage, beside those in its directory.

From the bottom: `segment_metadata` says what a copied segment is and which states it goes through,
`metadata_records` how that is written to `__remote_log_metadata`, `metadata_cache` which segment has an offset in a
leader epoch. `object_names` and `storage` are where the bytes are; `copying` is what the child process does.
"""
