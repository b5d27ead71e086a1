"""What a broker remembers of the changes that controllers tell it of."""

from __future__ import annotations

import logging

from barnabas.cluster.leadership_changes import LeadershipChanges
from barnabas.cluster.metadata_cache import FULL, MetadataCache
from barnabas.kernel.ids import Uuid
from barnabas.wire.messages import UpdateMetadataRequest
from barnabas.wire.sentinels import LEADER_DURING_DELETE
from barnabas.wire.topics import TopicPartition

ID, OTHER_ID = Uuid(b"f" * 16), Uuid(b"o" * 16)
State = UpdateMetadataRequest.UpdateMetadataPartitionState


class Clock:
    """A second passes with each request."""

    def __init__(self) -> None:
        self.now_ms = 0

    def time_ms(self) -> int:
        return self.now_ms


class Told:
    """A broker that is told of one topic."""

    def __init__(self, kept: int = 100) -> None:
        self.clock = Clock()
        self.changes = LeadershipChanges(self.clock, kept)  # type: ignore[arg-type]  # of a clock it wants the time
        self.cache = MetadataCache(1, logging.getLogger("barnabas.tests.leadership"))
        self.cache.add_listener(self.changes.see)

    def of(self, *states: State, topic_id: Uuid = ID, kind: int = 0) -> None:
        self.clock.now_ms += 1_000
        topic = UpdateMetadataRequest.UpdateMetadataTopicState(
            topic_name="flights", topic_id=topic_id, partition_states=list(states)
        )
        self.cache.apply(UpdateMetadataRequest(type=kind, topic_states=[topic] if states else []))

    def remembered(self, number: int = -1, limit: int = 100) -> list[tuple[int, int, int, tuple[int, int] | None, int]]:
        """Number, time, partition, leader and epoch before, epoch after."""
        return [
            (
                each,
                change.time_ms,
                change.partition.partition,
                None if change.before is None else (change.before.leader, change.before.leader_epoch),
                change.after.leader_epoch,
            )
            for each, change in self.changes.after(number, limit)
        ]


def state(epoch: int, leader: int = 1, partition: int = 0, isr: tuple[int, ...] = (1, 2), offline: int = 0) -> State:
    return State(
        partition_index=partition,
        leader=leader,
        leader_epoch=epoch,
        isr=list(isr),
        replicas=[1, 2],
        offline_replicas=[offline] if offline else [],
        zk_version=epoch,
    )


def test_the_first_metadata_are_where_the_history_begins() -> None:
    told = Told()
    told.of()
    assert (told.changes.since_ms, told.changes.last) == (None, -1)
    told.of(state(4), state(5, partition=1))
    assert (told.changes.since_ms, told.changes.last, told.remembered()) == (2_000, -1, [])
    told.of(state(5, leader=2), state(5, partition=1))
    told.of(state(5, leader=2, isr=(2,)))
    assert told.remembered() == [(0, 3_000, 0, (1, 4), 5), (1, 4_000, 0, (2, 5), 5)]
    (_, last) = told.changes.after(0, 100)[0]
    assert (last.partition, last.topic_id, last.after.isr) == (TopicPartition("flights", 0), ID, (2,))


def test_what_a_history_does_not_show_is_no_change() -> None:
    told = Told()
    told.of(state(1))
    told.of(state(1, offline=2))
    told.of(state(1))
    assert told.remembered() == []


def test_a_partition_that_is_new_has_nothing_before_and_neither_has_that_of_another_topic_of_the_name() -> None:
    told = Told()
    told.of(state(1))
    told.of(state(0, partition=1))
    told.of(state(1, leader=LEADER_DURING_DELETE))
    told.of(state(0), topic_id=OTHER_ID, kind=FULL)
    told.of(state(1), topic_id=OTHER_ID)
    assert told.remembered() == [(0, 2_000, 1, None, 0), (1, 4_000, 0, None, 0), (2, 5_000, 0, (1, 0), 1)]


def test_partitions_of_several_topics_in_one_request_are_told_apart_and_so_is_a_namesake_that_was_not_seen_to_go() -> (
    None
):
    told = Told()

    def of(*topics: tuple[str, Uuid, State]) -> None:
        told.clock.now_ms += 1_000
        named = [
            UpdateMetadataRequest.UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=[one])
            for name, topic_id, one in topics
        ]
        told.cache.apply(UpdateMetadataRequest(topic_states=named))

    a, b, c = ID, OTHER_ID, Uuid(b"c" * 16)
    of(("a", a, state(1)), ("b", b, state(5)))
    of(("a", a, state(2)), ("b", b, state(6)), ("c", c, state(0)))
    of(("a", c, state(0)), ("b", b, state(7)))
    assert [
        (each.partition.topic, each.topic_id, each.before and each.before.leader_epoch, each.after.leader_epoch)
        for _, each in told.changes.after(-1, 100)
    ] == [("a", a, 1, 2), ("b", b, 5, 6), ("c", c, None, 0), ("a", c, None, 0), ("b", b, 6, 7)]


def test_only_the_last_are_kept_and_none_is_missing_since_the_last_that_went() -> None:
    told = Told(kept=3)
    told.of(state(0))
    for epoch in range(1, 6):
        told.of(state(epoch))
    assert [each[0] for each in told.remembered()] == [2, 3, 4]
    assert told.changes.since_ms == 3_000
    assert told.remembered()[0] == (2, 4_000, 0, (1, 2), 3)


def test_a_request_of_more_partitions_than_are_kept_begins_the_history_anew() -> None:
    told = Told(kept=3)
    told.of(*(state(0, partition=each) for each in range(9)))
    told.of(state(1))
    told.of(*(state(2, partition=each) for each in range(9)))
    assert [each[2] for each in told.remembered()] == [6, 7, 8]
    assert told.changes.since_ms == 3_000


def test_what_was_before_such_a_request_is_gone_also_where_little_of_it_is_new() -> None:
    """A partition that is passed over may have changed: who is told of the time before would not hear of that."""
    told = Told(kept=3)
    told.of(*(state(0, partition=number) for number in range(4)))
    told.of(state(1, leader=2, partition=3))
    others = [state(0, partition=number, offline=1) for number in (1, 2)]
    told.of(state(1, leader=2), *others, state(1, leader=2, partition=3, offline=1))
    assert (told.remembered(), told.changes.since_ms, told.changes.last) == ([], 3_000, 0)
    told.of(state(2))
    assert told.remembered() == [(1, 4_000, 0, (2, 1), 2)]


def test_changes_are_told_page_by_page() -> None:
    told = Told(kept=4)
    for epoch in range(7):
        told.of(state(epoch))
    assert [each[0] for each in told.remembered(limit=2)] == [2, 3]
    assert [each[0] for each in told.remembered(3, 2)] == [4, 5]
    assert told.remembered(5) == []
    assert told.remembered(2**62) == []
    assert [each[0] for each in told.remembered(-(2**62), 1)] == [2]
    assert told.remembered(limit=-1) == []
