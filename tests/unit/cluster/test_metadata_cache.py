from __future__ import annotations

import logging

import pytest

from barnabas.cluster.image import MetadataImage, Node, PartitionMetadata
from barnabas.cluster.metadata_cache import FULL, PARTITIONS_PER_STEP, MetadataCache, MetadataChange
from barnabas.cluster.metadata_responses import TopicResponses, broker_responses
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.steps import at_once
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import MetadataResponse, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition

FLIGHTS_ID = Uuid(b"f" * 16)
OTHER_ID = Uuid(b"o" * 16)
State = UpdateMetadataRequest.UpdateMetadataPartitionState


def cache() -> MetadataCache:
    return MetadataCache(1, logging.getLogger("barnabas.tests.cluster"))


def state(number: int, leader: int = 1, *, leader_epoch: int = 0, name: str = "") -> State:
    return State(
        topic_name=name,
        partition_index=number,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=[1, 2],
        zk_version=3,
        replicas=[1, 2, 3],
        offline_replicas=[3],
    )


def broker(broker_id: int, *listeners: str) -> UpdateMetadataRequest.UpdateMetadataBroker:
    endpoints = [
        UpdateMetadataRequest.UpdateMetadataEndpoint(
            port=9092, host=f"{listener.lower()}-{broker_id}", listener=listener, security_protocol=0
        )
        for listener in listeners
    ]
    return UpdateMetadataRequest.UpdateMetadataBroker(id=broker_id, endpoints=endpoints, rack=f"rack-{broker_id}")


def told(
    *states: State,
    name: str = "flights",
    topic_id: Uuid = FLIGHTS_ID,
    brokers: tuple[int, ...] = (1, 2),
    controller_id: int = 1,
) -> UpdateMetadataRequest:
    topics = [
        UpdateMetadataRequest.UpdateMetadataTopicState(
            topic_name=name, topic_id=topic_id, partition_states=list(states)
        )
    ]
    return UpdateMetadataRequest(
        controller_id=controller_id,
        controller_epoch=1,
        topic_states=topics if states else [],
        live_brokers=[broker(broker_id, "CLIENTS", "BROKERS") for broker_id in brokers],
    )


def test_takes_over_what_it_is_told() -> None:
    metadata = cache()
    change = metadata.apply(told(state(1), state(0)))
    image = metadata.image
    assert image is change.image
    assert list(image.topics["flights"].partitions) == [0, 1]
    assert image.partition(TopicPartition("flights", 0)) == PartitionMetadata(1, 0, (1, 2), (1, 2, 3), (3,), 3, 1)
    assert (image.topic_id("flights"), image.topic_name(FLIGHTS_ID)) == (FLIGHTS_ID, "flights")
    assert (image.controller_id, image.partition_count("flights"), image.partition_count("trains")) == (1, 2, None)
    assert image.nodes("CLIENTS") == [Node(1, "clients-1", 9092, "rack-1"), Node(2, "clients-2", 9092, "rack-2")]
    assert image.leader_node(TopicPartition("flights", 0), "BROKERS") == Node(1, "brokers-1", 9092, "rack-1")
    assert image.controller_node("NOBODY") is None
    assert set(change.changed) == {TopicPartition("flights", 0), TopicPartition("flights", 1)}


def test_a_taken_image_never_changes() -> None:
    metadata = cache()
    metadata.apply(told(state(0)))
    image = metadata.image
    metadata.apply(told(state(0, leader=2, leader_epoch=1), state(1), brokers=(2,)))
    assert image.topics["flights"].partitions.keys() == {0}
    assert image.partition(TopicPartition("flights", 0)) == PartitionMetadata(1, 0, (1, 2), (1, 2, 3), (3,), 3, 1)
    assert set(image.brokers) == {1, 2}


def test_shares_what_did_not_change() -> None:
    metadata = cache()
    metadata.apply(told(state(0)))
    metadata.apply(told(state(0), name="trains", topic_id=OTHER_ID))
    before = metadata.image
    metadata.apply(told(state(0, leader_epoch=1)))
    after = metadata.image
    assert after.topics["trains"] is before.topics["trains"]
    assert after.brokers is before.brokers
    assert after.names_by_id is before.names_by_id
    trains, flights = after.topics["trains"].partitions[0], after.topics["flights"].partitions[0]
    assert trains.replicas is flights.replicas
    metadata.apply(told(state(7), state(8, leader=2), state(9, leader=2)))
    flights_now = metadata.image.topics["flights"].partitions
    assert flights_now[8] is flights_now[9]
    assert flights_now[7] is trains
    after = metadata.image
    metadata.apply(told(brokers=(1,)))
    assert metadata.image.topics is after.topics


def test_names_only_what_changed() -> None:
    metadata = cache()
    metadata.apply(told(state(0), state(1)))
    change = metadata.apply(told(state(0), state(1, leader=2, leader_epoch=1)))
    assert change.changed == (TopicPartition("flights", 1),)
    assert not change.brokers_changed
    assert not change.controller_changed
    change = metadata.apply(told(brokers=(2,), controller_id=2))
    assert change.changed == ()
    assert change.brokers_changed
    assert change.controller_changed


