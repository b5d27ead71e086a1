from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from barnabas.follower.fetcher_partitions import (
    FETCHING,
    FetchedPartition,
    FetcherPartitions,
    FetchEvent,
    FetchPhase,
)
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.topics import TopicPartition
from tests.unit.leader.memory_log import TOPIC_ID, MemoryLog


@dataclass
class Hosted:
    """As much of a partition as is fetched."""

    topic_partition: TopicPartition
    log: MemoryLog | None = field(default=None)


def fetched(number: int = 0, *, epoch: int = 0, phase: FetchPhase = FetchPhase.FETCHING) -> FetchedPartition:
    name = TopicPartition("flights", number)
    hosted = Hosted(name, MemoryLog(name))
    return FetchedPartition(hosted, TOPIC_ID, epoch, 0, -1, phase)  # type: ignore[arg-type]


def names(partitions: FetcherPartitions) -> dict[int, bool]:
    """What has changed: number, and whether it is to be fetched."""
    return {name.partition: position is not None for name, position in partitions.changed()}


def test_every_phase_and_event() -> None:
    expected = {
        (FetchPhase.FETCHING, FetchEvent.DIVERGED): FetchPhase.TRUNCATING,
        (FetchPhase.FETCHING, FetchEvent.OUT_OF_RANGE): FetchPhase.RESETTING,
        (FetchPhase.FETCHING, FetchEvent.MOVED_TO_REMOTE): FetchPhase.BUILDING,
        (FetchPhase.BUILDING, FetchEvent.SETTLED): FetchPhase.FETCHING,
        (FetchPhase.TRUNCATING, FetchEvent.SETTLED): FetchPhase.FETCHING,
        (FetchPhase.RESETTING, FetchEvent.SETTLED): FetchPhase.FETCHING,
    }
    for pair in itertools.product(FetchPhase, FetchEvent):
        assert FETCHING.transitions.get(pair) is expected.get(pair)


def test_gives_what_changed_once() -> None:
    partitions = FetcherPartitions()
    one, other = fetched(0), fetched(1)
    partitions.add(one)
    partitions.add(other)
    assert names(partitions) == {0: True, 1: True}
    assert names(partitions) == {}
    partitions.advanced(other, 5, 0)
    assert names(partitions) == {1: True}
    partitions.remove(one.topic_partition)
    assert names(partitions) == {0: False}


def test_what_is_to_be_settled_is_not_fetched() -> None:
    partitions = FetcherPartitions()
    one, other = fetched(0), fetched(1)
    partitions.add(one)
    partitions.add(other)
    list(partitions.everything())
    partitions.diverged(one, EpochEnd(0, 0))
    partitions.out_of_range(other)
    assert partitions.unsettled() == [one, other]
    assert names(partitions) == {0: False, 1: False}
    partitions.settled(one, 3, 0)
    assert partitions.unsettled() == [other]
    assert names(partitions) == {0: True}
    with pytest.raises(IllegalTransitionError):
        partitions.settled(one, 3, 0)


def test_delays_end_in_time() -> None:
    partitions = FetcherPartitions()
    one, other = fetched(0), fetched(1)
    partitions.add(one)
    partitions.add(other)
    list(partitions.everything())
    partitions.delay(one, 10.0)
    partitions.delay(one, 99.0)  # is delayed already
    partitions.delay(other, 20.0)
    assert names(partitions) == {0: False, 1: False}
    assert partitions.next_delay_end == 10.0
    partitions.end_delays(9.9)
    assert names(partitions) == {}
    partitions.end_delays(10.0)
    assert names(partitions) == {0: True}
    partitions.end_delays(30.0)
    assert partitions.next_delay_end is None


def test_a_delayed_partition_is_not_settled_yet() -> None:
    partitions = FetcherPartitions()
    one = fetched(0, phase=FetchPhase.TRUNCATING)
    partitions.add(one)
    assert (partitions.has_unsettled, partitions.unsettled()) == (True, [one])
    partitions.delay(one, 10.0)
    assert (partitions.has_unsettled, partitions.unsettled()) == (False, [])
    partitions.end_delays(10.0)
    assert (partitions.has_unsettled, partitions.unsettled()) == (True, [one])


def test_another_fetcher_takes_over_where_this_one_is_and_does_not_wait() -> None:
    former, latter = FetcherPartitions(), FetcherPartitions()
    waits, parts = fetched(0, epoch=3), fetched(1)
    former.add(waits)
    former.add(parts)
    former.advanced(waits, 7, 2)
    former.delay(waits, 5.0)
    former.diverged(parts, EpochEnd(1, 4))
    for each in (waits, parts):
        former.remove(each.topic_partition)
        latter.add(each.taken_over())
    assert not former.holds(waits)
    (taken_over,) = latter.unsettled()
    assert taken_over.leader_end == EpochEnd(1, 4)
    assert names(latter) == {0: True, 1: False}
    position = next(iter(latter)).position()
    assert position is not None
    assert (position.fetch_offset, position.last_fetched_epoch, position.leader_epoch) == (7, 2, 3)


def test_a_new_epoch_takes_the_place_of_the_old_one() -> None:
    partitions = FetcherPartitions()
    old, new = fetched(0, phase=FetchPhase.TRUNCATING), fetched(0, epoch=1)
    partitions.add(old)
    partitions.delay(old, 10.0)
    partitions.add(new)
    assert partitions.holds(new)
    assert not partitions.holds(old)
    assert not partitions.has_unsettled
    list(partitions.changed())
    partitions.end_delays(10.0)
    assert names(partitions) == {}


def test_what_is_not_written_is_withheld_and_looked_at_again_after_a_delay() -> None:
    partitions = FetcherPartitions()
    one, other = fetched(0), fetched(1)
    partitions.add(one)
    partitions.add(other)
    assert one.partition.log is not None
    one.partition.log.has_unwritten = True
    assert names(partitions) == {0: False, 1: True}
    assert partitions.take_withheld() == [one]
    assert partitions.take_withheld() == []
    partitions.delay(one, 5.0)
    assert names(partitions) == {0: False}
    assert partitions.take_withheld() == []
    partitions.end_delays(5.0)
    one.partition.log.has_unwritten = False
    assert names(partitions) == {0: True}
    assert partitions.take_withheld() == []
