"""A LeaderAndIsr request in pieces, and their answers as one."""

from __future__ import annotations

import pytest

from barnabas.kernel.steps import STEP_ELEMENTS, at_once
from barnabas.replicas.leader_and_isr import in_pieces, joined, refusal_in_steps, requested_partitions, response
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaderAndIsrRequest
from barnabas.wire.topics import TopicPartition

State = LeaderAndIsrRequest.LeaderAndIsrPartitionState


def request_of(*counts: int) -> LeaderAndIsrRequest:
    """Topics with so many partitions."""
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=7,
        broker_epoch=9,
        topic_states=[
            LeaderAndIsrRequest.LeaderAndIsrTopicState(
                topic_name=f"t{topic}",
                topic_id=bytes([topic + 1]) * 16,
                partition_states=[State(partition_index=number) for number in range(count)],
            )
            for topic, count in enumerate(counts)
        ],
    )


@pytest.mark.parametrize("counts", [(), (1,), (7,), (3, 3), (2, 0, 5, 9), (6, 3, 1)])
def test_pieces_are_the_request_in_its_order_and_their_answers_the_answer(counts: tuple[int, ...]) -> None:
    request = request_of(*counts)
    pieces = list(in_pieces(request, 3))
    assert [len(list(requested_partitions(piece))) <= 3 for piece in pieces] == [True] * len(pieces)
    assert [requested for piece in pieces for requested in requested_partitions(piece)] == list(
        requested_partitions(request)
    )
    assert {(piece.controller_id, piece.controller_epoch, piece.broker_epoch) for piece in pieces} == {(1, 7, 9)}
    errors = {TopicPartition("t0", 1): ErrorCode.KAFKA_STORAGE_ERROR}
    for version in (4, 7):
        whole = response(requested_partitions(request), errors, version, ErrorCode.NONE)
        parts = [response(requested_partitions(piece), errors, version, ErrorCode.NONE) for piece in pieces]
        assert joined(parts) == whole


def test_partitions_without_topics_are_cut_too() -> None:
    request = LeaderAndIsrRequest(
        ungrouped_partition_states=[State(topic_name="t", partition_index=number) for number in range(7)]
    )
    pieces = list(in_pieces(request, 3))
    assert [len(piece.ungrouped_partition_states) for piece in pieces] == [3, 3, 1]


def test_new_replicas_count_twice_since_their_logs_are_made() -> None:
    request = request_of(3, 9)
    for number, state in enumerate(state for topic in request.topic_states for state in topic.partition_states):
        state.is_new = number >= 5
    pieces = list(in_pieces(request, 4))
    assert [len(list(requested_partitions(piece))) for piece in pieces] == [4, 3, 2, 2, 1]
    request = LeaderAndIsrRequest(
        ungrouped_partition_states=[State(topic_name="t", partition_index=number, is_new=True) for number in range(3)]
    )
    assert [len(piece.ungrouped_partition_states) for piece in in_pieces(request, 4)] == [2, 1]


def test_a_piece_that_is_refused_as_a_whole_has_the_whole_say_so() -> None:
    pieces = list(in_pieces(request_of(4), 3))
    first = response(requested_partitions(pieces[0]), {}, 7, ErrorCode.NONE)
    second = response(requested_partitions(pieces[1]), {}, 7, ErrorCode.STALE_CONTROLLER_EPOCH)
    whole = joined([first, second])
    assert whole.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    (topic,) = whole.topics
    assert [state.error_code for state in topic.partition_errors] == [0, 0, 0, ErrorCode.STALE_CONTROLLER_EPOCH]


@pytest.mark.parametrize("version", [1, 4, 7])
@pytest.mark.parametrize("counts", [(), (1,), (3, 3), (2, 0, 5)])
def test_a_refusal_is_told_of_every_partition(version: int, counts: tuple[int, ...]) -> None:
    request = request_of(*counts)
    if version == 1:
        states = [State(topic_name="t", partition_index=number) for number in range(sum(counts))]
        request = LeaderAndIsrRequest(ungrouped_partition_states=states)
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    whole = response(requested_partitions(request), {}, version, error)
    assert at_once(refusal_in_steps(request, version, error)) == whole


@pytest.mark.parametrize("counts", [(10 * STEP_ELEMENTS,), (0,) * 10 * STEP_ELEMENTS, ()])
def test_a_refusal_takes_steps(counts: tuple[int, ...]) -> None:
    """Whoever may do nothing may name millions of partitions, or topics without any."""
    request = LeaderAndIsrRequest()
    request.topic_states = [
        LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name="t", partition_states=[State()] * count)
        for count in counts
    ]
    if not counts:
        request.ungrouped_partition_states = [State()] * 10 * STEP_ELEMENTS
    steps = refusal_in_steps(request, 7, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert len(list(steps)) >= 9
