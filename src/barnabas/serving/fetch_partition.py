"""One partition of a Fetch request: what is asked of it, what it has to give, and what was told of it last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import Uuid
from barnabas.wire.sentinels import NO_BROKER, NO_EPOCH, NO_OFFSET
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.leader_epochs import EpochEnd
    from barnabas.log.segments.indexes import AbortedTransaction
    from barnabas.log.segments.segment import ReadPlan
    from barnabas.serving.remote_fetch import RemoteFetch

SessionKey = tuple[str | Uuid, int]
"""How a session knows a partition: topic, or topic id where it uses ids, and number."""


class NamedPartition(NamedTuple):
    """What a request says of a partition that its session has."""

    key: SessionKey
    fetch_offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class PartitionRead(NamedTuple):
    """What one partition has to give, or why nothing."""

    code: ErrorCode
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    plan: ReadPlan | None = None
    aborted: Sequence[AbortedTransaction] | None = None
    diverging: EpochEnd | None = None
    partition: Partition | None = None
    has_more: bool = True
    """There may be something to say next time though nothing changes until then."""
    preferred_replica: int = NO_BROKER
    """Where the consumer had better read; it is given no records then."""
    is_unknown: bool = False
    """This broker knows no such partition; unlike other errors, that does not end the wait for bytes."""
    remote: RemoteFetch | None = None
    """What is read from remote storage, of a tiered partition; there is no plan then."""

    @property
    def is_said_again(self) -> bool:
        """It is news whenever it is read, whatever was sent before."""
        return (
            self.size_bytes > 0
            or self.code != ErrorCode.NONE
            or self.diverging is not None
            or self.preferred_replica != NO_BROKER
        )

    @property
    def size_bytes(self) -> int:
        if self.plan is not None:
            return self.plan.length_bytes
        return 0 if self.remote is None else self.remote.bytes_max


class FetchPartition:
    """One partition as it is fetched, by one request or within a session."""

    __slots__ = (
        "fetch_offset",
        "has_changed",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic_id",
        "topic_partition",
        "was_unknown",
        "watched",
    )

    def __init__(
        self,
        topic: str | None,
        topic_id: Uuid,
        number: int,
        *,
        fetch_offset: int,
        max_bytes: int,
        leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        log_start_offset: int = NO_OFFSET,
    ) -> None:
        """`topic` is None as long as nobody knows the topic of the id."""
        self.topic_id = topic_id
        self.topic_partition = TopicPartition(topic or "", number)
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        """Where a follower's log begins."""
        self.sent_high_watermark = NO_OFFSET
        self.sent_log_start_offset = NO_OFFSET
        self.watched: Partition | None = None
        """The partition that reports its changes."""
        self.was_unknown = False
        """Nobody knew it when it was last read in steps."""
        self.has_changed = False
        """It has reported one since this was last set to False: when it was read in steps, the outcome of which is
        settled some turns later."""

    def __repr__(self) -> str:
        return f"<FetchPartition {self.topic_partition} from {self.fetch_offset}>"

    @property
    def has_unsent_high_watermark(self) -> bool:
        """The high watermark has moved since it was sent, in a session that is told of the partition's changes."""
        partition = self.watched
        log = None if partition is None else partition.log
        return log is not None and log.high_watermark != self.sent_high_watermark

    @property
    def is_resolved(self) -> bool:
        """The topic's name is known."""
        return bool(self.topic_partition.topic)

    def resolve(self, topic: str) -> None:
        self.topic_partition = TopicPartition(topic, self.topic_partition.partition)

    def key(self, *, uses_topic_ids: bool) -> SessionKey:
        return (self.topic_id if uses_topic_ids else self.topic_partition.topic, self.topic_partition.partition)

    def update(self, asked: FetchPartition | NamedPartition) -> None:
        """Takes over what a later request says."""
        if asked.leader_epoch != self.leader_epoch:
            self.sent_high_watermark = NO_OFFSET  # whoever was in a new epoch already has not taken it over
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.leader_epoch = asked.leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset

    def is_news(self, read: PartitionRead) -> bool:
        """Whether it says anything that was not sent."""
        return (
            read.is_said_again
            or self.sent_high_watermark != read.high_watermark
            or self.sent_log_start_offset != read.log_start_offset
        )

    def note_sent(self, read: PartitionRead) -> bool:
        """Takes note of what a response says; False if it is nothing new, and can be left out of it."""
        is_new = self.is_news(read)
        # After an error, or where the logs part and nothing else counts, the next answer is news whatever it is.
        is_taken_over = read.code == ErrorCode.NONE and read.diverging is None
        self.sent_high_watermark = read.high_watermark if is_taken_over else NO_OFFSET
        self.sent_log_start_offset = read.log_start_offset
        return is_new
