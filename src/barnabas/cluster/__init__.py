"""What a broker knows about its cluster: brokers, topics and leaders, as the controller last sent them.

`image` is that knowledge, never changed in place; `metadata_cache` swaps one image for the next when an UpdateMetadata
request comes; `metadata_responses` says it to clients.
"""
