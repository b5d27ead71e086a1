"""What is the controller's to answer: AlterPartition, ControlledShutdown, AllocateProducerIds, DescribeController and
reassignments, to it and back.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

import pytest

from barnabas.api.allocate_producer_ids import AllocateProducerIdsHandler
from barnabas.api.alter_partition import AlterPartitionHandler
from barnabas.api.alter_partition_reassignments import AlterPartitionReassignmentsHandler
from barnabas.api.controlled_shutdown import ControlledShutdownHandler
from barnabas.api.describe_controller import DescribeControllerHandler
from barnabas.api.envelope import EnvelopeHandler
from barnabas.api.list_partition_reassignments import ListPartitionReassignmentsHandler
from barnabas.api.update_features import UpdateFeaturesHandler
from barnabas.controller.description import ControllerDescription, EventTiming
from barnabas.controller.features import FeatureUpdate, UpgradeType
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.recent_transitions import StateTransition, TimedTransition
from barnabas.controller.states import ControllerState
from barnabas.coordination.layout.cluster import ProducerIdBlock
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.kernel.steps import Steps, at_once
from barnabas.wire import catalogue, codec
from barnabas.wire.classes import Message
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    DescribeControllerRequest,
    DescribeControllerResponse,
    EnvelopeRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

Result = TypeVar("Result")


class Context:
    authorizer = None

    def __init__(self, api_version: int) -> None:
        self.api_version = api_version

    def park(self) -> None: ...

    async def in_steps(self, steps: Steps[Result]) -> Result:
        return at_once(steps)


class Controller:
    """Answers, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        self.asked.append((request, version))
        return AlterPartitionResponse(throttle_time_ms=1)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        self.asked.append((broker_id, broker_epoch))
        return [TopicPartition("t", 3)]

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        self.asked.append((broker_id, broker_epoch))
        return ProducerIdBlock(broker_id, 5000, 5999)

    async def alter_reassignments(
        self, targets: dict[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        self.asked.append((targets,))
        refused = KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return {partition: refused if target is None else None for partition, target in targets.items()}

    async def list_reassignments(
        self, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        self.asked.append((partitions,))
        found = [TopicPartition("t", 0), TopicPartition("u", 1), TopicPartition("t", 2)]
        return dict.fromkeys(found, ReplicaAssignment((4, 1, 2), (4,), (1,)))

    async def update_features(
        self, updates: list[FeatureUpdate], *, validate_only: bool
    ) -> dict[str, KafkaError | None]:
        self.asked.append((updates, validate_only))
        refused = KafkaError(ErrorCode.INVALID_REQUEST, "not now")
        return {update.feature: refused if update.level else None for update in updates}

    def describe(self, transitions_max: int) -> ControllerDescription:
        self.asked.append((transitions_max,))
        transitions = (
            TimedTransition(11, StateTransition("t", 3, None, "OFFLINE", "ONLINE", LeaderAndIsr(2, 5, (2, 3), 9))),
            TimedTransition(12, StateTransition("t", 3, 1, "NEW", "OFFLINE", fault="it is not allowed")),
        )
        return ControllerDescription(
            controller_id=2,
            epoch=9,
            elected_at_ms=10,
            state=ControllerState.ISR_CHANGE,
            queued_events=4,
            oldest_event_age_ms=70,
            counts={"GlobalTopicCount": 6},
            timings=(EventTiming("IsrChangeRateAndTimeMs", 3, 1.5, 2),),
            queued_requests={1: 0, 2: 8},
            transitions=transitions,
        )


def handle(handler: Any, request: Message, version: int) -> Message:
    """The answer, after a journey over the wire in this version."""
    answer = handler.handle(Context(version), request)
    response: Message = asyncio.run(answer) if asyncio.iscoroutine(answer) else answer
    data = b"".join(codec.encode(response, version))
    return codec.decode(type(response), version, data)


@pytest.mark.parametrize("version", range(4))
def test_an_isr_change_is_the_controllers_to_answer(version: int) -> None:
    controller = Controller()
    request = AlterPartitionRequest(broker_id=1)
    response = handle(AlterPartitionHandler(cast("Any", controller)), request, version)
    assert response == AlterPartitionResponse(throttle_time_ms=1)
    assert controller.asked == [(request, version)]


@pytest.mark.parametrize("version", range(4))
def test_a_broker_that_shuts_down_learns_what_it_leads_still(version: int) -> None:
    controller = Controller()
    handler = ControlledShutdownHandler(cast("Any", controller))
    response = handle(handler, ControlledShutdownRequest(broker_id=2, broker_epoch=7), version)
    remaining = ControlledShutdownResponse.RemainingPartition(topic_name="t", partition_index=3)
    assert response == ControlledShutdownResponse(remaining_partitions=[remaining])
    assert controller.asked == [(2, 7)]


def test_a_block_of_producer_ids_has_its_start_and_length() -> None:
    controller = Controller()
    handler = AllocateProducerIdsHandler(cast("Any", controller))
    response = handle(handler, AllocateProducerIdsRequest(broker_id=2, broker_epoch=7), 0)
    assert response == AllocateProducerIdsResponse(producer_id_start=5000, producer_id_len=1000)


def test_the_controller_tells_what_it_does() -> None:
    controller = Controller()
    response = handle(
        DescribeControllerHandler(cast("Any", controller)), DescribeControllerRequest(transitions_max=7), 0
    )
    assert isinstance(response, DescribeControllerResponse)
    assert controller.asked == [(7,)]
    assert (response.error_code, response.controller_id, response.controller_epoch) == (0, 2, 9)
    assert (response.elected_at_ms, response.state) == (10, "ISR_CHANGE")
    assert (response.queued_events, response.oldest_event_age_ms) == (4, 70)
    assert [(count.name, count.value) for count in response.counts] == [("GlobalTopicCount", 6)]
    timing = response.timings[0]
    assert (timing.name, timing.count, timing.mean_ms, timing.maximum_ms) == ("IsrChangeRateAndTimeMs", 3, 1.5, 2)
    assert [(channel.broker_id, channel.queued_requests) for channel in response.channels] == [(1, 0), (2, 8)]
    partition, replica = response.transitions
    assert (partition.time_ms, partition.topic, partition.partition, partition.broker_id) == (11, "t", 3, -1)
    assert (partition.before, partition.after, partition.fault) == ("OFFLINE", "ONLINE", None)
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 5, [2, 3])
    assert (replica.broker_id, replica.leader, replica.leader_epoch, replica.isr) == (1, -1, -1, [])
    assert replica.fault == "it is not allowed"


def test_reassignments_begin_and_end_partition_by_partition() -> None:
    controller = Controller()
    request_of = AlterPartitionReassignmentsRequest
    topics = [
        request_of.ReassignableTopic(
            name=name,
            partitions=[
                request_of.ReassignablePartition(partition_index=number, replicas=replicas)
                for number, replicas in partitions
            ],
        )
        for name, partitions in (("t", [(0, [1]), (1, None), (0, [4, 5])]), ("u", [(0, [])]))
    ]
    response = handle(AlterPartitionReassignmentsHandler(cast("Any", controller)), request_of(topics=topics), 0)
    t0, t1, u0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    assert controller.asked == [({t0: (4, 5), t1: None, u0: ()},)]
    assert isinstance(response, AlterPartitionReassignmentsResponse)
    assert [
        (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in response.responses
    ] == [("t", [(0, 0), (1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)]), ("u", [(0, 0)])]
    first, second = response.responses[0].partitions
    assert first.error_message is None
    assert "nothing can be cancelled" in (second.error_message or "")


@pytest.mark.parametrize("is_all", [True, False])
def test_reassignments_are_listed_by_topic(is_all: bool) -> None:
    controller = Controller()
    topics = [ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(name="t", partition_indexes=[2, 0, 2])]
    request = ListPartitionReassignmentsRequest(topics=None if is_all else topics)
    response = handle(ListPartitionReassignmentsHandler(cast("Any", controller)), request, 0)
    assert controller.asked == [(None if is_all else [TopicPartition("t", 2), TopicPartition("t", 0)],)]
    assert isinstance(response, ListPartitionReassignmentsResponse)
    assert [
        (topic.name, each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    ] == [(name, number, [4, 1, 2], [4], [1]) for name, number in (("t", 0), ("t", 2), ("u", 1))]


@pytest.mark.parametrize(
    "handler_class",
    [
        AllocateProducerIdsHandler,
        AlterPartitionHandler,
        AlterPartitionReassignmentsHandler,
        ControlledShutdownHandler,
        DescribeControllerHandler,
        ListPartitionReassignmentsHandler,
    ],
)
def test_refusals_are_at_the_top_of_the_response_in_every_version(handler_class: Any) -> None:
    handler = handler_class(cast("Any", Controller()))
    error = KafkaError(ErrorCode.NOT_CONTROLLER)
    known = catalogue.request(handler.api_key).versions
    for version in range(handler.versions[0], handler.versions[1] + 1):
        assert version in range(known.low, known.high + 1)
        response = handler.error_response(Context(version), None, error)
        decoded = codec.decode(type(response), version, b"".join(codec.encode(response, version)))
        assert decoded.error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    ("version", "fields", "upgrade_type"),
    [
        (0, {"allow_downgrade": False}, UpgradeType.UPGRADE),
        (0, {"allow_downgrade": True}, UpgradeType.SAFE_DOWNGRADE),
        (1, {}, UpgradeType.UPGRADE),
        (1, {"upgrade_type": 2}, UpgradeType.SAFE_DOWNGRADE),
        (1, {"upgrade_type": 3}, UpgradeType.UNSAFE_DOWNGRADE),
        (1, {"upgrade_type": 0}, UpgradeType.UNKNOWN),
        (1, {"upgrade_type": 9}, UpgradeType.UNKNOWN),
        (1, {"upgrade_type": -1}, UpgradeType.UNKNOWN),
    ],
)
def test_what_an_update_of_a_feature_may_do_depends_on_the_version(
    version: int, fields: dict[str, Any], upgrade_type: UpgradeType
) -> None:
    controller = Controller()
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature="f", max_version_level=2, **fields)
    handle(UpdateFeaturesHandler(cast("Any", controller)), UpdateFeaturesRequest(feature_updates=[update]), version)
    assert controller.asked == [([FeatureUpdate("f", 2, upgrade_type)], False)]


def test_each_update_of_a_feature_has_its_outcome_and_the_first_mention_counts() -> None:
    controller = Controller()
    key_of, result_of = UpdateFeaturesRequest.FeatureUpdateKey, UpdateFeaturesResponse.UpdatableFeatureResult
    request = UpdateFeaturesRequest(
        feature_updates=[
            key_of(feature=name, max_version_level=level) for name, level in (("f", 0), ("g", 1), ("f", 7))
        ],
        validate_only=True,
    )
    response = handle(UpdateFeaturesHandler(cast("Any", controller)), request, 1)
    updates, validate_only = controller.asked[0]
    assert ([(update.feature, update.level) for update in updates], validate_only) == ([("f", 0), ("g", 1)], True)
    assert response == UpdateFeaturesResponse(
        results=[
            result_of(feature="f", error_code=ErrorCode.NONE),
            result_of(feature="g", error_code=ErrorCode.INVALID_REQUEST, error_message="not now"),
        ]
    )


def test_a_forwarded_request_closes_its_connection() -> None:
    with pytest.raises(ProtocolError, match="forwarding is not enabled"):
        EnvelopeHandler().handle(cast("Any", Context(0)), EnvelopeRequest())
