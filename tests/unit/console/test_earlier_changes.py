"""What a console knows of the time before it looked: what a broker remembers."""

from __future__ import annotations

from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.console.history import (
    CHANGES_PER_PARTITION_MAX,
    EarlierChange,
    EarlierChanges,
    History,
    PartitionState,
)
from barnabas.testing import KafkaCluster
from barnabas.wire.topics import TopicPartition
from tests.support.running_console import RunningConsole
from tests.support.waiting import wait_until

ID = b"f" * 16
P = TopicPartition("flights", 0)
BEGAN_MS = 1_000


def state(since_ms: int, epoch: int, leader: int = 1, isr: tuple[int, ...] = (1, 2)) -> PartitionState:
    return PartitionState(since_ms, leader, epoch, isr, (1, 2))


def looked(history: History, now_ms: int, epoch: int, leader: int = 1, isr: tuple[int, ...] = (1, 2)) -> None:
    topic = TopicInfo("flights", ID, is_internal=False, partitions={0: PartitionInfo(leader, epoch, (1, 2), isr, ())})
    history.see(Cluster("c", 1, {1: BrokerNode(1, "h", 1)}, {"flights": topic}), now_ms)


def told(
    history: History, *states: PartitionState, before: PartitionState | None = None, topic_id: bytes = ID
) -> list[tuple[int, int, tuple[int, ...]]]:
    """What is known of the partition when a broker has told these states, the first of them after `before`."""
    befores = [before, *states[:-1]] if states else []
    changes = tuple(EarlierChange(P, topic_id, earlier, later) for earlier, later in zip(befores, states, strict=True))
    for _ in history.put_before(EarlierChanges(3, 100, changes)):
        pass
    return [(each.since_ms, each.leader_epoch, each.isr) for each in history.of(P)]


def test_a_partition_without_a_change_was_so_since_the_broker_remembers() -> None:
    history = History()
    looked(history, BEGAN_MS, 4)
    assert told(history) == [(100, 4, (1, 2))]
    assert history.changed("flights") == []
    looked(history, 2_000, 5)
    assert [each.since_ms for each in history.of(P)] == [100, 2_000]


def test_what_was_before_is_put_before_what_was_seen() -> None:
    history = History()
    looked(history, BEGAN_MS, 2, leader=2, isr=(2, 1))
    looked(history, 2_000, 2, leader=2, isr=(2,))
    assert told(
        history, state(300, 2, 2, (2,)), state(500, 2, 2, (2, 1)), before=state(100, 1)
    ) == [(100, 1, (1, 2)), (300, 2, (2,)), (500, 2, (2, 1)), (2_000, 2, (2,))]  # fmt: skip
    assert history.changed("flights") == [P]
    assert history.shrinks_since(200) == 2


def test_what_came_after_the_first_look_was_seen_by_the_console_itself() -> None:
    history = History()
    looked(history, BEGAN_MS, 1)
    looked(history, 3_000, 2)
    assert told(history, state(2_500, 2), before=state(100, 1)) == [(100, 1, (1, 2)), (3_000, 2, (1, 2))]


def test_a_look_that_was_a_little_late_is_no_change() -> None:
    """The console saw epoch 1 when the broker had just been told of epoch 2."""
    history = History()
    looked(history, BEGAN_MS, 1)
    looked(history, 3_000, 2)
    assert told(history, state(400, 1), state(999, 2), before=state(100, 0)) == [
        (100, 0, (1, 2)), (400, 1, (1, 2)), (3_000, 2, (1, 2)),
    ]  # fmt: skip


def test_a_broker_that_was_told_less_than_the_console_saw_is_no_contradiction() -> None:
    history = History()
    looked(history, BEGAN_MS, 7)
    assert told(history, state(300, 2), before=state(100, 1)) == [
        (100, 1, (1, 2)), (300, 2, (1, 2)), (BEGAN_MS, 7, (1, 2)),
    ]  # fmt: skip


def test_a_deleted_topic_of_the_same_name_is_another_one() -> None:
    history = History()
    looked(history, BEGAN_MS, 0)
    assert told(history, state(300, 8), topic_id=b"o" * 16) == [(100, 0, (1, 2))]


def test_a_topic_that_was_made_before_the_console_looked_has_no_earlier_history() -> None:
    history = History()
    looked(history, BEGAN_MS, 1)
    assert told(history, state(300, 0), state(600, 1)) == [(300, 0, (1, 2)), (600, 1, (1, 2))]


def test_a_partition_that_has_flapped_keeps_its_last_changes() -> None:
    history = History()
    looked(history, BEGAN_MS, 900)
    found = told(history, *(state(101 + each, each) for each in range(1, 900)))
    assert len(found) == CHANGES_PER_PARTITION_MAX
    assert found[-1][:2] == (BEGAN_MS, 900)


def test_a_console_that_comes_later_shows_who_led_before() -> None:
    with KafkaCluster(brokers=3) as cluster:
        topic = cluster.create_topic("flights", partitions=1, replication_factor=3)
        leader = cluster.leader(topic)
        cluster.stop_broker(leader)
        other = cluster.wait_for_leader(topic, other_than=leader)
        cluster.start_broker(leader)
        wait_until(lambda: len(cluster.in_sync_replicas(topic)) == 3, "all are in sync", 60)
        with RunningConsole(cluster.bootstrap_servers) as console:
            said = console.wait_for(f"/topics/{topic}/0", f"{leader} → {other}", "remembers them").words
            assert "those before" in said
            console.wait_for(f"/topics/{topic}", f"{leader} → {other}")
            assert console.wait_for("/", "Earlier changes").status == 200
