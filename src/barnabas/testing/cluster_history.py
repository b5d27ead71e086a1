"""What happened in a run of a cluster, as seen from outside: the material of `checkers`, plain data, times in virtual
seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

LOOKING_SECONDS: Final = 0.05
"""How often high watermarks are looked at."""


class RecordId(NamedTuple):
    """A record of the scenario: who sent it, and its number among those of this producer; its value says both."""

    producer: int
    number: int

    def value(self) -> bytes:
        """The record's value on the wire."""
        return b"%d:%d" % self

    @classmethod
    def of_value(cls, value: bytes | None) -> RecordId | None:
        """The record of a value; None for a value that no producer of a scenario sends."""
        producer, colon, number = (value or b"").partition(b":")
        if not colon or not producer.isdigit() or not number.isdigit():
            return None
        return cls(int(producer), int(number))


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledgement; `offset` is -1 where the broker knew the batch as a duplicate and not its offset."""

    partition: TopicPartition
    offset: int
    time: float


class StoredBatch(NamedTuple):
    """A batch in a log. `crc` covers everything but offset and leader epoch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int


@dataclass(frozen=True, slots=True)
class ExposedHighWatermark:
    """A leader's high watermark at one moment, and the batches below it that were not looked at before, in order.

    `from_offset` is where these begin: the batches from there on, and below the high watermark, are exactly `batches`.
    """

    time: float
    broker_id: int
    partition: TopicPartition
    leader_epoch: int
    high_watermark: int
    from_offset: int
    batches: tuple[StoredBatch, ...]


@dataclass(frozen=True, slots=True)
class Forgot:
    """A broker has come back from a loss of power without the records from `from_offset` on, and at that moment the
    committed ISR had it, or not: then it has to catch up before it counts.
    """

    time: float
    broker_id: int
    partition: TopicPartition
    from_offset: int
    in_isr: bool
    leader_epoch: int
    """The partition's, as committed at that moment; -1 where there is none."""


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """A broker has begun to lead that was not in the ISR: what it lacks is lost. `registered` are the members of the
    ISR that could have been elected instead.
    """

    time: float
    broker_id: int
    partition: TopicPartition
    leader_epoch: int
    from_offset: int
    registered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Consumed:
    """A record that a consumer was given."""

    time: float
    consumer: int
    partition: TopicPartition
    offset: int
    record: RecordId | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit of a group that has succeeded at this time."""

    time: float
    group: str
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class CommittedRead:
    """An answer to OffsetFetch by a broker, asked for at `asked_at`; None for no offset."""

    asked_at: float
    group: str
    partition: TopicPartition
    offset: int | None
    broker_id: int


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record in a log at the end of a run."""

    offset: int
    record: RecordId | None


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A replica's log at the end of a run: all of it, and how far it is committed as that replica knows."""

    broker_id: int
    partition: TopicPartition
    is_leader: bool
    high_watermark: int
    records: tuple[StoredRecord, ...]
    batches: tuple[StoredBatch, ...]
    log_start_offset: int = 0
    """What lies before it is deleted; segments may still have some of it."""