def test_forgets_partitions_of_a_topic_that_is_deleted_and_with_the_last_the_topic() -> None:
    metadata = cache()
    metadata.apply(told(state(0), state(1)))
    change = metadata.apply(told(state(0, leader=-2)))
    assert change.deleted == (TopicPartition("flights", 0),)
    assert metadata.image.topics["flights"].partitions.keys() == {1}
    metadata.apply(told(state(1, leader=-2)))
    assert metadata.image.topics == {}
    assert metadata.image.topic_name(FLIGHTS_ID) is None
    assert metadata.apply(told(state(7, leader=-2))).deleted == (TopicPartition("flights", 7),)


def test_a_topic_that_was_created_anew_has_another_id() -> None:
    metadata = cache()
    metadata.apply(told(state(0)))
    metadata.apply(told(state(0), topic_id=OTHER_ID))
    assert metadata.image.names_by_id == {OTHER_ID: "flights"}
    metadata.apply(told(state(0), topic_id=ZERO_UUID))
    assert metadata.image.names_by_id == {}


def test_a_topic_with_another_id_has_nothing_of_its_namesake() -> None:
    metadata = cache()
    metadata.apply(told(state(0), state(1), state(2)))
    change = metadata.apply(told(state(0), topic_id=OTHER_ID))
    assert list(metadata.image.topics["flights"].partitions) == [0]
    assert change.changed == (TopicPartition("flights", 0),)
    assert change.deleted == (TopicPartition("flights", 1), TopicPartition("flights", 2))


def test_a_full_request_has_everything_forgotten_that_it_does_not_name() -> None:
    metadata = cache()
    metadata.apply(told(state(0), state(1)))
    metadata.apply(told(state(0), state(1), name="gone", topic_id=OTHER_ID))
    full = told(state(1, leader=2))
    full.type = FULL
    change = metadata.apply(full)
    image = metadata.image
    assert {name: list(topic.partitions) for name, topic in image.topics.items()} == {"flights": [1]}
    assert (image.topic_name(OTHER_ID), image.topic_name(FLIGHTS_ID)) == (None, "flights")
    assert change.changed == (TopicPartition("flights", 1),)
    assert change.forgotten == (TopicPartition("flights", 0), TopicPartition("gone", 0), TopicPartition("gone", 1))
    assert change.deleted == (), "what is not named may merely not be readable"


def test_a_full_request_without_topics_leaves_none() -> None:
    metadata = cache()
    metadata.apply(told(state(0)))
    nothing = told()
    metadata.apply(nothing)
    assert list(metadata.image.topics) == ["flights"], "it said nothing of topics"
    nothing.type = FULL
    metadata.apply(nothing)
    assert not metadata.image.topics
    assert not metadata.image.names_by_id


def test_a_request_of_many_partitions_is_taken_over_in_steps_and_seen_after_the_last() -> None:
    metadata = cache()
    metadata.apply(told(state(0), name="gone", topic_id=OTHER_ID))
    full = told(*(state(number) for number in range(5 * PARTITIONS_PER_STEP)))
    full.type = FULL
    checked: list[int] = []
    steps = metadata.apply_in_steps(full, lambda: checked.append(1))
    for _ in range(5):
        next(steps)
        assert list(metadata.image.topics) == ["gone"]
    assert not checked
    change = at_once(steps)
    assert checked == [1]
    assert len(change.changed) == 5 * PARTITIONS_PER_STEP
    assert change.forgotten == (TopicPartition("gone", 0),)
    assert metadata.image.partition_count("flights") == 5 * PARTITIONS_PER_STEP


def test_what_came_between_the_steps_of_another_request_is_not_lost() -> None:
    metadata = cache()
    steps = metadata.apply_in_steps(told(*(state(number) for number in range(2 * PARTITIONS_PER_STEP))), lambda: None)
    next(steps)
    metadata.apply(told(state(7, leader=3), name="between", topic_id=OTHER_ID))
    at_once(steps)
    assert metadata.image.partition_count("flights") == 2 * PARTITIONS_PER_STEP
    assert metadata.image.topics["between"].partitions[7].leader == 3


def test_a_controller_that_is_replaced_between_the_steps_changes_nothing() -> None:
    metadata = cache()

    def check() -> None:
        raise KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH)

    with pytest.raises(KafkaError):
        at_once(metadata.apply_in_steps(told(state(0)), check))
    assert not metadata.image.topics


def test_older_requests() -> None:
    metadata = cache()
    old = UpdateMetadataRequest.UpdateMetadataBroker(id=4, v0_host="old", v0_port=1)
    endpoint = UpdateMetadataRequest.UpdateMetadataEndpoint(port=2, host="younger", security_protocol=3)
    younger = UpdateMetadataRequest.UpdateMetadataBroker(id=5, endpoints=[endpoint])
    metadata.apply(
        UpdateMetadataRequest(
            controller_id=-1,
            controller_epoch=1,
            ungrouped_partition_states=[state(0, name="flights"), state(0, name="trains"), state(1, name="flights")],
            live_brokers=[old, younger],
        )
    )
    image = metadata.image
    assert image.controller_id is None
    assert image.node(4, "PLAINTEXT") == Node(4, "old", 1)
    assert image.node(5, "SASL_SSL") == Node(5, "younger", 2)
    assert (image.partition_count("flights"), image.partition_count("trains")) == (2, 1)


