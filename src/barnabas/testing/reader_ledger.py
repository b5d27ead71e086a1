"""Counts exactly what the readers of a simulated cluster were given, processed and committed, and judges it at once.

A *careful* group processes before it commits: whatever is committed was processed by somebody, so that every record is
processed at least once. A *hasty* group commits before it processes: no record is processed twice. Logs skip no offset
and lose nothing, so an offset is a record, but for what the history of the run excuses, as it does for `checkers`:

- A reader may pass over what a user or retention deletes at the beginning of a log, and nothing else.
- A reader that lost the offsets of its group, because their topic was deleted after the commit, processes again.
- A partition that may have lost committed records, or a group that may have lost its offsets by that, is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.records import ConsumerRecord, OffsetAndMetadata
from barnabas.testing.cluster_history import Consumed, RecordId
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from barnabas.testing.cluster_history import Forgot, History, UncleanElection

FINDINGS_MAX: Final = 50
ANY_OFFSET: Final = 1 << 62


class Frontier:
    """A set of offsets that begins at 0: `end` is the first that is missing."""

    __slots__ = ("_beyond", "end")

    def __init__(self) -> None:
        self.end = 0
        self._beyond: set[int] = set()

    def add(self, offset: int) -> None:
        """Adds an offset."""
        if offset >= self.end:
            self._beyond.add(offset)
            self._close_up()

    def begin_at(self, offset: int) -> None:
        """Begins the set at this offset: what lies below was deleted."""
        if offset > self.end:
            self.end = offset
            self._beyond = {each for each in self._beyond if each >= offset}
            self._close_up()

    def _close_up(self) -> None:
        while self.end in self._beyond:
            self._beyond.discard(self.end)
            self.end += 1


class GroupLedger:
    """One group, over all members that it ever had."""

    def __init__(self, name: str, history: History, *, is_careful: bool, now: Callable[[], float]) -> None:
        self.name = name
        self.is_careful = is_careful
        self.counts: Counter[str] = Counter()
        """How often each thing has happened that a run is to have seen."""
        self.history = history
        self.now = now
        self._findings: list[tuple[TopicPartition, str]] = []
        self._given: dict[TopicPartition, Frontier] = {}
        self._given_once: set[tuple[TopicPartition, int]] = set()
        self._processed: dict[TopicPartition, Frontier] = {}
        self._committed_at: dict[tuple[TopicPartition, int], float] = {}
        """When each record was committed by the member that processed it, or was processed, if that came first."""

    @property
    def findings(self) -> list[str]:
        """What went wrong and has no excuse. Ask for it when the run has ended."""
        found = [what for partition, what in self._findings if not self._may_have_lost(partition)]
        self.counts["not judged"] = len(self._findings) - len(found)
        return found[:FINDINGS_MAX]

    def find(self, partition: TopicPartition, what: str) -> None:
        """Notes that something went wrong in a partition."""
        self._findings.append((partition, f"{self.now():.3f} s, group {self.name}: {what}"))

    def may_be_committed(self, partition: TopicPartition) -> int:
        """The highest offset that may be committed: behind what was processed, or in a hasty group what was given."""
        frontiers = self._processed if self.is_careful else self._given
        frontier = frontiers.get(partition)
        return 0 if frontier is None else frontier.end

    def begins_at(self, partition: TopicPartition, offset: int) -> bool:
        """Whether what lies below the offset may have been deleted; then nobody has to read it any more."""
        if offset > self.history.deletable.get(partition, 0):
            return False
        for frontiers in (self._given, self._processed):
            frontiers.setdefault(partition, Frontier()).begin_at(offset)
        return True

    def given(self, record: ConsumerRecord, member: int) -> None:
        """Notes that a member was given a record; `checkers` compare it with the log."""
        self._given.setdefault(record.partition, Frontier()).add(record.offset)
        self._given_once.add((record.partition, record.offset))
        at, identity = record.partition, RecordId.of_value(record.value)
        self.history.consumed.append(Consumed(self.now(), member, at, record.offset, identity))

    def process(self, partition: TopicPartition, offset: int, committed_at: float | None = None) -> None:
        """Notes that a member has processed a record, and when it had committed it, if that was before."""
        self._processed.setdefault(partition, Frontier()).add(offset)
        before = self._committed_at.get((partition, offset))
        self._committed_at[partition, offset] = self.now() if committed_at is None else committed_at
        self.counts["processed"] += 1
        if before is None:
            return
        self.counts["processed again"] += 1
        if self.is_careful:
            return
        # Who is hasty had committed it before: it is given again only if that commit is gone.
        if any(deleted_at >= before for deleted_at in self.history.offsets_deleted_at):
            self.counts["processed again without offsets"] += 1
        else:
            self.find(partition, f"offset {offset} of {partition} is processed twice")

    def finish(self, ends: Mapping[TopicPartition, int]) -> None:
        """Checks that everything below these ends, which was read by now, was processed, or in a hasty group given."""
        for partition, end in ends.items():
            reached = self.may_be_committed(partition)
            if reached < end:
                what = "processed by" if self.is_careful else "given to"
                self.find(partition, f"offset {reached} of {partition}, which ends at {end}, was never {what} anybody")
        if not self.is_careful:
            self.counts["given and never processed"] += len(self._given_once - self._committed_at.keys())

    def _may_have_lost(self, partition: TopicPartition) -> bool:
        """Records that were committed, or offsets of the group, as `History.may_be_lost` has it, at any time."""
        told: list[Forgot | UncleanElection] = [*self.history.forgot, *self.history.unclean]
        partitions = {event.partition for event in told if event.partition.topic == OFFSETS_TOPIC}
        return any(self.history.may_be_lost(each, ANY_OFFSET, 0.0) for each in (*partitions, partition))


class MemberLedger:
    """One life of one member."""

    def __init__(self, group: GroupLedger, number: int) -> None:
        """`number` is that of no other life."""
        self.group = group
        self.is_polling = False
        self.expected: dict[TopicPartition, int] = {}
        """The offset that has to come next of each partition; those of which nothing has come are left out."""
        self.paused: set[TopicPartition] = set()
        self._number = number
        self._by_hand: dict[TopicPartition, int] = {}

    def returned(self, records: Iterable[ConsumerRecord]) -> None:
        """A poll has returned these."""
        for record in records:
            partition, offset = record.partition, record.offset
            if partition in self.paused:
                self._find(partition, f"was given offset {offset} of {partition}, which is paused")
            expected = self.expected.get(partition)
            if expected is not None and offset != expected:
                if offset > expected and self.group.begins_at(partition, offset):
                    self.group.counts["passed over what was deleted"] += 1
                else:
                    self._find(partition, f"was given offset {offset} of {partition} where {expected} comes next")
            elif (
                expected is None
                and offset > self.group.may_be_committed(partition)
                and not self.group.begins_at(partition, offset)
            ):
                self._find(partition, f"begins at offset {offset} of {partition}, beyond what anybody has come to")
            self.expected[partition] = offset + 1
            self.group.given(record, self._number)

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
            if offset > limit and not self.group.begins_at(partition, offset):
                what = "processed" if self.group.is_careful else "given to anybody"
                self._find(partition, f"commits offset {offset} of {partition}, and {limit} was not {what}")
            if offset < self._by_hand.get(partition, 0):
                self._find(
                    partition,
                    f"commits offset {offset} of {partition}, after {self._by_hand[partition]} was committed by hand",
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
        for partition in partitions:
            if not self.is_polling:
                self._find(partition, f"hears outside of poll that {partition} is {what}")
            self.expected.pop(partition, None)
            self.paused.discard(partition)
            self._by_hand.pop(partition, None)

    def _find(self, partition: TopicPartition, what: str) -> None:
        self.group.find(partition, f"member {self._number} {what}")
