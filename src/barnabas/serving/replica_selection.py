"""Which replica a consumer had better read from (KIP-392): one in its own rack."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.cluster.image import MetadataImage
    from barnabas.leader.partition import Partition
    from barnabas.leader.remote_replica import RemoteReplica


def replica_in_rack(
    partition: Partition, fetch_offset: int, rack_id: str, listener_name: str, image: MetadataImage
) -> int | None:
    """The most caught-up follower in the rack of a consumer that has asked the leader; None where the leader is as
    near, or no follower would do.

    It is alive, has the listener by which the consumer came, and is in the ISR: one that lags would be named again and
    again, and the consumer would fall behind. And it has the offset within its log, as far as this leader knows.
    """
    leader = image.node(partition.leader_id, listener_name)
    if leader is not None and leader.rack == rack_id:
        return None
    isr, end_offset = partition.isr, partition.log_end_offset
    found: list[RemoteReplica] = []
    for follower in partition.followers:
        if follower.broker_id not in isr or not follower.log_start_offset <= fetch_offset <= follower.log_end_offset:
            continue
        node = image.node(follower.broker_id, listener_name)
        if node is not None and node.rack == rack_id:
            follower.observe(end_offset)
            found.append(follower)
    if not found:
        return None
    return max(found, key=lambda each: (each.log_end_offset, each.caught_up_time, each.broker_id)).broker_id
