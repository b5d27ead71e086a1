"""What the readers of a simulated cluster were given, have processed, and have committed: counted exactly, and judged
at once.

A *careful* group processes before it commits: whatever is committed was processed by somebody, so that every record is
processed at least once. A *hasty* group commits before it processes: no record is processed twice. Logs that are read
lose nothing and skip no offset, so an offset is a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from barnabas.client.records import ConsumerRecord, OffsetAndMetadata, TopicPartition

FINDINGS_MAX: Final = 50


class Frontier:
    """A set of offsets that begins at 0: `end` is the first that is missing."""

    __slots__ = ("_beyond", "end")

    def __init__(self) -> None:
        self.end = 0
        self._beyond: set[int] = set()

    def add(self, offset: int) -> None:
        """Adds one."""
        if offset >= self.end:
            self._beyond.add(offset)
            while self.end in self._beyond:
                self._beyond.discard(self.end)
                self.end += 1


class GroupLedger:
    """One group, over all members that it ever had."""

    def __init__(self, name: str, *, is_careful: bool, now: Callable[[], float]) -> None:
        self.name = name
        self.is_careful = is_careful
        self.counts: Counter[str] = Counter()
        """How often each thing has happened that a run is to have seen."""
        self.findings: list[str] = []
        self._now = now
        self._given: dict[TopicPartition, Frontier] = {}
        self._processed: dict[TopicPartition, Frontier] = {}
        self._times: Counter[tuple[TopicPartition, int]] = Counter()

    def find(self, what: str) -> None:
        """Something went wrong."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(f"{self._now():.3f} s, group {self.name}: {what}")

    def may_be_committed(self, partition: TopicPartition) -> int:
        """The highest offset that may be: behind what was processed, or, by who is hasty, behind what was given."""
        frontiers = self._processed if self.is_careful else self._given
        frontier = frontiers.get(partition)
        return 0 if frontier is None else frontier.end

    def given(self, partition: TopicPartition, offset: int) -> None:
        """A member was given a record."""
        self._given.setdefault(partition, Frontier()).add(offset)

    def process(self, partition: TopicPartition, offset: int) -> None:
        """A member has processed a record."""
        self._processed.setdefault(partition, Frontier()).add(offset)
        self._times[partition, offset] += 1
        self.counts["processed"] += 1
        if self._times[partition, offset] > 1:
            self.counts["processed again"] += 1
            if not self.is_careful:
                self.find(f"offset {offset} of {partition} is processed twice")

    def finish(self, ends: Mapping[TopicPartition, int]) -> None:
        """Everything below these ends was read by now: whether all was processed, or given."""
        for partition, end in ends.items():
            reached = self.may_be_committed(partition)
            if reached < end:
                what = "processed by" if self.is_careful else "given to"
                self.find(f"offset {reached} of {partition}, which ends at {end}, was never {what} anybody")
        if not self.is_careful:
            whole = sum(ends.values())
            self.counts["given and never processed"] += whole - len(self._times)


class MemberLedger:
    """One life of one member."""

    def __init__(self, group: GroupLedger, name: str) -> None:
        self.group = group
        self.is_polling = False
        self.expected: dict[TopicPartition, int] = {}
        """The offset that has to come next of each partition; those of which nothing has come are left out."""
        self.paused: set[TopicPartition] = set()
        self._name = name
        self._by_hand: dict[TopicPartition, int] = {}

    def returned(self, records: Iterable[ConsumerRecord]) -> None:
        """A poll has returned these."""
        for record in records:
            partition, offset = record.partition, record.offset
            if partition in self.paused:
                self._find(f"was given offset {offset} of {partition}, which is paused")
            expected = self.expected.get(partition)
            if expected is not None and offset != expected:
                self._find(f"was given offset {offset} of {partition} where {expected} comes next")
            elif expected is None and offset > self.group.may_be_committed(partition):
                self._find(f"begins at offset {offset} of {partition}, beyond what anybody has come to")
            self.expected[partition] = offset + 1
            self.group.given(partition, offset)

    def sought(self, partition: TopicPartition, offset: int) -> None:
        """The user has set a position, not beyond what was processed."""
        self.expected[partition] = offset
        self._by_hand.pop(partition, None)
        self.group.counts["sought"] += 1

    def commits_by_hand(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The user commits: from now on nothing less may be sent, unless the user goes back."""
        self._by_hand |= {partition: place.offset for partition, place in offsets.items()}
        self.group.counts["committed by hand"] += 1

    def sends_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A commit leaves the consumer, by hand or not, for the first time or again."""
        self.group.counts["commits sent"] += 1
        for partition, offset in offsets.items():
            limit = self.group.may_be_committed(partition)
            if offset > limit:
                what = "processed" if self.group.is_careful else "given to anybody"
                self._find(f"commits offset {offset} of {partition}, and {limit} was not {what}")
            if offset < self._by_hand.get(partition, 0):
                self._find(
                    f"commits offset {offset} of {partition}, after {self._by_hand[partition]} was committed by hand"
                )

    # As a listener (`RebalanceListener`).

    async def on_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """See RebalanceListener."""
        self._told("assigned", partitions)

    async def on_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """See RebalanceListener."""
        self._told("revoked", partitions)

    async def on_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        """See RebalanceListener."""
        self._told("lost", partitions)

    def _told(self, what: str, partitions: tuple[TopicPartition, ...]) -> None:
        self.group.counts[what] += 1
        if not self.is_polling:
            self._find(f"hears outside of poll that {', '.join(map(str, partitions))} are {what}")
        for partition in partitions:
            self.expected.pop(partition, None)
            self.paused.discard(partition)
            self._by_hand.pop(partition, None)

    def _find(self, what: str) -> None:
        self.group.find(f"{self._name} {what}")
