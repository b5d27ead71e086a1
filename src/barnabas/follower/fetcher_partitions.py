"""The partitions of one fetcher: what is to be fetched of each, and what has to be settled before. Sans I/O."""

from __future__ import annotations

import enum
import heapq
import itertools
import sys
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Final

from barnabas.follower.follower_session import Position, Wanted
from barnabas.kernel.transitions import TransitionTable

if TYPE_CHECKING:
    from barnabas.kernel.ids import Uuid
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.leader_epochs import EpochEnd
    from barnabas.wire.topics import TopicPartition

_OTHERS_PART: Final = 4
"""Of so many that a request names one at least is none of those that got records."""


class FetchPhase(enum.Enum):
    """What a partition of a fetcher waits for."""

    TRUNCATING = "truncating"
    """It is to be found out where our log parts from the leader's, and cut off there."""
    FETCHING = "fetching"
    RESETTING = "resetting"
    """The offset is out of the leader's range: it is to be found out where to go on."""
    BUILDING = "building"
    """The leader has it in remote storage only: our log begins anew behind that, with what has to be known of it."""


class FetchEvent(enum.Enum):
    """What happens to a partition of a fetcher."""

    DIVERGED = "diverged"
    OUT_OF_RANGE = "out of range"
    MOVED_TO_REMOTE = "moved to remote storage"
    SETTLED = "settled"
    """The log is cut off, and it is known from where to fetch."""


FETCHING: Final = TransitionTable(
    "fetched partition",
    start=(FetchPhase.TRUNCATING, FetchPhase.FETCHING),
    transitions={
        (FetchPhase.FETCHING, FetchEvent.DIVERGED): FetchPhase.TRUNCATING,
        (FetchPhase.FETCHING, FetchEvent.OUT_OF_RANGE): FetchPhase.RESETTING,
        (FetchPhase.FETCHING, FetchEvent.MOVED_TO_REMOTE): FetchPhase.BUILDING,
        (FetchPhase.TRUNCATING, FetchEvent.SETTLED): FetchPhase.FETCHING,
        (FetchPhase.RESETTING, FetchEvent.SETTLED): FetchPhase.FETCHING,
        (FetchPhase.BUILDING, FetchEvent.SETTLED): FetchPhase.FETCHING,
    },
)


