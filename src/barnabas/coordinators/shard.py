"""A shard: what a coordinator has for one partition of its internal topic that this broker leads.

A shard is elected with the partition's leader, loads by replaying the log, and resigns with the leader: these are
`shard_runtime`'s. In between, a request decides on the state as it is, without changing it, and yields records; these
are appended, replayed onto the state as a load would replay them, and the request is answered when they are committed.
Which requests there are, and what the records mean, is the coordinator's: of groups, or of transactions.

Invariant: durable state changes only by the replay of records that are in the log. The log says at once whether it
takes a batch and where, so a batch that is refused is never replayed, and there is nothing to be put back; a batch that
was taken stays in the log as long as the shard lives, and so in the state, whatever its outcome is.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from barnabas.coordinators.ports import InternalLog
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, at_once, each
from barnabas.kernel.transitions import TransitionTable
from barnabas.wire.compression_types import NO_COMPRESSION, Compression
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition

Content = TypeVar("Content")

_COORDINATOR_SEQUENCE: Final = 0
"""Nobody looks at the sequences of what coordinators write; as in Kafka."""


class ShardState(enum.Enum):
    """How far a shard is."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """Could not be loaded; is tried again."""
    CLOSED = "closed"
    """Resigned: another broker, or a later shard here, has the partition."""


class ShardEvent(enum.Enum):
    """What happens to a shard."""

    LOADED = "loaded"
    LOAD_FAILED = "load failed"
    RETRIED = "retried"
    RESIGNED = "resigned"


SHARD: Final = TransitionTable(
    "shard",
    start=ShardState.LOADING,
    transitions={
        (ShardState.LOADING, ShardEvent.LOADED): ShardState.ACTIVE,
        (ShardState.LOADING, ShardEvent.LOAD_FAILED): ShardState.FAILED,
        (ShardState.FAILED, ShardEvent.RETRIED): ShardState.LOADING,
        (ShardState.LOADING, ShardEvent.RESIGNED): ShardState.CLOSED,
        (ShardState.ACTIVE, ShardEvent.RESIGNED): ShardState.CLOSED,
        (ShardState.FAILED, ShardEvent.RESIGNED): ShardState.CLOSED,
    },
    final=(ShardState.CLOSED,),
)

NOT_ACTIVE_ERRORS: Final = {
    ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ShardState.CLOSED: ErrorCode.NOT_COORDINATOR,
}
"""What a client is told while its shard is not active."""


APPEND_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""What a client is told instead of the error of an append, whatever the records were: as for a Produce it would ask for
metadata of the internal topic. Coordinators add what their records need; other errors are told as they are."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How shards read and write."""

    load_buffer_bytes: int
    append_timeout_ms: float
    compression: Compression = NO_COMPRESSION
    loads_committed: bool = False
    """Whether a shard is active only when all that it has loaded is committed: nobody is told what may yet be lost."""


class _Append:
    """One append: its outcome is told once, by the log or because the shard has resigned, and after the replay."""

    __slots__ = ("_is_replayed", "_on_done", "_outcome", "_under_way")

    def __init__(self, under_way: dict[_Append, None], on_done: Callable[[ErrorCode], None]) -> None:
        self._under_way = under_way
        self._on_done = on_done
        self._is_replayed = False
        self._outcome: ErrorCode | None = None
        """What the log said before the batch was replayed."""
        under_way[self] = None

    def done(self, error: ErrorCode) -> None:
        if self not in self._under_way:
            return
        if self._is_replayed:
            del self._under_way[self]
            self._on_done(error)
        elif self._outcome is None:
            self._outcome = error

    def replayed(self) -> None:
        self._is_replayed = True
        if self._outcome is not None:
            self.done(self._outcome)

    def refused(self) -> None:
        """There is no outcome: whoever appended is told by the exception."""
        del self._under_way[self]


class _Late(NamedTuple):
    """A batch that was not committed in time, and who is to be told when it is."""

    base_offset: int
    on_committed: Callable[[int], None]