def test_tells_listeners_and_none_keeps_another_from_hearing() -> None:
    metadata, heard = cache(), list[MetadataChange]()

    def fail(_change: MetadataChange) -> None:
        raise RuntimeError("no")

    metadata.add_listener(fail)
    metadata.add_listener(heard.append)
    change = metadata.apply(told(state(0)))
    assert heard == [change]


def topic_response(
    image: MetadataImage, name: str, listener_name: str, *, is_version_0: bool, names_missing_listener: bool
) -> MetadataResponse.MetadataResponseTopic:
    responses = TopicResponses(
        image, listener_name, is_version_0=is_version_0, names_missing_listener=names_missing_listener
    )
    return at_once(responses.topic(name, image.topics[name]))


class TestResponses:
    @pytest.fixture
    def metadata(self) -> MetadataCache:
        metadata = cache()
        request = told(state(0, leader=1), state(1, leader=3), state(2, leader=-1), state(3, leader=2))
        request.live_brokers[1].endpoints.pop(0)  # broker 2 has no listener CLIENTS
        metadata.apply(request)
        return metadata

    def test_leaders(self, metadata: MetadataCache) -> None:
        def errors(*, names_missing_listener: bool) -> list[tuple[int, int]]:
            topic = topic_response(
                metadata.image, "flights", "CLIENTS", is_version_0=False, names_missing_listener=names_missing_listener
            )
            assert (topic.topic_id, topic.is_internal) == (FLIGHTS_ID, False)
            return [(partition.error_code, partition.leader_id) for partition in topic.partitions]

        gone = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert errors(names_missing_listener=False) == [(0, 1), gone, gone, gone]
        assert errors(names_missing_listener=True) == [(0, 1), gone, gone, (ErrorCode.LISTENER_NOT_FOUND, -1)]

    def test_replicas(self, metadata: MetadataCache) -> None:
        topic = topic_response(metadata.image, "flights", "CLIENTS", is_version_0=False, names_missing_listener=True)
        partition = topic.partitions[0]
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1, 2, 3], [1, 2], [3])

    def test_version_0_leaves_out_who_cannot_be_reached(self, metadata: MetadataCache) -> None:
        topic = topic_response(metadata.image, "flights", "CLIENTS", is_version_0=True, names_missing_listener=False)
        partition = topic.partitions[0]
        assert (partition.error_code, partition.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1])

    def test_brokers_are_those_with_the_listener(self, metadata: MetadataCache) -> None:
        assert [(found.node_id, found.host) for found in broker_responses(metadata.image, "CLIENTS")] == [
            (1, "clients-1")
        ]

    def test_internal_topics(self, metadata: MetadataCache) -> None:
        metadata.apply(told(state(0), name="__consumer_offsets", topic_id=OTHER_ID))
        found = topic_response(
            metadata.image, "__consumer_offsets", "CLIENTS", is_version_0=False, names_missing_listener=True
        )
        assert found.is_internal


def test_of_very_many_different_states_not_all_are_remembered_and_each_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("barnabas.cluster.metadata_cache._SHARED_STATES_MAX", 3)
    monkeypatch.setattr("barnabas.cluster.metadata_cache._SHARED_LISTS_MAX", 3)
    metadata = cache()
    for number in range(20):
        lone = state(number, leader_epoch=number % 7)
        lone.isr = [number % 5]
        metadata.apply(told(lone))
        assert len(metadata._shared_states) <= 3
        assert len(metadata._shared) <= 3
    for number, known in metadata.image.topics["flights"].partitions.items():
        assert (known.leader_epoch, known.isr, known.replicas) == (number % 7, (number % 5,), (1, 2, 3))


def test_what_differs_in_one_thing_alone_is_news_and_changes_no_other_partition() -> None:
    """Partitions share one state where all of it is equal; one with another epoch or version is not equal."""
    metadata = cache()
    metadata.apply(told(state(0), state(1)))
    before = metadata.image.topics["flights"].partitions
    assert before[0] is before[1]
    fields: list[tuple[str, object]] = [("leader", 2), ("leader_epoch", 1), ("zk_version", 4), ("controller_epoch", 2)]
    fields += [("isr", [2, 1]), ("replicas", [1, 3, 2]), ("offline_replicas", [])]
    for name, value in fields:
        news = state(0)
        setattr(news, name, value)
        change = metadata.apply(told(news))
        assert change.changed == (TopicPartition("flights", 0),), name
        partitions = change.image.topics["flights"].partitions
        assert partitions[0] != partitions[1]
        assert partitions[1] is before[1]
        metadata.apply(told(state(0)))
        assert metadata.image.topics["flights"].partitions[0] is before[1]
