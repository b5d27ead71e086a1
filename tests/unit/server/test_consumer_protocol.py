"""Whether groups of the consumer protocol are served, and what they are told of topics."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from barnabas.api.consumer_group_describe import ConsumerGroupDescribeHandler
from barnabas.api.consumer_group_heartbeat import ConsumerGroupHeartbeatHandler
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.consumer_group.heartbeats import check_size
from barnabas.kernel.ids import Uuid
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.steps import at_once
from barnabas.kernel.timers import Timers
from barnabas.server.consumer_protocol import ConsumerProtocol
from barnabas.server.group_topics import MetadataTopics
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    UpdateMetadataRequest,
)
from tests.unit.kernel.virtual_loop import VirtualLoop

OURS = frozenset({int(ApiKey.PRODUCE), int(ApiKey.DESCRIBE_CONTROLLER)})
KAFKAS = frozenset({int(ApiKey.PRODUCE)})
LOGGER = logging.getLogger("test")
TOPIC_ID = Uuid(bytes(range(16)))


class Brokers:
    """Who answers which APIs; a broker that is not named does not answer."""

    def __init__(self, **keys: frozenset[int]) -> None:
        self.keys = {int(name[1:]): found for name, found in keys.items()}

    async def api_keys(self, broker_id: int) -> frozenset[int]:
        if broker_id not in self.keys:
            raise ConnectionError("down")
        return self.keys[broker_id]


def metadata(cache: MetadataCache, *broker_ids: int, partitions: int = 0, rack: str | None = None) -> None:
    """The controller tells of brokers, and of a topic `t` on the first two of them."""
    state = UpdateMetadataRequest.UpdateMetadataPartitionState
    broker = UpdateMetadataRequest.UpdateMetadataBroker
    endpoint = UpdateMetadataRequest.UpdateMetadataEndpoint
    states = [
        state(partition_index=number, leader=broker_ids[0], isr=list(broker_ids[:2]), replicas=list(broker_ids[:2]))
        for number in range(partitions)
    ]
    cache.apply(
        UpdateMetadataRequest(
            controller_id=1,
            controller_epoch=1,
            topic_states=[
                UpdateMetadataRequest.UpdateMetadataTopicState(
                    topic_name="t", topic_id=TOPIC_ID, partition_states=states
                )
            ]
            if partitions
            else [],
            live_brokers=[
                broker(
                    id=each,
                    rack=rack and f"{rack}{each}",
                    endpoints=[endpoint(port=9092, host="h", listener="PLAINTEXT", security_protocol=0)],
                )
                for each in broker_ids
            ],
        )
    )


class World:
    def __init__(self, brokers: Brokers, *, is_offered: bool = True) -> None:
        self.loop = VirtualLoop()
        self.timers = Timers(self.loop)
        self.scheduler = Scheduler(self.loop, self.timers, LOGGER)
        self.cache = MetadataCache(1, LOGGER)
        self.protocol = ConsumerProtocol(
            1, self.cache, brokers, self.scheduler, self.loop, LOGGER, is_offered=is_offered
        )
        self.protocol.start()

    def pass_ms(self, duration_ms: float) -> ErrorCode:
        self.loop.run_until_complete(self.timers.sleep(duration_ms))
        return self.protocol.refusal()

    def close(self) -> None:
        self.loop.run_until_complete(self.protocol.stop())
        self.loop.run_until_complete(self.scheduler.stop(1000))
        self.timers.close()
        self.loop.close()


def test_groups_are_served_when_all_brokers_are_known_to_be_ours() -> None:
    brokers = Brokers(_2=OURS)
    world = World(brokers)
    metadata(world.cache, 1, 2, 3)
    assert world.pass_ms(100) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    brokers.keys[3] = OURS
    assert world.pass_ms(6_000) is ErrorCode.NONE
    world.close()


def test_groups_are_refused_while_a_broker_of_apache_kafka_is_there() -> None:
    brokers = Brokers(_2=OURS)
    world = World(brokers)
    metadata(world.cache, 1, 2)
    assert world.pass_ms(100) is ErrorCode.NONE
    brokers.keys[3] = KAFKAS
    metadata(world.cache, 1, 2, 3)
    assert world.protocol.refusal() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.pass_ms(100) is ErrorCode.UNSUPPORTED_VERSION
    metadata(world.cache, 1, 2)
    assert world.pass_ms(100) is ErrorCode.NONE
    world.close()


def test_a_broker_that_is_started_anew_as_apache_kafka_is_noticed() -> None:
    brokers = Brokers(_2=OURS)
    world = World(brokers)
    metadata(world.cache, 1, 2)
    assert world.pass_ms(100) is ErrorCode.NONE
    brokers.keys[2] = KAFKAS
    assert world.pass_ms(6_000) is ErrorCode.UNSUPPORTED_VERSION
    world.close()


def test_nobody_is_asked_where_the_protocol_is_switched_off() -> None:
    world = World(Brokers(), is_offered=False)
    metadata(world.cache, 1, 2)
    assert world.pass_ms(100) is ErrorCode.UNSUPPORTED_VERSION
    assert not world.scheduler.tasks
    world.close()


@pytest.mark.parametrize("error", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_both_apis_are_answered_with_the_refusal(error: ErrorCode) -> None:
    nobody = cast("Any", None)
    heartbeat = ConsumerGroupHeartbeatHandler(nobody, lambda: error, is_offered=False)
    describe = ConsumerGroupDescribeHandler(nobody, lambda: error)
    assert (heartbeat.versions, describe.versions) == ((0, 0), (0, 0))
    beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="", member_epoch=0)
    with pytest.raises(KafkaError) as raised:
        at_once(heartbeat.handle(nobody, beat))
    assert heartbeat.error_response(nobody, beat, raised.value).error_code == error
    question = ConsumerGroupDescribeRequest(group_ids=["g", "h"])
    with pytest.raises(KafkaError) as raised:
        at_once(describe.handle(nobody, question))
    answer = at_once(describe.error_response(nobody, question, raised.value))
    assert [(group.group_id, group.error_code) for group in answer.groups] == [("g", error), ("h", error)]


@pytest.mark.parametrize(
    ("topics", "entries", "partitions", "is_taken"),
    [(5_000, 10, 10_000, True), (5_001, 0, 0, False), (1, 100_001, 0, False), (1, 1, 100_001, False)],
)
def test_a_heartbeat_that_names_too_much_is_refused(
    topics: int, entries: int, partitions: int, *, is_taken: bool
) -> None:
    entry = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=TOPIC_ID, partitions=[0] * partitions)
    if is_taken:
        check_size(["t"] * topics, [entry] * entries)
    else:
        with pytest.raises(KafkaError):
            check_size(["t"] * topics, [entry] * entries)


def test_topics_are_the_same_object_until_something_that_counts_changes() -> None:
    cache = MetadataCache(1, LOGGER)
    topics = MetadataTopics(cache)
    assert topics.facts("t") is None
    metadata(cache, 1, 2, partitions=2)
    first = topics.facts("t")
    assert first is not None
    assert (first.topic_id, first.partition_count, first.racks, topics.name(TOPIC_ID)) == (TOPIC_ID, 2, (), "t")
    metadata(cache, 2, 1, partitions=2)  # another leader
    assert topics.facts("t") is not None
    metadata(cache, 1, 2, partitions=3, rack="r")
    grown = topics.facts("t")
    assert grown is not None
    assert grown is topics.facts("t")
    assert (grown.partition_count, grown.racks[0]) == (3, (0, ("r1", "r2")))
