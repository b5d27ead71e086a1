"""`barnabas.client.cluster`: what answers to Metadata make of the image."""

from __future__ import annotations

from barnabas.client.cluster import Cluster
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import MetadataResponse
from barnabas.wire.topics import TopicPartition

EVENTS = TopicPartition("events", 0)
ONE, TWO = bytes(15) + b"\1", bytes(15) + b"\2"


def answer(leader: int, epoch: int, topic_id: bytes = ONE, error: ErrorCode = ErrorCode.NONE) -> MetadataResponse:
    partition = MetadataResponse.MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1]
    )
    topic = MetadataResponse.MetadataResponseTopic(
        name="events",
        topic_id=topic_id,
        error_code=int(error),
        partitions=[partition] if error is ErrorCode.NONE else [],
    )
    brokers = [MetadataResponse.MetadataResponseBroker(node_id=node, host=f"b{node}", port=9) for node in (1, 2)]
    return MetadataResponse(cluster_id="c", controller_id=2, brokers=brokers, topics=[topic])


def test_takes_over_what_is_newer_and_keeps_what_a_lagging_broker_does_not_know() -> None:
    cluster = Cluster().updated(answer(1, 5))
    assert cluster.controller_id == 2
    assert cluster.partition_count("events") == 1
    leader = cluster.leader(EVENTS)
    assert leader is not None
    assert (leader[0].host, leader[1]) == ("b1", 5)
    cluster = cluster.updated(answer(2, 4))
    assert cluster.leader(EVENTS) == leader
    cluster = cluster.updated(answer(2, 6))
    newer = cluster.leader(EVENTS)
    assert newer is not None
    assert (newer[0].node_id, newer[1]) == (2, 6)


def test_a_topic_created_anew_begins_anew() -> None:
    cluster = Cluster().updated(answer(1, 5)).updated(answer(2, 0, TWO))
    assert cluster.topics["events"].topic_id == TWO
    leader = cluster.leader(EVENTS)
    assert leader is not None
    assert leader[1] == 0


def test_errors_keep_what_is_known_except_that_the_topic_is_gone() -> None:
    cluster = Cluster().updated(answer(1, 5))
    failed = cluster.updated(answer(1, 5, error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert failed.topics["events"].error is ErrorCode.LEADER_NOT_AVAILABLE
    assert failed.partition_count("events") == 1
    gone = cluster.updated(answer(1, 5, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert gone.partition_count("events") == 0
    assert gone.leader(EVENTS) is None
    assert cluster.updated(MetadataResponse(brokers=[], topics=[])).topics == {}


def test_there_is_no_leader_where_its_broker_is_not_known() -> None:
    assert Cluster().updated(answer(7, 5)).leader(EVENTS) is None
    assert Cluster().updated(answer(-1, 5)).leader(EVENTS) is None


def test_a_leader_that_a_broker_tells_counts_only_if_it_is_newer_and_known() -> None:
    cluster = Cluster().updated(answer(1, 5))
    assert cluster.with_leader(EVENTS, 2, 5) is cluster
    assert cluster.with_leader(EVENTS, 9, 6) is cluster
    assert cluster.with_leader(TopicPartition("other", 0), 2, 6) is cluster
    changed = cluster.with_leader(EVENTS, 2, 6).leader(EVENTS)
    assert changed is not None
    assert (changed[0].node_id, changed[1]) == (2, 6)
