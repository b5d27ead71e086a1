"""Every pair of replica states: allowed as Kafka allows it, refused otherwise."""

from __future__ import annotations

import itertools

import pytest

from barnabas.controller.replica_states import REPLICA_TRANSITIONS, PartitionReplica, ReplicaState
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.wire.topics import TopicPartition

ALLOWED = {
    "NON_EXISTENT": {"NEW"},
    "NEW": {"ONLINE", "OFFLINE"},
    "ONLINE": {"ONLINE", "OFFLINE"},
    "OFFLINE": {"ONLINE", "OFFLINE", "DELETION_STARTED", "DELETION_INELIGIBLE"},
    "DELETION_STARTED": {"DELETION_SUCCESSFUL", "DELETION_INELIGIBLE"},
    "DELETION_SUCCESSFUL": {"NON_EXISTENT"},
    "DELETION_INELIGIBLE": {"ONLINE", "OFFLINE"},
}
REPLICA = PartitionReplica(TopicPartition("orders", 3), 2)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(ReplicaState, repeat=2)))
def test_every_pair(source: ReplicaState, target: ReplicaState) -> None:
    if target.name in ALLOWED[source.name]:
        assert REPLICA_TRANSITIONS.advance(REPLICA, source, target) is target
    else:
        with pytest.raises(IllegalTransitionError, match=r"replica orders-3 on broker 2: \w+ is not allowed"):
            REPLICA_TRANSITIONS.advance(REPLICA, source, target)
