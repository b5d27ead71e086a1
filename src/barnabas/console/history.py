"""What the console has seen change since it was started: leaders, ISRs, brokers, the controller, and figures over time;
and what a broker remembers of leaders and ISRs from before.

All of it is bounded: the last changes of each partition, the last changes of the cluster, an hour or so of samples.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster, PartitionInfo

CHANGES_PER_PARTITION_MAX: Final = 100
CHANGES_OF_CLUSTER_MAX: Final = 500
PARTITIONS_PER_STEP: Final = 2_000
SAMPLES_MAX: Final = 720
SERIES_MAX: Final = 500
"""Groups, and again topics, of which samples are kept; of others the last one."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """How a partition was from some time on."""

    since_ms: int
    leader_id: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]

    def is_as(self, info: PartitionInfo | PartitionState) -> bool:
        """Whether it still is so."""
        return (
            self.leader_id == info.leader_id
            and self.isr == info.isr
            and self.leader_epoch == info.leader_epoch
            and self.replicas == info.replicas
        )


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to the cluster, in words."""

    time_ms: int
    what: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class EarlierChange:
    """A change of one partition; times are those of the console's clock."""

    partition: TopicPartition
    topic_id: bytes
    before: PartitionState | None
    """None where the partition was new to the broker; else from the time on from which the broker knows all changes."""
    after: PartitionState


@dataclass(frozen=True, slots=True)
class EarlierChanges:
    """What one broker remembers, the oldest first: all changes since `since_ms`."""

    node_id: int
    since_ms: int
    changes: tuple[EarlierChange, ...]


