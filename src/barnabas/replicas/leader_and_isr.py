"""What a LeaderAndIsr request says of each partition, and which of that a broker takes over."""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.steps import each, each_within
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.kernel.steps import Steps

_GROUPED_BY_TOPIC_SINCE_VERSION = 5


class RequestedPartition(NamedTuple):
    """One partition of a request."""

    topic_partition: TopicPartition
    topic_id: Uuid
    """ZERO_UUID where the request names none."""
    state: LeaderAndIsrRequest.LeaderAndIsrPartitionState


class Verdict(enum.Enum):
    """What becomes of one partition of a request."""

    LEAD = "lead"
    FOLLOW = "follow"
    TAKE_TOPIC_ID = "take the topic id"
    """The same leader epoch; only the id of the topic is news (a cluster that begins to use ids)."""
    REFUSE = "refuse"


class Judgement(NamedTuple):
    """The verdict, and the code of a refusal."""

    verdict: Verdict
    error: ErrorCode = ErrorCode.NONE


def requested_partitions(request: LeaderAndIsrRequest) -> Iterator[RequestedPartition]:
    """The partitions of a request of any version, in its order."""
    for state in request.ungrouped_partition_states:
        yield RequestedPartition(TopicPartition(state.topic_name, state.partition_index), ZERO_UUID, state)
    for topic in request.topic_states:
        topic_id = Uuid(topic.topic_id)
        for state in topic.partition_states:
            yield RequestedPartition(TopicPartition(topic.topic_name, state.partition_index), topic_id, state)


def in_pieces(request: LeaderAndIsrRequest, partitions_max: int) -> Iterator[LeaderAndIsrRequest]:
    """The request as several, of at most so many partitions each, in its order; itself where it has no more. A new
    replica counts as two: its log is to be made.
    """
    states = [request.ungrouped_partition_states, *(topic.partition_states for topic in request.topic_states)]
    if sum(map(_weight, islice(chain.from_iterable(states), partitions_max + 1))) <= partitions_max:
        yield request
        return
    piece, room = _empty(request), partitions_max
    for state in request.ungrouped_partition_states:
        if room <= 0:
            yield piece
            piece, room = _empty(request), partitions_max
        piece.ungrouped_partition_states.append(state)
        room -= _weight(state)
    for topic in request.topic_states:
        some: LeaderAndIsrRequest.LeaderAndIsrTopicState | None = None
        for state in topic.partition_states:
            if room <= 0:
                yield piece
                piece, room, some = _empty(request), partitions_max, None
            if some is None:
                some = copy.copy(topic)
                some.partition_states = []
                piece.topic_states.append(some)
            some.partition_states.append(state)
            room -= _weight(state)
    yield piece


def _weight(state: LeaderAndIsrRequest.LeaderAndIsrPartitionState) -> int:
    return 2 if state.is_new else 1


def _empty(request: LeaderAndIsrRequest) -> LeaderAndIsrRequest:
    piece = copy.copy(request)
    piece.ungrouped_partition_states = []
    piece.topic_states = []
    return piece


def joined(answers: Sequence[LeaderAndIsrResponse]) -> LeaderAndIsrResponse:
    """One answer to the pieces of a request; the error of the whole is the first that any has."""
    if len(answers) == 1:
        return answers[0]
    whole = LeaderAndIsrResponse()
    topics: dict[bytes, LeaderAndIsrResponse.LeaderAndIsrTopicError] = {}
    for answer in answers:
        whole.error_code = whole.error_code or answer.error_code
        whole.partition_errors += answer.partition_errors
        for topic in answer.topics:
            known = topics.setdefault(bytes(topic.topic_id), topic)
            if known is topic:
                whole.topics.append(topic)
            else:
                known.partition_errors += topic.partition_errors
    return whole


def judge(
    requested: RequestedPartition,
    broker_id: int,
    *,
    leader_epoch: int,
    topic_id: Uuid,
    is_kraft_controller: bool = False,
) -> Judgement:
    """What a broker makes of a partition that it knows at `leader_epoch` (-1: not at all) and by `topic_id`.

    Only a greater leader epoch is accepted, since every change that is meant for replicas comes with one; what is not
    greater was sent before what we know, whichever way it took.
    """
    state = requested.state
    if ZERO_UUID not in (requested.topic_id, topic_id) and requested.topic_id != topic_id:
        return Judgement(Verdict.REFUSE, ErrorCode.INCONSISTENT_TOPIC_ID)
    if state.leader_epoch > leader_epoch or (is_kraft_controller and state.leader_epoch == leader_epoch):
        if broker_id not in state.replicas:
            return Judgement(Verdict.REFUSE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return Judgement(Verdict.LEAD if state.leader == broker_id else Verdict.FOLLOW)
    if state.leader_epoch == leader_epoch and topic_id == ZERO_UUID != requested.topic_id:
        return Judgement(Verdict.TAKE_TOPIC_ID)
    return Judgement(Verdict.REFUSE, ErrorCode.STALE_CONTROLLER_EPOCH)


def response(
    requested: Iterable[RequestedPartition], errors: Mapping[TopicPartition, ErrorCode], version: int, error: ErrorCode
) -> LeaderAndIsrResponse:
    """The answer: `error` for the request, and the code of each partition, which is `error` where none is given."""
    answer = _Answer(version, error)
    for partition in requested:
        code = errors.get(partition.topic_partition, error)
        answer.add(partition.topic_partition.topic, partition.topic_id, partition.topic_partition.partition, code)
    return answer.response


def refusal_in_steps(request: LeaderAndIsrRequest, version: int, error: ErrorCode) -> Steps[LeaderAndIsrResponse]:
    """The answer to a request that is refused as a whole: whoever sent it may not be the controller, and it may name
    millions of partitions.
    """
    answer = _Answer(version, error)
    yield from each(
        lambda state: answer.add(state.topic_name, ZERO_UUID, state.partition_index, error),
        request.ungrouped_partition_states,
    )
    yield from each_within(
        request.topic_states,
        lambda topic: topic.partition_states,
        lambda topic, state: answer.add(topic.topic_name, topic.topic_id, state.partition_index, error),
        lambda *_: None,
    )
    return answer.response


class _Answer:
    """One that is being made, partition by partition."""

    def __init__(self, version: int, error: ErrorCode) -> None:
        self.response = LeaderAndIsrResponse(error_code=error)
        self._is_by_topic = version >= _GROUPED_BY_TOPIC_SINCE_VERSION
        self._topics: dict[bytes, LeaderAndIsrResponse.LeaderAndIsrTopicError] = {}

    def add(self, topic_name: str, topic_id: bytes, number: int, code: ErrorCode) -> None:
        outcome = LeaderAndIsrResponse.LeaderAndIsrPartitionError(partition_index=number, error_code=code)
        if not self._is_by_topic:
            outcome.topic_name = topic_name
            self.response.partition_errors.append(outcome)
            return
        topic = self._topics.get(topic_id)
        if topic is None:
            topic = self._topics[topic_id] = LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic_id)
            self.response.topics.append(topic)
        topic.partition_errors.append(outcome)
