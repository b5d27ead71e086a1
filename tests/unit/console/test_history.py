"""What is remembered of changes, and that it is bounded."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.console import history
from barnabas.console.history import CHANGES_PER_PARTITION_MAX, SAMPLES_MAX, History, Samples
from barnabas.wire.topics import TopicPartition

P = TopicPartition("flights", 0)


def _cluster(leader: int, epoch: int, isr: tuple[int, ...], alive: tuple[int, ...] = (1, 2)) -> Cluster:
    info = PartitionInfo(leader, epoch, (1, 2), isr, ())
    topic = TopicInfo("flights", bytes(16), is_internal=False, partitions={0: info})
    return Cluster("c", alive[0], {each: BrokerNode(each, "h", each) for each in alive}, {"flights": topic})


def test_changes_of_leader_and_isr_in_order() -> None:
    seen = History()
    seen.see(_cluster(1, 0, (1, 2)), 100)
    seen.see(_cluster(1, 0, (1, 2)), 200)
    seen.see(_cluster(2, 1, (2,), alive=(2,)), 300)
    seen.see(_cluster(2, 1, (2, 1)), 400)
    states = seen.of(P)
    assert [(each.since_ms, each.leader_id, each.isr) for each in states] == [
        (100, 1, (1, 2)), (300, 2, (2,)), (400, 2, (2, 1)),
    ]  # fmt: skip
    assert [(each.time_ms, each.what) for each in seen.changes] == [
        (300, "broker 1 left the cluster"),
        (300, "broker 2 became the controller"),
        (300, "partitions that got another leader: 1"),
        (300, "partitions with fewer replicas in sync: 1"),
        (400, "broker 1 joined the cluster"),
        (400, "broker 1 became the controller"),
        (400, "partitions with more replicas in sync: 1"),
    ]
    assert [each.is_bad for each in seen.changes] == [True, False, False, True, False, False, False]


def test_a_partition_without_leader_and_a_cluster_without_controller_are_bad() -> None:
    seen = History()
    seen.see(_cluster(1, 0, (1, 2)), 100)
    seen.see(replace(_cluster(-1, 1, (1,)), controller_id=-1), 200)
    assert [each.what for each in seen.changes if each.is_bad] == [
        "the cluster has no controller",
        "partitions that lost their leader: 1",
        "partitions with fewer replicas in sync: 1",
    ]


def test_a_deleted_topic_is_forgotten() -> None:
    seen = History()
    first = _cluster(1, 0, (1, 2))
    seen.see(first, 100)
    seen.see(replace(first, topics={}), 200)
    assert seen.of(P) == []
    assert [each.what for each in seen.changes] == ["topic flights was deleted"]


def test_a_partition_that_flaps_keeps_its_last_changes() -> None:
    seen = History()
    for epoch in range(CHANGES_PER_PARTITION_MAX * 3):
        seen.see(_cluster(1 + epoch % 2, epoch, (1, 2)), epoch)
    assert len(seen.of(P)) == CHANGES_PER_PARTITION_MAX
    assert seen.of(P)[-1].leader_epoch == CHANGES_PER_PARTITION_MAX * 3 - 1
    assert len(seen.changes) <= history.CHANGES_OF_CLUSTER_MAX


def test_partitions_that_do_not_change_take_little_memory() -> None:
    info, count = PartitionInfo(1, 0, (1, 2), (1, 2), ()), 10_000
    topic = TopicInfo("flights", bytes(16), is_internal=False, partitions=dict.fromkeys(range(count), info))
    seen = History()
    tracemalloc.start()
    try:
        seen.see(Cluster("c", 1, {}, {"flights": topic}), 100)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(seen.of(TopicPartition("flights", count - 1))) == 1
    assert taken < 500 * count


def test_samples_are_bounded_and_forgotten_with_their_names() -> None:
    samples = Samples()
    for time_ms in range(SAMPLES_MAX + 5):
        samples.add("a", time_ms, 1.0)
    assert len(samples.of("a")) == SAMPLES_MAX
    for number in range(history.SERIES_MAX * 2):
        samples.add(f"n{number}", 0, 0.0)
    without = f"n{history.SERIES_MAX * 2 - 1}"
    samples.add(without, 1, 3.0)
    assert (samples.of(without), samples.has_place(without)) == ([(1, 3.0)], False)
    assert samples.has_place("n0")
    samples.keep({"n0", without})
    assert samples.of("a") == []
    samples.add(without, 2, 4.0)
    samples.add(without, 3, 5.0)
    assert (samples.of(without), samples.has_place(without)) == ([(2, 4.0), (3, 5.0)], True)
    samples.keep(set())
    assert samples.of(without) == []
    samples.add("new", 1, 2.0)
    assert samples.of("new") == [(1, 2.0)]
