"""The records of one partition on their way to its leader, sans I/O: batches, their order, and their sequences.

An idempotent producer numbers its records per partition; the leader takes only the next number, so that what is sent
again is written once, and nothing is written out of order (KIP-98). The rules here, which keep that true:

- A batch that was sent and neither acknowledged nor refused for its sequence is *uncertain*: it may be in the log.
- What is sent again keeps its sequence, goes ahead of everything behind it, and goes alone.
- A leader remembers the last five batches. So no batch is sent while one that is five before it has no answer, also
  if that one went to a former leader and would not be in the way.
- The first batch of an epoch goes alone too: a leader that knows nothing of a producer takes any sequence, so it would
  not notice that the first one was lost on the way.
- When a sequence can never be written (its batch was given up, or the leader has lost what came before), everything
  behind it is refused by the leader. Once nothing uncertain is left, the partition goes on under the next producer
  epoch from sequence 0 (KIP-360), which also fences what may still be on its way. Epochs are counted per partition:
  leaders keep the state of producers per partition, and only transactions need one epoch for all.

In a transaction all partitions have the epoch of the transaction, which nobody but the coordinator raises. So there a
sequence that can never be written ends the transaction: nothing of it counts, and the next one has another epoch.

Without idempotence a leader takes whatever comes. So one batch of a partition is on its way at a time: what has to be
sent again may be written twice, but not behind what was sent after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from barnabas.client.errors import DeliveryTimeoutError
from barnabas.client.records import RecordMetadata
from barnabas.kernel.facts import fact
from barnabas.kernel.spoken import spoken_ms
from barnabas.wire.batch_formats import read_records
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_batch import increment_sequence, set_producer
from barnabas.wire.record_builder import RecordBatchBuilder, RecordBatchFullError
from barnabas.wire.record_columns import OFFSETS_OF_TWO_BYTES, append_column
from barnabas.wire.sentinels import NO_TIMESTAMP

if TYPE_CHECKING:
    import asyncio

    from barnabas.client.settings import ProducerSettings
    from barnabas.wire.record_columns import ValueColumn
    from barnabas.wire.records import Header
    from barnabas.wire.topics import TopicPartition

PRODUCER_EPOCH_MAX: Final = 32_767


@fact
class ProducerIdentity:
    """The producer id and epoch of the sequences."""

    producer_id: int
    epoch: int


class ColumnFate(Protocol):
    """Hears what became of the records of a column, in parts of one batch each, in no order."""

    def written(self, first: int, count: int, partition: TopicPartition, base_offset: int) -> object:
        """`count` records from number `first` of the column on are acknowledged; the offset is that of the first, -1
        where it is not known.
        """
        ...

    def failed(self, first: int, count: int, error: Exception) -> object:
        """So many will not be acknowledged."""
        ...


class ColumnPart(NamedTuple):
    """Records of a column that are in one batch."""

    fate: ColumnFate
    first: int
    record_count: int


class ProducerBatch:
    """Records that travel and succeed or fail together."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "created_at",
        "data",
        "expires_at",
        "identity",
        "is_refused",
        "is_uncertain",
        "order",
        "partition",
        "record_count",
        "records",
        "retry_at",
        "serial",
        "size_bytes",
    )

    def __init__(self, partition: TopicPartition, order: tuple[int, ...], now: float, expires_at: float) -> None:
        self.partition = partition
        self.order = order
        """The batch's place among those of its partition."""
        self.created_at = now
        self.expires_at = expires_at
        self.retry_at = 0.0
        self.attempts = 0
        self.is_uncertain = False
        """It was sent, and may be in the log."""
        self.is_refused = False
        """The leader has refused the last attempt for its sequence."""
        self.data: bytearray | None = None
        """The bytes, once nothing is added any more."""
        self.identity: ProducerIdentity | None = None
        self.base_sequence = -1
        """With `identity`: the sequence of the first record, kept until it can surely never be written."""
        self.serial = 0
        """With `identity`: how many batches of the partition had a sequence before."""
        self.records: list[tuple[asyncio.Future[RecordMetadata] | ColumnPart, int]] = []
        """For each record who waits for it, and its timestamp in ms; one entry for all records of a part."""
        self.record_count = 0
        self.size_bytes = 0
        """What the records take of the producer's buffer."""

    def succeed(self, base_offset: int, append_time_ms: int) -> None:
        """Tells those who wait; `base_offset` is -1 where it is not known."""
        place = 0
        for future, timestamp_ms in self.records:
            offset = base_offset + place if base_offset >= 0 else -1
            if isinstance(future, ColumnPart):
                place += future.record_count
                future.fate.written(future.first, future.record_count, self.partition, offset)
                continue
            place += 1
            if not future.done():
                time_ms = timestamp_ms if append_time_ms == NO_TIMESTAMP else append_time_ms
                future.set_result(RecordMetadata(self.partition, offset, time_ms))

    def fail(self, error: Exception) -> None:
        """Tells those who wait."""
        for future, _ in self.records:
            if isinstance(future, ColumnPart):
                future.fate.failed(future.first, future.record_count, error)
            elif not future.done():
                future.set_exception(error)
                future.exception()  # nobody has to look: `flush` and `close` report nothing either


