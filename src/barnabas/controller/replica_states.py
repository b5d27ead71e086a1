"""The states of a replica in the controller, and which may follow which."""

from __future__ import annotations

import enum
from typing import NamedTuple

from barnabas.kernel.transitions import TransitionTable
from barnabas.wire.topics import TopicPartition


class PartitionReplica(NamedTuple):
    """The replica of a partition on one broker."""

    partition: TopicPartition
    broker_id: int

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition} on broker {self.broker_id}"


class ReplicaState(enum.Enum):
    """A new replica only follows; an online one leads or follows; an offline one was stopped. Deletion has begun, has
    succeeded, or cannot go on for now.
    """

    # A failover hashes states for every replica; the hash of `enum` is a slow function in Python.
    __hash__ = object.__hash__

    NEW = 1
    ONLINE = 2
    OFFLINE = 3
    DELETION_STARTED = 4
    DELETION_SUCCESSFUL = 5
    DELETION_INELIGIBLE = 6
    NON_EXISTENT = 7


_ALIVE_OR_BACK = {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}

# A controller that takes over finds live replicas, and dead ones, for which a deletion would have to wait.
REPLICA_TRANSITIONS = TransitionTable.from_valid_previous_states(
    "replica",
    start=(ReplicaState.NON_EXISTENT, ReplicaState.ONLINE, ReplicaState.DELETION_INELIGIBLE),
    valid_previous_states={
        ReplicaState.NEW: {ReplicaState.NON_EXISTENT},
        ReplicaState.ONLINE: _ALIVE_OR_BACK,
        ReplicaState.OFFLINE: _ALIVE_OR_BACK,
        ReplicaState.DELETION_STARTED: {ReplicaState.OFFLINE},
        ReplicaState.DELETION_SUCCESSFUL: {ReplicaState.DELETION_STARTED},
        ReplicaState.DELETION_INELIGIBLE: {ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED},
        ReplicaState.NON_EXISTENT: {ReplicaState.DELETION_SUCCESSFUL},
    },
)
