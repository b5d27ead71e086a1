"""`barnabas.client.positions`: every state and event, and what new leaders and topics mean for a position."""

from __future__ import annotations

import itertools

import pytest

from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.client.positions import POSITION, PartitionState, Position, PositionEvent, Positions, PositionState
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

PARTITION = TopicPartition("t", 0)
ALLOWED = {
    (PositionState.UNKNOWN, PositionEvent.POSITIONED): PositionState.FETCHING,
    (PositionState.UNKNOWN, PositionEvent.RESET): PositionState.RESETTING,
    (PositionState.RESETTING, PositionEvent.POSITIONED): PositionState.FETCHING,
    (PositionState.RESETTING, PositionEvent.RESET): PositionState.RESETTING,
    (PositionState.VALIDATING, PositionEvent.POSITIONED): PositionState.FETCHING,
    (PositionState.VALIDATING, PositionEvent.RESET): PositionState.RESETTING,
    (PositionState.VALIDATING, PositionEvent.NEW_LEADER): PositionState.VALIDATING,
    (PositionState.FETCHING, PositionEvent.POSITIONED): PositionState.FETCHING,
    (PositionState.FETCHING, PositionEvent.RESET): PositionState.RESETTING,
    (PositionState.FETCHING, PositionEvent.NEW_LEADER): PositionState.VALIDATING,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PositionState, PositionEvent)))
def test_the_whole_table(state: PositionState, event: PositionEvent) -> None:
    if (state, event) in ALLOWED:
        assert POSITION.advance("p", state, event) is ALLOWED[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            POSITION.advance("p", state, event)


def cluster_with(leader_epoch: int, topic_id: bytes = b"1" * 16) -> Cluster:
    info = PartitionInfo(1, leader_epoch, (1,), (1,), ())
    topic = TopicInfo("t", topic_id, is_internal=False, partitions={0: info})
    return Cluster(brokers={1: BrokerNode(1, "b", 9)}, topics={"t": topic})


def positioned(offset_epoch: int) -> tuple[Positions, PartitionState]:
    positions = Positions()
    positions.assign([PARTITION])
    state = positions.get(PARTITION)
    assert state is not None
    state.seek(Position(10, offset_epoch))
    return positions, state


def test_a_position_with_an_epoch_is_validated_for_each_newer_leader() -> None:
    positions, state = positioned(offset_epoch=3)
    positions.follow(cluster_with(4))
    assert state.state is PositionState.VALIDATING
    assert state.position == Position(10, 3, 4)
    state.validated()
    positions.follow(cluster_with(4))
    assert [each.state for each in positions] == [PositionState.FETCHING], "that leader is known"
    positions.follow(cluster_with(3))
    assert state.position.leader_epoch == 4, "older news change nothing"
    positions.follow(cluster_with(5))
    assert state.state is PositionState.VALIDATING


def test_a_position_without_an_epoch_cannot_be_checked_and_goes_on() -> None:
    positions, state = positioned(offset_epoch=-1)
    positions.follow(cluster_with(4))
    assert state.state is PositionState.FETCHING
    assert state.position.leader_epoch == 4
    state.revalidate()
    assert state.state is PositionState.FETCHING


def test_what_is_in_a_topic_created_anew_is_read_from_its_beginning() -> None:
    positions, state = positioned(offset_epoch=3)
    positions.follow(cluster_with(4))
    positions.follow(cluster_with(0, b"2" * 16))
    assert state.state is PositionState.RESETTING
    assert state.reset_timestamp_ms == EARLIEST_TIMESTAMP


def test_whatever_sets_a_position_voids_the_answers_on_their_way() -> None:
    _, state = positioned(offset_epoch=3)
    generations = [state.generation]
    state.consumed(11, 4)
    assert state.generation == generations[-1], "reading on is no new beginning"
    state.seek(Position(5))
    generations.append(state.generation)
    state.reset(EARLIEST_TIMESTAMP)
    generations.append(state.generation)
    assert sorted(set(generations)) == generations


def test_assigning_keeps_the_positions_of_what_stays_and_rotating_their_order_only() -> None:
    positions, state = positioned(offset_epoch=3)
    others = [TopicPartition("t", 1), TopicPartition("t", 2)]
    positions.assign([PARTITION, *others])
    assert positions.get(PARTITION) is state
    positions.rotate([PARTITION, TopicPartition("gone", 0)])
    assert positions.partitions == (*others, PARTITION)
    positions.assign(others)
    assert PARTITION not in positions.partitions


def told(state: PartitionState) -> Position | None:
    return state.processed


def test_what_was_processed_follows_the_user_and_not_the_log() -> None:
    _, state = positioned(offset_epoch=3)
    assert told(state) is None
    state.came_back()
    state.consumed(20, 3)
    assert told(state) == Position(10, 3)
    state.came_back()
    state.seek(Position(15, 3))
    assert told(state) == Position(20, 3), "who goes back has processed it nevertheless"
    state.truncated(Position(18, 2))
    assert told(state) == Position(18, 2), "others have taken the place of what came behind"
    state.truncated(Position(19, 2))
    assert told(state) == Position(18, 2)
    state.reset(EARLIEST_TIMESTAMP)
    assert told(state) is None, "the log may be another one"
    state.came_back()
    assert told(state) is None, "there is no position to come back to"