class FetchedPartition:
    """One partition of a fetcher, in one leader epoch; a new epoch makes a new one."""

    __slots__ = (
        "delayed_until",
        "early_records",
        "fetch_offset",
        "lag",
        "last_fetched_epoch",
        "leader_end",
        "leader_epoch",
        "partition",
        "phase",
        "refusals",
        "topic_id",
    )

    def __init__(
        self,
        partition: Partition,
        topic_id: Uuid,
        leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
        phase: FetchPhase,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.phase = phase
        self.leader_end: EpochEnd | None = None
        """What the leader said when the logs were found to part."""
        self.early_records: tuple[int, bytes] | None = None
        """The first offset, before the start of our log, and the records with which it is to begin anew."""
        self.delayed_until: float | None = None
        """After an error, the loop's time before which nothing is tried."""
        self.refusals = 0
        """How many times on end the leader has refused it, for a reason that passes."""
        self.lag: int | None = None
        """Records up to the leader's high watermark; None before the first answer."""

    def __repr__(self) -> str:
        return (
            f"<FetchedPartition {self.topic_partition} {self.phase.value} from {self.fetch_offset} "
            f"in epoch {self.leader_epoch}>"
        )

    @property
    def topic_partition(self) -> TopicPartition:
        return self.partition.topic_partition

    def taken_over(self) -> FetchedPartition:
        """The same at the same place, for another fetcher: a delay, which only its own fetcher ends, is over."""
        found = FetchedPartition(
            self.partition, self.topic_id, self.leader_epoch, self.fetch_offset, self.last_fetched_epoch, self.phase
        )
        found.leader_end, found.early_records, found.lag = self.leader_end, self.early_records, self.lag
        return found

    @property
    def is_withheld(self) -> bool:
        """Whether it is to be fetched when what its log has is written, and not before."""
        log = self.partition.log
        is_due = self.phase is FetchPhase.FETCHING and self.delayed_until is None
        return is_due and log is not None and log.has_unwritten

    def position(self) -> Position | None:
        """Where to fetch from; None while nothing is to be fetched. What is fetched from there on says that all before
        is in the log's files."""
        log = self.partition.log
        if self.phase is not FetchPhase.FETCHING or self.delayed_until is not None or log is None or log.has_unwritten:
            return None
        return Position(
            self.topic_id, self.leader_epoch, self.fetch_offset, self.last_fetched_epoch, log.log_start_offset
        )


class FetcherPartitions:
    """All partitions of one fetcher.

    Whatever may change the position of a partition marks it; `changed` gives the marked ones once, and only those are
    looked at for the next request.

    Invariant: nothing is among `_urgent` and among `_changed`.
    """

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, FetchedPartition] = {}
        self._urgent: dict[TopicPartition, None] = {}
        """Marked ones of which the leader gives in vain what it gives before it is told: they are fetched from another
        offset now, or not at all for a while."""
        self._changed: dict[TopicPartition, None] = {}
        """All others that are marked."""
        self._unsettled: dict[TopicPartition, FetchedPartition] = {}
        # A heap; the numbers keep partitions from being compared.
        self._delays: list[tuple[float, int, FetchedPartition]] = []
        self._delay_numbers = itertools.count()
        self._withheld: list[FetchedPartition] = []

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[FetchedPartition]:
        return iter(self._partitions.values())

    def get(self, topic_partition: TopicPartition) -> FetchedPartition | None:
        return self._partitions.get(topic_partition)

    def holds(self, fetched: FetchedPartition) -> bool:
        """Whether it is here still, and not another one in its place."""
        return self._partitions.get(fetched.topic_partition) is fetched

    def add(self, fetched: FetchedPartition) -> None:
        """Takes a partition in, instead of the one that may be here."""
        topic_partition = fetched.topic_partition
        self._partitions[topic_partition] = fetched
        self._unsettled.pop(topic_partition, None)
        if fetched.phase is not FetchPhase.FETCHING:
            self._unsettled[topic_partition] = fetched
        self._mark(topic_partition)

    def remove(self, topic_partition: TopicPartition) -> FetchedPartition | None:
        """Takes a partition out; None if it is not here."""
        fetched = self._partitions.pop(topic_partition, None)
        if fetched is not None:
            self._unsettled.pop(topic_partition, None)
            self._mark(topic_partition)
        return fetched

    def hand_over(self, topic_partition: TopicPartition) -> None:
        """As `remove`, of what another fetcher goes on with: the next request tells the leader, whatever else there is
        to say. With every one that does not it would read what the leader has heard last here, and take that for what
        this broker has, though the other one has said more."""
        if self.remove(topic_partition) is not None:
            self._mark_urgent(topic_partition)

    def mark(self, fetched: FetchedPartition) -> None:
        """The position of a partition that is here may have changed."""
        self._mark(fetched.topic_partition)

    def advanced(self, fetched: FetchedPartition, fetch_offset: int, last_fetched_epoch: int) -> None:
        """Records were appended."""
        fetched.fetch_offset = fetch_offset
        fetched.last_fetched_epoch = last_fetched_epoch
        self._mark_urgent(fetched.topic_partition)

    def go_last(self, fetched: FetchedPartition) -> None:
        """All others of this fetcher come before it, whenever all are named."""
        topic_partition = fetched.topic_partition
        if self._partitions.pop(topic_partition, None) is not None:
            self._partitions[topic_partition] = fetched

    def diverged(self, fetched: FetchedPartition, leader_end: EpochEnd) -> None:
        """The leader says that our log parts from its own, and where the epoch ends that they may share."""
        fetched.leader_end = leader_end
        self._unsettle(fetched, FetchEvent.DIVERGED)

    def begins_before(self, fetched: FetchedPartition, first_offset: int, records: bytes) -> None:
        """Our empty log is to begin anew at an earlier offset, with these records."""
        fetched.early_records = (first_offset, records)
        self._unsettle(fetched, FetchEvent.DIVERGED)

    def out_of_range(self, fetched: FetchedPartition) -> None:
        """The leader has nothing at our offset."""
        self._unsettle(fetched, FetchEvent.OUT_OF_RANGE)

    def moved_to_remote(self, fetched: FetchedPartition) -> None:
        """The leader has our offset in remote storage only."""
        self._unsettle(fetched, FetchEvent.MOVED_TO_REMOTE)

    def settled(self, fetched: FetchedPartition, fetch_offset: int, last_fetched_epoch: int) -> None:
        """The log is cut off, and is fetched from `fetch_offset`."""
        fetched.phase = FETCHING.advance(fetched.topic_partition, fetched.phase, FetchEvent.SETTLED)
        fetched.leader_end = fetched.early_records = None
        fetched.fetch_offset = fetch_offset
        fetched.last_fetched_epoch = last_fetched_epoch
        self._unsettled.pop(fetched.topic_partition, None)
        self._mark_urgent(fetched.topic_partition)

    def unsettled(self) -> list[FetchedPartition]:
        """What has to be settled now: cut off, or reset."""
        return [fetched for fetched in self._unsettled.values() if fetched.delayed_until is None]

    @property
    def has_unsettled(self) -> bool:
        return any(fetched.delayed_until is None for fetched in self._unsettled.values())

    @property
    def has_due(self) -> bool:
        """Whether there is anything to fetch now."""
        return any(fetched.position() is not None for fetched in self._partitions.values())

    def delay(self, fetched: FetchedPartition, until: float) -> None:
        """Leaves a partition alone until a time of the loop's clock; nothing if it is delayed already."""
        if fetched.delayed_until is None:
            fetched.delayed_until = until
            heapq.heappush(self._delays, (until, next(self._delay_numbers), fetched))
            self._mark_urgent(fetched.topic_partition)

    @property
    def next_delay_end(self) -> float | None:
        """When the first delay ends."""
        return self._delays[0][0] if self._delays else None

    def end_delays(self, now: float) -> None:
        """Ends the delays that are over."""
        delays = self._delays
        while delays and delays[0][0] <= now:
            _, _, fetched = heapq.heappop(delays)
            fetched.delayed_until = None
            if self.holds(fetched):
                self._mark(fetched.topic_partition)

    def changed(self, at_most: int = sys.maxsize, told: Container[TopicPartition] = ()) -> Iterator[Wanted]:
        """The partitions that are marked, until of so many there is something to say; the others stay marked. To be
        exhausted before anything else is done here.

        `told` are those that the leader knows of. However many of them have moved or are delayed, these come first, and
        all: what it gives of them before it knows is dropped, whatever a throttle allows, and what it says of them is
        not said again; and it would take a follower that says only later what it has for one that lags. Some others
        come nonetheless.
        """
        urgent, self._urgent = self._urgent, {}
        others = at_most // _OTHERS_PART
        for topic_partition in urgent:
            if topic_partition in told:
                at_most -= 1
                yield topic_partition, self._position(topic_partition)
            else:
                self._changed[topic_partition] = None
        at_most = max(at_most, others, 1)
        waiting = iter(self._changed)
        for topic_partition in waiting:
            is_told = topic_partition in told
            position = self._position(topic_partition)
            yield topic_partition, position
            at_most -= position is not None or is_told
            if not at_most:
                break
        self._changed = dict.fromkeys(waiting)

    @property
    def has_marked(self) -> bool:
        """Some are marked."""
        return bool(self._changed or self._urgent)

    def only_changed(self, topic_partition: TopicPartition) -> FetchedPartition | None:
        """The partition, if it is here and no other one is marked; the mark stays."""
        urgent, changed = self._urgent, self._changed
        if len(urgent) + len(changed) == 1 and (topic_partition in urgent or topic_partition in changed):
            return self._partitions.get(topic_partition)
        return None

    def forget_changed(self) -> None:
        """What is marked was looked at otherwise than by `changed`."""
        self._urgent, self._changed = {}, {}

    def everything(self, at_most: int = sys.maxsize) -> Iterator[Wanted]:
        """As `changed`, where all are marked, and the leader knows of none."""
        self._urgent, self._changed = {}, dict.fromkeys(self._partitions)
        return self.changed(at_most)

    def take_withheld(self) -> list[FetchedPartition]:
        """Those that were left out since the last call because their logs have something that is not written."""
        withheld, self._withheld = self._withheld, []
        return withheld

    def _position(self, topic_partition: TopicPartition) -> Position | None:
        fetched = self._partitions.get(topic_partition)
        if fetched is None:
            return None
        position = fetched.position()
        if position is None and fetched.is_withheld:
            self._withheld.append(fetched)
        return position

    def _unsettle(self, fetched: FetchedPartition, event: FetchEvent) -> None:
        fetched.phase = FETCHING.advance(fetched.topic_partition, fetched.phase, event)
        self._unsettled[fetched.topic_partition] = fetched
        self._mark(fetched.topic_partition)

    def _mark(self, topic_partition: TopicPartition) -> None:
        if topic_partition not in self._urgent:
            self._changed[topic_partition] = None

    def _mark_urgent(self, topic_partition: TopicPartition) -> None:
        self._changed.pop(topic_partition, None)
        self._urgent[topic_partition] = None