@dataclass(slots=True)
class History:
    """One run."""

    sent: dict[RecordId, TopicPartition] = field(default_factory=dict)
    """In the order of sending."""
    acknowledged: dict[RecordId, Acknowledged] = field(default_factory=dict)
    never_written: set[RecordId] = field(default_factory=set)
    """Records of which the producer has said that they are surely not in the log."""
    leaders: dict[tuple[TopicPartition, int], dict[int, float]] = field(default_factory=dict)
    """For each leader epoch the brokers that have led in it, and since when."""
    controllers: dict[int, dict[int, float]] = field(default_factory=dict)
    """For each controller epoch the brokers that have been the controller in it, and since when."""
    exposed: list[ExposedHighWatermark] = field(default_factory=list)
    """In order of time."""
    forgot: list[Forgot] = field(default_factory=list)
    unclean: list[UncleanElection] = field(default_factory=list)
    allows_unclean: bool = True
    """False where no config of the users' topic, or of the groups' offsets, allows unclean elections."""
    led_without_disk: list[str] = field(default_factory=list)
    """Partitions whose leader's log directory had failed, although others could lead."""
    deletable: dict[TopicPartition, int] = field(default_factory=dict)
    """The offset below which everything may be deleted: somebody has asked for it, or retention has given it up."""
    unlawful: list[str] = field(default_factory=list)
    """What was deleted although no config wants that."""
    offsets_deleted_at: list[float] = field(default_factory=list)
    """When the topic of the groups' offsets was deleted."""
    consumed: list[Consumed] = field(default_factory=list)
    """In order of time."""
    committed: list[Committed] = field(default_factory=list)
    committed_reads: list[CommittedRead] = field(default_factory=list)
    offsets_partition: TopicPartition | None = None
    """The partition that keeps the offsets of the group."""
    group_offsets: set[tuple[str, TopicPartition, int]] | None = None
    """Every offset of a group that is in the log of the groups' offsets in the end; None where nobody has looked."""
    final_logs: list[FinalLog] = field(default_factory=list)
    unflushed: list[str] = field(default_factory=list)
    """Acknowledged records that a loss of power took from who had acknowledged them, against `flush.messages`."""
    badly_compacted: list[str] = field(default_factory=list)
    """What is wrong with a compacted topic."""
    lost_remotely: list[str] = field(default_factory=list)
    """What is wrong with a tiered topic."""
    mixed_up: list[str] = field(default_factory=list)
    """What became of a topic that was made anew under its name, and should not have."""
    misplaced: list[str] = field(default_factory=list)
    """Replicas that were in two log directories at a time, or copies of them that stayed."""
    mistaken: list[str] = field(default_factory=list)
    """What became of delegation tokens, passwords and ACLs, and should not have."""
    torn: list[str] = field(default_factory=list)
    """What became of transactions, and should not have."""
    misassigned: list[str] = field(default_factory=list)
    """What became of a group of the consumer protocol, and should not have."""
    starved: list[str] = field(default_factory=list)
    """Throttled replicas that got nothing while others did."""
    kept_out: list[str] = field(default_factory=list)
    """Brokers' connections that another broker refused, though clients' were there."""
    unsettled: list[str] = field(default_factory=list)
    """What should have come about after faults had ended, and did not."""
    excuses_losses: bool = True
    """False where every partition has kept a member in sync: then nothing may be lost."""

    def may_be_lost(self, partition: TopicPartition, offset: int, since: float) -> bool:
        """Whether what was committed at `since` may be gone.

        Kafka elects any member of the ISR, without asking what it has. So a record lives as long as no broker comes
        back as a member of the committed ISR that has lost it with its power (KIP-966 tells the same); a member of the
        ISR that has kept it, in memory or on disk, is never replaced by one that has not as long as the controller
        takes those out of the ISR that are gone.
        """
        return (
            self.excuses_losses
            and any(
                event.in_isr and event.partition == partition and event.from_offset <= offset and event.time >= since
                for event in self.forgot
            )
        ) or any(
            event.partition == partition and event.from_offset <= offset and event.time >= since
            for event in self.unclean
        )

    def note_deletion(self, partition: TopicPartition, offset: int) -> None:
        """Notes that what lies below the offset may be deleted from now on."""
        self.deletable[partition] = max(offset, self.deletable.get(partition, 0))

    def end_of_epoch(self, partition: TopicPartition, leader_epoch: int) -> float:
        """When a later epoch is seen first: a leader of it begins, or a broker comes back from a loss of power into
        it. What the epoch's own leader has committed, such a broker has written before, or it never had.
        """
        began = (
            since
            for (other, epoch), brokers in self.leaders.items()
            if other == partition and epoch > leader_epoch
            for since in brokers.values()
        )
        forgot = (
            event.time for event in self.forgot if event.partition == partition and event.leader_epoch > leader_epoch
        )
        return min(chain(began, forgot), default=math.inf)

    def committed_at(self, partition: TopicPartition, offset: int, told_at: float) -> float:
        """When what somebody was told of at `told_at` was committed, at the latest: a leader that is cut off tells
        for a while what was committed in its epoch, which has ended, and an answer may be on its way for long. Who has
        told is known by the high watermarks: what lies below one was committed when that was seen.
        """
        told = next(
            (
                exposed
                for exposed in reversed(self.exposed)
                if exposed.partition == partition
                and exposed.from_offset <= offset < exposed.high_watermark
                and exposed.time <= told_at + LOOKING_SECONDS
            ),
            None,
        )
        return told_at if told is None else min(told_at, told.time, self.end_of_epoch(partition, told.leader_epoch))

    def is_superseded(self, read: CommittedRead) -> bool:
        """Whether somebody else coordinated the group already when that broker was asked, which did not know it yet:
        Kafka does not keep it from answering what it knows (only from taking anything).
        """
        newest = max(
            (
                (epoch, broker_id)
                for (partition, epoch), brokers in self.leaders.items()
                if partition == self.offsets_partition
                for broker_id, since in brokers.items()
                if since <= read.asked_at
            ),
            default=None,
        )
        return newest is not None and newest[1] != read.broker_id

    def has_coordinated_since(self, read: CommittedRead) -> float:
        """Since when the broker that was asked has led the partition of the groups' offsets, as of that moment."""
        return max(
            (
                since
                for (partition, _), brokers in self.leaders.items()
                if partition == self.offsets_partition
                for broker_id, since in brokers.items()
                if since <= read.asked_at and broker_id == read.broker_id
            ),
            default=math.inf,
        )

    def commits_may_be_lost(self, committed: Committed) -> bool:
        """Whether a group may be told less than it has committed: the commit may be lost, or what the partition had
        below it, whenever that was (a consumer may not have noticed yet when it committed).
        """
        if any(deleted_at >= committed.time for deleted_at in self.offsets_deleted_at):
            return True
        forgetful: list[Forgot | UncleanElection] = (
            [event for event in self.forgot if event.in_isr] if self.excuses_losses else []
        )
        return any(
            (event.partition.topic == OFFSETS_TOPIC and event.time >= committed.time)
            or (event.partition == committed.partition and event.from_offset < committed.offset)
            for event in chain(forgetful, self.unclean)
        )
