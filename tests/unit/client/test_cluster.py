"""`barnabas.client.cluster`: what answers to Metadata make of the image."""

from __future__ import annotations

import pytest

from barnabas.client.cluster import STEP_PARTITIONS, Cluster, let_go
from barnabas.kernel.steps import at_once
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


def updated(cluster: Cluster, response: MetadataResponse) -> Cluster:
    return at_once(cluster.updated(response))


def large_answer(topics: int, partitions: int) -> MetadataResponse:
    found = answer(1, 5)
    found.topics = [
        MetadataResponse.MetadataResponseTopic(
            name=f"topic-{topic}",
            partitions=[
                MetadataResponse.MetadataResponsePartition(partition_index=number, leader_id=1, replica_nodes=[1])
                for number in range(partitions)
            ],
        )
        for topic in range(topics)
    ]
    return found


@pytest.mark.parametrize(("topics", "partitions"), [(1, 20_000), (200, 100), (20_000, 0), (20_000, 1)])
def test_a_large_answer_is_taken_in_and_let_go_in_steps(topics: int, partitions: int) -> None:
    response = large_answer(topics, partitions)
    count = topics * (partitions + 1)
    turns = -(-count // STEP_PARTITIONS)
    steps = Cluster().updated(response)
    taken = 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
            taken += 1
    assert turns - 2 <= taken <= turns
    image: Cluster = end.value.value
    assert len(image.topics) == topics
    assert sum(map(len, (topic.partitions for topic in image.topics.values()))) == topics * partitions
    freed = sum(1 for _ in let_go(response))
    assert response.topics == []
    assert turns - 2 <= freed <= turns + 1


def test_takes_over_what_is_newer_and_keeps_what_a_lagging_broker_does_not_know() -> None:
    cluster = updated(Cluster(), answer(1, 5))
    assert cluster.controller_id == 2
    assert cluster.partition_count("events") == 1
    leader = cluster.leader(EVENTS)
    assert leader is not None
    assert (leader[0].host, leader[1]) == ("b1", 5)
    cluster = updated(cluster, answer(2, 4))
    assert cluster.leader(EVENTS) == leader
    cluster = updated(cluster, answer(2, 6))
    newer = cluster.leader(EVENTS)
    assert newer is not None
    assert (newer[0].node_id, newer[1]) == (2, 6)


def test_a_topic_created_anew_begins_anew() -> None:
    cluster = updated(updated(Cluster(), answer(1, 5)), answer(2, 0, TWO))
    assert cluster.topics["events"].topic_id == TWO
    leader = cluster.leader(EVENTS)
    assert leader is not None
    assert leader[1] == 0


def test_errors_keep_what_is_known_except_that_the_topic_is_gone() -> None:
    cluster = updated(Cluster(), answer(1, 5))
    failed = updated(cluster, answer(1, 5, error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert failed.topics["events"].error is ErrorCode.LEADER_NOT_AVAILABLE
    assert failed.partition_count("events") == 1
    gone = updated(cluster, answer(1, 5, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert gone.partition_count("events") == 0
    assert gone.leader(EVENTS) is None
    assert updated(cluster, MetadataResponse(brokers=[], topics=[])).topics == {}


def test_there_is_no_leader_where_its_broker_is_not_known() -> None:
    assert updated(Cluster(), answer(7, 5)).leader(EVENTS) is None
    assert updated(Cluster(), answer(-1, 5)).leader(EVENTS) is None


def test_a_leader_that_a_broker_tells_counts_only_if_it_is_newer_and_known() -> None:
    cluster = updated(Cluster(), answer(1, 5))
    assert cluster.with_leader(EVENTS, 2, 5) is cluster
    assert cluster.with_leader(EVENTS, 9, 6) is cluster
    assert cluster.with_leader(TopicPartition("other", 0), 2, 6) is cluster
    changed = cluster.with_leader(EVENTS, 2, 6).leader(EVENTS)
    assert changed is not None
    assert (changed[0].node_id, changed[1]) == (2, 6)
