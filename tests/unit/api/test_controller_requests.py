"""AlterPartition, ControlledShutdown, AllocateProducerIds and DescribeController: to the controller, and back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from barnabas.api.allocate_producer_ids import AllocateProducerIdsHandler
from barnabas.api.alter_partition import AlterPartitionHandler
from barnabas.api.controlled_shutdown import ControlledShutdownHandler
from barnabas.api.describe_controller import DescribeControllerHandler
from barnabas.controller.description import ControllerDescription, EventTiming
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.recent_transitions import StateTransition, TimedTransition
from barnabas.controller.states import ControllerState
from barnabas.coordination.layout.cluster import ProducerIdBlock
from barnabas.wire import catalogue, codec
from barnabas.wire.classes import Message
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    DescribeControllerRequest,
    DescribeControllerResponse,
)
from barnabas.wire.topics import TopicPartition


class Context:
    def __init__(self, api_version: int) -> None:
        self.api_version = api_version


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

    def describe(self, moves_max: int) -> ControllerDescription:
        self.asked.append((moves_max,))
        moves = (
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
            moves=moves,
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
    response = handle(DescribeControllerHandler(cast("Any", controller)), DescribeControllerRequest(moves_max=7), 0)
    assert isinstance(response, DescribeControllerResponse)
    assert controller.asked == [(7,)]
    assert (response.error_code, response.controller_id, response.controller_epoch) == (0, 2, 9)
    assert (response.elected_at_ms, response.state) == (10, "ISR_CHANGE")
    assert (response.queued_events, response.oldest_event_age_ms) == (4, 70)
    assert [(count.name, count.value) for count in response.counts] == [("GlobalTopicCount", 6)]
    timing = response.timings[0]
    assert (timing.name, timing.count, timing.mean_ms, timing.maximum_ms) == ("IsrChangeRateAndTimeMs", 3, 1.5, 2)
    assert [(channel.broker_id, channel.queued_requests) for channel in response.channels] == [(1, 0), (2, 8)]
    partition, replica = response.moves
    assert (partition.time_ms, partition.topic, partition.partition, partition.broker_id) == (11, "t", 3, -1)
    assert (partition.before, partition.after, partition.fault) == ("OFFLINE", "ONLINE", None)
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 5, [2, 3])
    assert (replica.broker_id, replica.leader, replica.leader_epoch, replica.isr) == (1, -1, -1, [])
    assert replica.fault == "it is not allowed"


@pytest.mark.parametrize(
    "handler_class",
    [AlterPartitionHandler, ControlledShutdownHandler, AllocateProducerIdsHandler, DescribeControllerHandler],
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
