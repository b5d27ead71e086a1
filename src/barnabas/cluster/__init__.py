"""What a broker knows of its cluster: brokers, topics, leaders, as the controller last told it.

`image` is that knowledge, never changed in place; `metadata_cache` swaps one image for the next when an UpdateMetadata
request comes; `metadata_responses` says it to clients.
"""