class History:
    """Changes of partitions, brokers and the controller, as one image after another shows them."""

    def __init__(self) -> None:
        self.changes: deque[Change] = deque(maxlen=CHANGES_OF_CLUSTER_MAX)
        self.began_ms: int | None = None
        """When the console began to look."""
        self.earlier: EarlierChanges | None = None
        """What a broker has told of the time before, without the changes."""
        self._partitions: dict[TopicPartition, list[PartitionState]] = {}
        self._changed: dict[str, set[int]] = {}
        """Of each topic the partitions with more than one state: most have one for ever."""
        self._cluster: Cluster | None = None

    def see(self, cluster: Cluster, now_ms: int) -> None:
        """Takes the next image."""
        for _ in self.steps(cluster, now_ms):
            pass

    def steps(self, cluster: Cluster, now_ms: int) -> Iterator[None]:
        """Takes the next image in steps, between which other things may be done; one image at a time."""
        if self.began_ms is None:
            self.began_ms = now_ms
        before, self._cluster = self._cluster, cluster
        if cluster is before:
            return
        if before is not None:
            for found in _changes(before, cluster, now_ms):
                if found is None:
                    yield
                else:
                    self.changes.append(found)
        seen = 0
        for name, topic in cluster.topics.items():
            for number, info in topic.partitions.items():
                seen += 1
                if not seen % PARTITIONS_PER_STEP:
                    yield
                partition = TopicPartition(name, number)
                states = self._partitions.get(partition)
                if states is not None and states[-1].is_as(info):
                    continue
                state = PartitionState(now_ms, info.leader_id, info.leader_epoch, info.isr, info.replicas)
                if states is None:
                    self._partitions[partition] = [state]  # most never change, and an empty deque takes 0.7 KiB
                    continue
                states.append(state)
                del states[:-CHANGES_PER_PARTITION_MAX]
                self._changed.setdefault(name, set()).add(number)
        if len(self._partitions) == seen:
            return
        for partition in [each for each in self._partitions if cluster.partition(each) is None]:
            del self._partitions[partition]
            self._changed.get(partition.topic, set()).discard(partition.partition)
        self._changed = {name: numbers for name, numbers in self._changed.items() if numbers}

    def put_before(self, earlier: EarlierChanges) -> Iterator[None]:
        """Puts what a broker remembers before what was seen, in steps; once, or again where it was given up between."""
        told: dict[TopicPartition, list[EarlierChange]] = {}
        for change in earlier.changes:
            told.setdefault(change.partition, []).append(change)
        for number, (partition, changes) in enumerate(told.items(), 1):
            if not number % PARTITIONS_PER_STEP:
                yield
            topic = None if self._cluster is None else self._cluster.topics.get(partition.topic)
            states = self._partitions.get(partition)
            if topic is None or states is None:
                continue
            # A topic of that name may have been deleted since.
            states[:1] = _joined([each for each in changes if each.topic_id == topic.topic_id], states[0])
            del states[:-CHANGES_PER_PARTITION_MAX]
            if len(states) > 1:
                self._changed.setdefault(partition.topic, set()).add(partition.partition)
        self.earlier = replace(earlier, changes=())

    def shrinks_since(self, since_ms: int) -> int:
        """How many ISRs were seen to shrink after that time, which may be more than one of a partition."""
        return sum(
            len(after.isr) < len(before.isr)
            for name, numbers in self._changed.items()
            for states in (self._partitions[TopicPartition(name, number)] for number in numbers)
            if states[-1].since_ms > since_ms
            for before, after in itertools.pairwise(states)
            if after.since_ms > since_ms
        )

    def changed(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic that were otherwise once."""
        return [TopicPartition(topic, number) for number in sorted(self._changed.get(topic, ()))]

    def of(self, partition: TopicPartition) -> list[PartitionState]:
        """How a partition was, the oldest first."""
        states = list(self._partitions.get(partition, ()))
        if states and self.earlier is not None and states[0].since_ms == self.began_ms:
            # The broker remembers no change of it.
            states[0] = replace(states[0], since_ms=min(self.earlier.since_ms, states[0].since_ms))
        return states


class Samples:
    """Figures over time, by name."""

    def __init__(self) -> None:
        self._series: dict[str, deque[tuple[int, float]]] = {}
        self._last: dict[str, tuple[int, float]] = {}
        """Of names that have no place among those."""

    def add(self, name: str, time_ms: int, value: float) -> None:
        """One more, of as many names as have a place; in the place of the last one for others."""
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= SERIES_MAX:
                self._last[name] = time_ms, value
                return
            series = self._series[name] = deque(maxlen=SAMPLES_MAX)
            self._last.pop(name, None)
        series.append((time_ms, value))

    def keep(self, names: set[str]) -> None:
        """Forgets all others."""
        for kept in (self._series, self._last):
            for name in kept.keys() - names:
                del kept[name]

    def of(self, name: str) -> list[tuple[int, float]]:
        """The time in ms and the figure, the oldest first."""
        last = self._last.get(name)
        return list(self._series.get(name, ())) if last is None else [last]

    def has_place(self, name: str) -> bool:
        """Whether more than the last one is kept, or would be."""
        return name not in self._last


# Inside.


def _joined(changes: list[EarlierChange], first: PartitionState) -> list[PartitionState]:
    """How a partition was until the console looked first, and what it saw then, in the place of which comes what a
    broker was told of the same: the time of that is exact. A look may be a little late.
    """
    if not changes:
        return [first]
    states = [] if changes[0].before is None else [changes[0].before]
    states += [each.after for each in changes]
    states = [each for each in states if each.since_ms <= first.since_ms]
    same = [place for place, state in enumerate(states) if first.is_as(state)]
    if same:
        return states[: same[-1] + 1]
    return [*(each for each in states if each.leader_epoch <= first.leader_epoch), first]


def _changes(before: Cluster, after: Cluster, now_ms: int) -> Iterator[Change | None]:
    """What has changed; None is a pause."""
    for node_id in sorted(before.brokers.keys() - after.brokers.keys()):
        yield Change(now_ms, f"broker {node_id} left the cluster", is_bad=True)
    for node_id in sorted(after.brokers.keys() - before.brokers.keys()):
        yield Change(now_ms, f"broker {node_id} joined the cluster")
    if before.controller_id != after.controller_id:
        if after.controller_id < 0:
            yield Change(now_ms, "the cluster has no controller", is_bad=True)
        else:
            yield Change(now_ms, f"broker {after.controller_id} became the controller")
    for name in sorted(before.topics.keys() - after.topics.keys()):
        yield Change(now_ms, f"topic {name} was deleted")
    for name in sorted(after.topics.keys() - before.topics.keys()):
        yield Change(now_ms, f"topic {name} was created")
    moved = lost = shrunk = grown = seen = 0
    for name, topic in after.topics.items():
        was = before.topics.get(name)
        for number, info in topic.partitions.items():
            seen += 1
            if not seen % PARTITIONS_PER_STEP:
                yield None
            old = None if was is None or was is topic else was.partitions.get(number)
            if old is None or old is info:
                continue
            lost += old.leader_id >= 0 > info.leader_id
            moved += info.leader_id >= 0 and old.leader_id != info.leader_id
            shrunk += len(info.isr) < len(old.isr)
            grown += len(info.isr) > len(old.isr)
    if lost:
        yield Change(now_ms, f"partitions that lost their leader: {lost:,}", is_bad=True)
    if moved:
        yield Change(now_ms, f"partitions that got another leader: {moved:,}")
    if shrunk:
        yield Change(now_ms, f"partitions with fewer replicas in sync: {shrunk:,}", is_bad=True)
    if grown:
        yield Change(now_ms, f"partitions with more replicas in sync: {grown:,}")