class PartitionQueue:
    """The batches of one partition, in order. The caller decides when to send, and says what became of it."""

    def __init__(
        self, partition: TopicPartition, settings: ProducerSettings, *, is_transactional: bool = False
    ) -> None:
        self.partition = partition
        self.identity: ProducerIdentity | None = None
        """Given by the producer when `needs_identity`."""
        self.failure: Exception | None = None
        """Why the transaction cannot be committed: of what was given up, the first."""
        self._is_transactional = is_transactional
        self._settings = settings
        self._made = 0
        self._numbered = 0
        self._next_sequence = 0
        self._is_established = False  # the leader has taken a batch of the present identity
        self._written_serial = -1  # the highest that the leader has acknowledged
        self._lost: list[ProducerBatch] = []  # refused, and perhaps in the log: to be given up
        self._is_broken = False  # a sequence will never be written: those behind it wait for the next epoch
        self._builder: RecordBatchBuilder | None = None
        self._queue: deque[ProducerBatch] = deque()
        self._in_flight: list[ProducerBatch] = []
        # Without sequences nothing keeps the leader from taking what is sent behind a batch that has to be sent again.
        self._in_flight_max = settings.in_flight_max if settings.idempotent else 1

    def leave_transaction(self) -> None:
        """The transaction has ended with everything acknowledged; the partition has to be admitted to the next one."""
        self.identity = None

    # Adding.

    def append(
        self,
        record: tuple[int, bytes | None, bytes | None, tuple[Header, ...]],
        future: asyncio.Future[RecordMetadata],
        size_bytes: int,
        now: float,
    ) -> bool:
        """Adds a record (timestamp, key, value, headers) to the last batch, or to a new one.

        Whether that has begun or completed a batch: whether there may be something else to send than before.
        """
        is_news = False
        builder = self._builder
        if builder is not None:
            try:
                builder.append(*record)
            except RecordBatchFullError:
                self._close_last()
                builder = None
        if builder is None:
            builder = self._new_builder()
            builder.append(*record)
            self._begin_batch(builder, now)
            is_news = True
        batch = self._queue[-1]
        batch.records.append((future, record[0]))
        batch.record_count += 1
        batch.size_bytes += size_bytes
        if builder.size_bytes >= self._settings.batch_bytes:
            self._close_last()
            is_news = True
        return is_news

    def append_column(self, column: ValueColumn, fate: ColumnFate, timestamp_ms: int, now: float) -> bool:
        """As `append`, for many records at once. Batches have no more records than brokers check by columns, too."""
        is_news = False
        at = 0
        while at < len(column):
            builder = self._builder
            if builder is None:
                builder = self._new_builder()
            taken = append_column(builder, column, at, timestamp_ms, OFFSETS_OF_TWO_BYTES)
            if not taken:
                self._close_last()
                continue
            if builder is not self._builder:
                self._begin_batch(builder, now)
                is_news = True
            batch = self._queue[-1]
            batch.records.append((ColumnPart(fate, at, taken), timestamp_ms))
            batch.record_count += taken
            batch.size_bytes += column.bytes_of(at, at + taken)
            at += taken
            if builder.size_bytes >= self._settings.batch_bytes:
                self._close_last()
                is_news = True
        return is_news

    # Sending.

    @property
    def is_empty(self) -> bool:
        """Nothing waits, and nothing is in flight."""
        return not self._queue and not self._in_flight and not self._lost

    @property
    def last_order(self) -> tuple[int, ...]:
        """The place of the last batch that was begun."""
        return (self._made,)

    def is_pending(self, order: tuple[int, ...]) -> bool:
        """Whether a batch up to that place, halves of it included, waits or is in flight."""
        return any(batch.order[0] <= order[0] for batch in (*self._in_flight, *self._queue))

    @property
    def needs_identity(self) -> bool:
        """An idempotent producer has something to send, and needs a producer id for it."""
        return self._settings.idempotent and bool(self._queue) and self.identity is None

    def ready_at(self, now: float, *, is_flushing: bool) -> float | None:
        """From when on `take` gives a batch; None while that depends on something else than time."""
        if not self._queue or self.needs_identity or len(self._in_flight) >= self._in_flight_max:
            return None
        batch = self._next()
        if batch is None:
            return None
        if batch.identity is not None:
            # What is sent again goes alone, so that no more batches are uncertain than the leader remembers.
            return None if self._in_flight else batch.retry_at
        if self._settings.idempotent and self._in_flight and not self._may_follow:
            return None
        if batch.attempts or batch.data is not None or is_flushing:
            return batch.retry_at
        return batch.created_at + self._settings.linger_ms / 1_000 if self._settings.linger_ms else now

    @property
    def _may_follow(self) -> bool:
        """Whether a new batch may be sent while others are in flight: it must push none of them out of the leader's
        memory."""
        return (
            self._is_established
            and all(batch.attempts == 1 for batch in self._in_flight)
            and self._numbered - min(batch.serial for batch in self._in_flight) < self._settings.in_flight_max
        )

    @property
    def next_bytes(self) -> int:
        """About how large the batch is that `take` gives, and not less."""
        batch = self._next()
        if batch is None:
            return 0
        return batch.size_bytes if batch.data is None else len(batch.data)

    def take(self) -> ProducerBatch:
        """The next batch, with its bytes made and its sequence set, to be sent now; see `ready_at`."""
        batch = self._next()
        if batch is None:
            raise RuntimeError(f"no batch of {self.partition} may be sent now")
        if batch.data is None:
            self._close_last()
        self._queue.remove(batch)
        if self._settings.idempotent and batch.identity is None:
            self._number(batch)
        batch.attempts += 1
        batch.is_refused = False
        self._in_flight.append(batch)
        return batch

    # What became of it.

    def written(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        """The leader has acknowledged a batch in flight."""
        self._in_flight.remove(batch)
        if batch.identity == self.identity:
            self._is_established = True
        if batch.serial > self._written_serial:
            self._written_serial = batch.serial
        if self._is_broken:
            self._lose_refused()
        batch.succeed(base_offset, append_time_ms)

    def send_again(self, batch: ProducerBatch, retry_at: float, *, is_uncertain: bool) -> None:
        """A batch in flight was refused for a reason that passes, or there is no answer: then `is_uncertain`.

        A refusal tells of the last attempt only: what was uncertain before stays so.
        """
        self._in_flight.remove(batch)
        batch.is_uncertain = batch.is_uncertain or is_uncertain
        batch.retry_at = retry_at
        self._insert(batch)

    def out_of_sequence(self, batch: ProducerBatch, retry_at: float, *, is_fenced: bool = False) -> None:
        """The leader has refused the batch's sequence: this attempt has written nothing.

        If nothing ahead of it is on its way, there is a gap that nothing will fill. With `is_fenced` the leader knows
        a later epoch of the producer id: a new id is needed.

        Invariant: what may be in the log never goes under another epoch. An earlier attempt may be there if the leader
        knows something that was sent behind it: one that has started anew remembers the last batch of each producer
        only (that is what a snapshot has), and refuses the one before. What is uncertain behind it is asked first.
        """
        is_first = all(batch.order <= other.order for other in (*self._in_flight, *self._queue))
        batch.is_refused = True
        self.send_again(batch, retry_at, is_uncertain=False)
        if is_first or is_fenced:
            code = ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self._break(KafkaError(code, f"the leader of {self.partition}"))
        if is_fenced:
            self.identity = None
            self._is_established = False
        self._lose_refused()

    def give_up(self, batch: ProducerBatch, error: Exception) -> None:
        """A batch, in flight or waiting, fails for good."""
        if batch in self._in_flight:
            self._in_flight.remove(batch)
        else:
            self._queue.remove(batch)
            if batch.data is None:
                self._builder = None
        if batch.identity is not None or self._is_transactional:
            self._break(error)
        batch.fail(error)

    def split(self, batch: ProducerBatch) -> bool:
        """A batch in flight was too large for the topic: its halves take its place. False if it has one record only.

        False in a transaction too: what is behind it has its sequences already.
        """
        count = batch.record_count
        if count == 1 or batch.data is None or self._is_transactional:
            return False
        self._in_flight.remove(batch)
        records = list(read_records(batch.data, verify=False))
        if batch.identity is not None:
            self._is_broken = True
        halves: list[ProducerBatch] = []
        for part, waiting in zip(
            (slice(0, count // 2), slice(count // 2, count)), _halves(batch.records, count // 2), strict=True
        ):
            half = ProducerBatch(self.partition, (*batch.order, len(halves)), batch.created_at, batch.expires_at)
            half.records = waiting
            half.record_count = part.stop - part.start
            half.size_bytes = batch.size_bytes * half.record_count // count
            half.attempts = batch.attempts
            builder = RecordBatchBuilder(compression=self._settings.compression)
            for record in records[part]:
                builder.append(record.timestamp_ms, record.key, record.value, record.headers)
            half.data = builder.build()
            halves.append(half)
        halves[1].size_bytes = batch.size_bytes - halves[0].size_bytes
        for half in halves:
            self._insert(half)
        return True

    def expire(self, now: float) -> Iterator[ProducerBatch]:
        """Gives up what waits for longer than it may, and what was refused and may be in the log all the same; tells
        which batches that were.
        """
        lost, self._lost = self._lost, []
        for batch in lost:
            error = DeliveryTimeoutError(
                f"{batch.record_count} records for {self.partition} may or may not have been written: the leader "
                "refuses them, and has what was sent after them",
                may_be_written=True,
            )
            self._break(error)
            batch.fail(error)
            yield batch
        while self._queue and self._queue[0].expires_at <= now:
            batch = self._queue[0]
            self.give_up(
                batch,
                DeliveryTimeoutError(
                    f"{batch.record_count} records for {self.partition} were not acknowledged within "
                    f"{spoken_ms(self._settings.delivery_timeout_ms)} (delivery.timeout.ms), in {batch.attempts} "
                    "attempts",
                    may_be_written=batch.is_uncertain,
                ),
            )
            yield batch

    def next_expiry(self, now: float) -> float | None:
        """When the next batch, waiting or in flight, will have expired; None where none will. One in flight that has
        expired already is not counted: it is given up when it comes back.
        """
        times = (batch.expires_at for batch in (*self._in_flight, *self._queue))
        return min((when for when in times if when > now), default=None)

    def fail_all(self, error: Callable[[], Exception]) -> list[ProducerBatch]:
        """Everything fails: the producer is closed."""
        failed = [*self._lost, *self._in_flight, *self._queue]
        self._lost.clear()
        self._in_flight.clear()
        self._queue.clear()
        self._builder = None
        for batch in failed:
            batch.fail(error())
        return failed

    # Inside.

    def _break(self, error: Exception) -> None:
        """A sequence will never be written."""
        self._is_broken = True
        if self._is_transactional and self.failure is None:
            self.failure = error

    def _lose_refused(self) -> None:
        """What was refused, is uncertain, and lies before what the leader has, is there or will never be known."""
        for batch in [batch for batch in self._queue if batch.is_refused and batch.is_uncertain]:
            if batch.identity is not None and batch.serial < self._written_serial:
                self._queue.remove(batch)
                self._lost.append(batch)
                self._is_broken = True

    def _insert(self, batch: ProducerBatch) -> None:
        """Puts a batch into its place."""
        self._queue.insert(sum(other.order < batch.order for other in self._queue), batch)

    def _new_builder(self) -> RecordBatchBuilder:
        return RecordBatchBuilder(compression=self._settings.compression, limit_bytes=self._settings.batch_bytes)

    def _begin_batch(self, builder: RecordBatchBuilder, now: float) -> None:
        self._builder = builder
        self._made += 1
        expires_at = now + self._settings.delivery_timeout_ms / 1_000
        self._queue.append(ProducerBatch(self.partition, (self._made,), now, expires_at))

    def _close_last(self) -> None:
        if self._builder is not None:
            self._queue[-1].data = self._builder.build()
            self._builder = None

    def _number(self, batch: ProducerBatch) -> None:
        """Gives a batch the next sequence; a copy of it, since an old connection may still hold the bytes."""
        identity = self.identity
        if identity is None or batch.data is None:
            raise RuntimeError(f"a batch of {self.partition} was taken before it could be numbered")
        batch.identity = identity
        batch.serial = self._numbered
        self._numbered += 1
        batch.base_sequence = self._next_sequence
        self._next_sequence = increment_sequence(self._next_sequence, batch.record_count)
        if batch.attempts:
            batch.data = bytearray(batch.data)
        set_producer(
            batch.data,
            identity.producer_id,
            identity.epoch,
            batch.base_sequence,
            is_transactional=self._is_transactional,
        )

    def _next(self) -> ProducerBatch | None:
        """The batch to be sent next. After a gap those come first that are uncertain, since the answer to the same
        sequence tells what became of them; when all of them were refused, and nothing behind them was taken, they are
        not in the log, and a new epoch begins.
        """
        if self._is_broken and self._is_transactional:
            return None
        if self._is_broken:
            for batch in self._queue:
                if batch.identity is not None and batch.is_uncertain and not batch.is_refused:
                    return batch
            if self._in_flight:
                return None
            for batch in self._queue:
                batch.identity = None
                batch.is_uncertain = batch.is_refused = False
            self._is_broken = self._is_established = False
            self._next_sequence = 0
            if self.identity is not None:
                producer_id, epoch = self.identity.producer_id, self.identity.epoch
                self.identity = ProducerIdentity(producer_id, epoch + 1) if epoch < PRODUCER_EPOCH_MAX else None
                if self.identity is None:
                    return None
        return self._queue[0]


Waiting = list[tuple["asyncio.Future[RecordMetadata] | ColumnPart", int]]


def _halves(records: Waiting, count: int) -> tuple[Waiting, Waiting]:
    """Who waits for the first `count` records, and who for the others."""
    first: Waiting = []
    for place, (future, timestamp_ms) in enumerate(records):
        if not count:
            return first, records[place:]
        taken = future.record_count if isinstance(future, ColumnPart) else 1
        if isinstance(future, ColumnPart) and taken > count:
            fate, number, all_of_it = future
            rest = ColumnPart(fate, number + count, all_of_it - count)
            first.append((ColumnPart(fate, number, count), timestamp_ms))
            return first, [(rest, timestamp_ms), *records[place + 1 :]]
        first.append((future, timestamp_ms))
        count -= taken
    return first, []
