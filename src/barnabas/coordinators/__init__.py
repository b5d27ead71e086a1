"""Coordinators: state machines whose truth is an internal topic, one shard for each of its partitions.

`shard` runs shards for any coordinator: loading, appending, fencing. `group` has the classic consumer groups and their
offsets over `__consumer_offsets`; `transaction` gives producers their ids, and has the transactional ids over
`__transaction_state`.
"""
