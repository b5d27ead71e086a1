"""Who is told of what becomes of replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.wire.topics import TopicPartition


OnLeadershipChange = Callable[["list[Partition]", "list[Partition]"], object]
"""Called with the partitions that this broker leads since now, and with those that it follows since now."""
OnStop = Callable[["list[tuple[TopicPartition, int, bool]]"], object]
"""Called with partitions that are not here any more: each with the leader epoch as of which that is so, and whether its
log is deleted. StopReplica says so, or their log directory has failed, or has no log for what LeaderAndIsr says."""