class Shard(Generic[Content]):
    """One partition's share. `ShardRuntime` makes, loads and closes it."""

    __slots__ = (
        "_content",
        "_is_awaiting",
        "_late",
        "_log",
        "_settings",
        "_under_way",
        "leader_epoch",
        "loading",
        "partition",
        "state",
    )

    def __init__(self, partition: TopicPartition, leader_epoch: int, log: InternalLog, settings: ShardSettings) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = ShardState.LOADING
        self.loading: asyncio.Task[None] | None = None
        self._log = log
        self._settings = settings
        self._under_way: dict[_Append, None] = {}
        self._late: dict[Hashable, _Late] = {}
        """The last batch of each owner that was not committed in time."""
        self._is_awaiting = False
        """Whether the log is to tell of one of them."""
        self._content: Content | None = None

    @property
    def is_active(self) -> bool:
        return self.state is ShardState.ACTIVE

    @property
    def content(self) -> Content:
        """What was loaded; KafkaError with what a client is to be told while the shard is not active."""
        if self._content is None or self.state is not ShardState.ACTIVE:
            raise KafkaError(NOT_ACTIVE_ERRORS.get(self.state, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return self._content

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        replay: Callable[[int], None],
        on_done: Callable[[ErrorCode], None],
    ) -> None:
        """Appends the records as one batch, and has them replayed.

        Raises `KafkaError` where the log refuses them: nothing has changed then. Otherwise `replay(base_offset)` is
        called before this returns, and makes of the state what these records make of it; `on_done(code)` is called once
        after that, perhaps before this returns: when the records are committed, when they were not in time, or when the
        shard resigns before it is known. They stay replayed in any case.
        """
        self.append_batch(self._batch(records, timestamp_ms), replay, on_done)

    def append_batch(
        self,
        batch: bytearray,
        replay: Callable[[int], None],
        on_done: Callable[[ErrorCode], None],
    ) -> None:
        """As `append`, of a batch that `batch_in_steps` has made."""
        self._check_active()
        append = _Append(self._under_way, on_done)
        try:
            base_offset = self._log.start_append(
                self.partition,
                self.leader_epoch,
                batch,
                timeout_ms=self._settings.append_timeout_ms,
                on_done=append.done,
            )
        except BaseException:
            append.refused()
            raise
        replay(base_offset)
        append.replayed()

    def append_unacknowledged(
        self, records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int, replay: Callable[[int], None]
    ) -> None:
        """As `append`, without waiting for replicas: what became of the records is not told."""
        self._check_active()
        batch = self._batch(records, timestamp_ms)
        replay(self._log.append_unacknowledged(self.partition, self.leader_epoch, batch))

    def advance(self, event: ShardEvent) -> None:
        self.state = SHARD.advance(self.partition, self.state, event)

    def activate(self, content: Content) -> None:
        self._content = content
        self.advance(ShardEvent.LOADED)

    def fail_appends(self) -> Steps[None]:
        """Tells every append under way that this broker leads no more; what became of it is not known here."""
        yield from each(lambda append: append.done(ErrorCode.NOT_LEADER_OR_FOLLOWER), list(self._under_way))

    def await_commit(self, owner: Hashable, base_offset: int, on_committed: Callable[[int], None]) -> None:
        """For a batch whose `on_done` was told REQUEST_TIMED_OUT: calls `on_committed(offset)` when all that was
        written up to the offset is committed, while the shard is active; perhaps several times, until that is
        `base_offset` or more. Of one owner the last call counts: so what waits is bounded by who waits, however long
        nothing is committed.
        """
        if self.is_active:
            self._late[owner] = _Late(base_offset, on_committed)
            if not self._is_awaiting:
                self._await_last()

    def when_all_committed(self, on_committed: Callable[[], None]) -> None:
        """Calls when all that is in the log now is committed, perhaps before this returns; never where the shard
        resigns before.
        """

        def told(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                on_committed()

        try:
            start, end = self._log.offsets(self.partition, self.leader_epoch)
            if end > start:
                self._log.when_committed(self.partition, self.leader_epoch, end - 1, told)
            else:
                on_committed()
        except KafkaError:
            pass  # it leads no more, and is about to be told

    def _await_last(self) -> None:
        """Waits for the last batch that is late now. What leads no more is told so, or resigns."""
        offset = max(late.base_offset for late in self._late.values())

        def told(error: ErrorCode) -> None:
            self._is_awaiting = False
            passed, self._late = self._late, {}
            if error is not ErrorCode.NONE or not self.is_active:
                return
            for owner, late in passed.items():
                if late.base_offset > offset:
                    self._late[owner] = late
            for late in passed.values():
                late.on_committed(offset)
            if self._late and not self._is_awaiting:
                self._await_last()

        self._is_awaiting = True
        try:
            self._log.when_committed(self.partition, self.leader_epoch, offset, told)
        except KafkaError:
            self._is_awaiting = False
            self._late = {}

    def _check_active(self) -> None:
        if self.state is not ShardState.ACTIVE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _batch(self, records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int) -> bytearray:
        return at_once(batch_in_steps(records, timestamp_ms, self._settings.compression))


def batch_in_steps(
    records: Iterable[tuple[bytes, bytes | None]],
    timestamp_ms: int,
    compression: Compression,
    transaction: tuple[int, int] | None = None,
) -> Steps[bytearray]:
    """One batch of the records, so many in each step; part of the `transaction` of that producer id and epoch."""
    if transaction is None:
        builder = RecordBatchBuilder(compression=compression)
    else:
        producer_id, epoch = transaction
        builder = RecordBatchBuilder(
            compression=compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=_COORDINATOR_SEQUENCE,
            is_transactional=True,
        )
    left = STEP_ELEMENTS
    for key, value in records:
        builder.append(timestamp_ms, key, value)
        left -= 1
        if not left:
            yield
            left = STEP_ELEMENTS
    return builder.build()
