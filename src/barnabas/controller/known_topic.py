"""A topic as the controller's context holds it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from barnabas.controller.replica_states import ReplicaState
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.kernel.ids import Uuid
from barnabas.wire.topics import TopicPartition


@dataclass(slots=True)
class KnownTopic:
    """`replica_count` and `replica_states` count the replicas in the assignments, all of them and those in each
    state.
    """

    topic_id: Uuid | None = None
    partitions: dict[TopicPartition, ReplicaAssignment] = field(default_factory=dict)
    replica_count: int = 0
    replica_states: Counter[ReplicaState] = field(default_factory=Counter)
