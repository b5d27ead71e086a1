"""Every pair of partition states: allowed as Kafka allows it, refused otherwise."""

from __future__ import annotations

import itertools

import pytest

from barnabas.controller.partition_states import PARTITION_TRANSITIONS, PartitionState
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.wire.topics import TopicPartition

ALLOWED = {
    ("NON_EXISTENT", "NEW"),
    ("NEW", "ONLINE"),
    ("NEW", "OFFLINE"),
    ("ONLINE", "ONLINE"),
    ("ONLINE", "OFFLINE"),
    ("OFFLINE", "ONLINE"),
    ("OFFLINE", "OFFLINE"),
    ("OFFLINE", "NON_EXISTENT"),
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(PartitionState, repeat=2)))
def test_every_pair(source: PartitionState, target: PartitionState) -> None:
    partition = TopicPartition("orders", 3)
    if (source.name, target.name) in ALLOWED:
        assert PARTITION_TRANSITIONS.advance(partition, source, target) is target
    else:
        with pytest.raises(IllegalTransitionError):
            PARTITION_TRANSITIONS.advance(partition, source, target)
