"""What a console knows of the time before it looked: what a broker remembers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.console import poller
from barnabas.console.earlier_changes import earlier_changes
from barnabas.console.history import (
    CHANGES_PER_PARTITION_MAX,
    PARTITIONS_PER_STEP,
    EarlierChange,
    EarlierChanges,
    History,
    PartitionState,
)
from barnabas.console.words import moment
from barnabas.link.errors import UnsupportedVersionError
from barnabas.testing import KafkaCluster
from barnabas.wire.messages import DescribeLeadershipChangesResponse as Answer
from barnabas.wire.primitives import ProtocolError
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


class Clock:
    def time_ms(self) -> int:
        return 100_000


class Views:
    """Brokers that remember: by their ids what each answers in turn, the last of it again and again."""

    def __init__(self, answers: dict[int, list[Answer | Exception]]) -> None:
        self._answers = answers

    async def leadership_changes(self, node: BrokerNode, after: int, changes_max: int) -> Answer:
        answers = self._answers[node.node_id]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def remembered(since_ms: int, last: int, *numbers: int, now_ms: int = 100_000) -> Answer:
    changes = [Answer.Change(number=each, time_ms=since_ms + each, topic="flights") for each in numbers]
    return Answer(now_ms=now_ms, since_ms=since_ms, last=last, changes=changes)


def asked(answers: dict[int, list[Answer | Exception]]) -> EarlierChanges | None:
    nodes = [BrokerNode(each, "h", 1) for each in answers]
    return asyncio.run(earlier_changes(Views(answers), nodes, Clock()))  # type: ignore[arg-type]  # as far as is used


def test_the_broker_is_asked_that_goes_back_furthest_whatever_its_clock_says() -> None:
    found = asked(
        {
            1: [remembered(50_000, -1)],
            2: [remembered(1_000_000, 0, now_ms=1_090_000), remembered(1_000_000, 0, 0, now_ms=1_090_000)],
            3: [ProtocolError("garbage")],
            4: [UnsupportedVersionError("Apache Kafka's")],
            5: [remembered(-1, -1)],
        }
    )
    assert found is not None
    assert (found.node_id, found.since_ms) == (2, 10_000)
    assert [each.after.since_ms for each in found.changes] == [10_000]
    assert asked({3: [ProtocolError("garbage")], 5: [remembered(-1, -1)]}) is None


def test_changes_of_a_broker_that_is_started_anew_meanwhile_are_not_put_together() -> None:
    answers: list[Answer | Exception] = [remembered(100, 700), remembered(100, 700, *range(500)), remembered(90_000, 3)]
    with pytest.raises(ConnectionError, match="broker 1 was started anew"):
        asked({1: answers})


def test_changes_behind_which_others_were_let_go_of_are_not_told() -> None:
    answers: list[Answer | Exception] = [
        remembered(100, 900), remembered(100, 900, *range(500)), remembered(40_000, 9_999, *range(600, 1_000)),
        remembered(40_000, 1_000, 1_000),
    ]  # fmt: skip
    found = asked({1: answers})
    assert found is not None
    assert found.since_ms == 40_000
    assert [each.after.since_ms - 40_000 for each in found.changes] == list(range(600, 1_001))


def test_what_was_not_put_in_place_to_the_end_is_not_said_to_be_known() -> None:
    history = History()
    names = [f"t{number}" for number in range(PARTITIONS_PER_STEP + 1)]
    topics = {
        name: TopicInfo(name, ID, is_internal=False, partitions={0: PartitionInfo(1, 1, (1, 2), (1, 2), ())})
        for name in names
    }
    history.see(Cluster("c", 1, {1: BrokerNode(1, "h", 1)}, topics), BEGAN_MS)
    changes = [EarlierChange(TopicPartition(name, 0), ID, state(100, 0), state(500, 1)) for name in names]
    earlier = EarlierChanges(3, 100, tuple(changes))
    next(iter(history.put_before(earlier)))
    found = [history.earlier]
    for _ in history.put_before(earlier):
        pass
    found.append(history.earlier)
    assert [each is None for each in found] == [True, False]
    assert {len(history.of(TopicPartition(name, 0))) for name in names} == {2}


def test_a_broker_that_began_after_the_console_is_not_named_for_the_time_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History()
    looked(history, BEGAN_MS, 1)
    client = SimpleNamespace(host=SimpleNamespace(clock=Clock()))
    asking: Any = SimpleNamespace(history=history, client=client, _views=None, _nodes=list)

    def ask(since_ms: int) -> EarlierChanges | None:
        async def answer(*_: object) -> EarlierChanges:
            return EarlierChanges(3, since_ms, ())

        monkeypatch.setattr(poller, "earlier_changes", answer)
        return asyncio.run(poller.Poller._ask_earlier(asking))

    assert ask(BEGAN_MS) is None
    assert ask(BEGAN_MS - 1) == EarlierChanges(3, BEGAN_MS - 1, ())
    assert ask(BEGAN_MS - 2) == EarlierChanges(3, BEGAN_MS - 1, ()), "one has told"


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert moment(10**18, 0) == str(10**18)
    assert moment(0, 0) == "00:00:00"
    assert moment(0, 10**18) == "1970-01-01 00:00:00"


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
