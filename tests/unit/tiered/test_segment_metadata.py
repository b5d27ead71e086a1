"""The states of remote segments and of the deletion of partitions: every state by every other."""

from __future__ import annotations

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.tiered.segment_metadata import (
    PARTITION_DELETION,
    SEGMENT,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from barnabas.wire.topics import TopicPartition

_Segment = RemoteLogSegmentState
_Partition = RemotePartitionDeleteState
ID = RemoteLogSegmentId(TopicIdPartition(Uuid(bytes(16)), TopicPartition("flights", 0)), Uuid(bytes(range(16))))
# As Apache Kafka's isValidTransition says, without the first state, which is not a transition.
LEGAL_SEGMENT = {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)}
LEGAL_PARTITION = {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)}


@pytest.mark.parametrize("state", list(_Segment))
@pytest.mark.parametrize("event", list(_Segment))
def test_every_state_of_a_segment_by_every_other(state: _Segment, event: _Segment) -> None:
    if (state, event) in LEGAL_SEGMENT:
        assert SEGMENT.advance("s", state, event) is event
    else:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} is not allowed in state {state.name}"):
            SEGMENT.advance("s", state, event)


@pytest.mark.parametrize("state", list(_Partition))
@pytest.mark.parametrize("event", list(_Partition))
def test_every_state_of_a_deletion_by_every_other(state: _Partition, event: _Partition) -> None:
    if (state, event) in LEGAL_PARTITION:
        assert PARTITION_DELETION.advance("p", state, event) is event
    else:
        with pytest.raises(IllegalTransitionError):
            PARTITION_DELETION.advance("p", state, event)


def made(
    start: int = 0, end: int = 9, size: int = 10, epochs: dict[int, int] | None = None
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(ID, start, end, 5, 1, 7, size, {0: 0, 2: 5} if epochs is None else epochs)


def test_where_each_epoch_ends_in_a_segment() -> None:
    segment = made(epochs={0: 0, 2: 5, 3: 8})
    assert [segment.end_offset_in(epoch) for epoch in (0, 2, 3)] == [4, 7, 9]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"epochs": {}}, "no leader epochs"),
        ({"epochs": {2: 0, 1: 5}}, "out of order"),
        ({"epochs": {1: 5, 2: 0}}, "out of order"),
        ({"start": 10}, "cannot have 10 bytes from offset 10 to 9"),
        ({"start": -1}, "cannot have"),
        ({"size": -1}, "cannot have"),
    ],
)
def test_what_no_segment_can_be(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        made(**fields)  # type: ignore[arg-type]
