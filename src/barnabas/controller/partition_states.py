"""The states of a partition in the controller, and the legal transitions."""

from __future__ import annotations

import enum

from barnabas.kernel.transitions import TransitionTable


class PartitionState(enum.Enum):
    """A new partition has replicas and never had a leader; an online one has a leader; an offline one had."""

    # A failover hashes states for every replica; the hash of `enum` is a slow function in Python.
    __hash__ = object.__hash__

    NEW = 0
    ONLINE = 1
    OFFLINE = 2
    NON_EXISTENT = 3


# A controller that takes over finds partitions in any state but the last.
PARTITION_TRANSITIONS = TransitionTable.from_valid_previous_states(
    "partition",
    start=(PartitionState.NON_EXISTENT, PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE),
    valid_previous_states={
        PartitionState.NEW: {PartitionState.NON_EXISTENT},
        PartitionState.ONLINE: {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE},
        PartitionState.OFFLINE: {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE},
        PartitionState.NON_EXISTENT: {PartitionState.OFFLINE},
    },
)
