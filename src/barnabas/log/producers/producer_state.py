"""What a partition knows of its producers: idempotence, open transactions, and what is stable (KIP-98, KIP-360).

A plain state machine over the headers of batches, in the order of the log. An append goes in two steps: `prepare_...`
checks and changes nothing; `apply` takes over, after the batch has its place in the log. Replaying the same batches
with `replay` gives the same state, so snapshots and the log are enough to rebuild it.

What opens a transaction has to be verified with the coordinator (KIP-890), which somebody else asks: here is kept of
whom it is being asked, and what it has said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, final

from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import INT32_MAX, BatchHeader, increment_sequence
from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP

BATCHES_REMEMBERED: Final = 5
"""A producer has at most this many requests on their way, so a batch that comes twice is among so many last ones."""
LATE_TRANSACTION_MS: Final = 5 * 60 * 1000
"""A transaction counts as hanging when it is open so much longer than the longest time-out allowed."""
_AWAITED_MAX: Final = 1_000
"""Producers of which a batch is awaited; of more, those of which it is awaited for longest may come out of order."""


class ProducerStateError(Exception):
    """A batch that does not fit what is known of its producer; `error` is what the producer is told."""

    error: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR


class OutOfOrderSequenceError(ProducerStateError):
    """A batch is missing before this one."""

    error = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(ProducerStateError):
    """A newer instance of the producer has written already."""

    error = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTransactionStateError(ProducerStateError):
    """A batch outside of the transaction that its producer has open."""

    error = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFencedError(ProducerStateError):
    """A marker of a coordinator that a newer one has replaced."""

    error = ErrorCode.TRANSACTION_COORDINATOR_FENCED


@final
class BatchMetadata(NamedTuple):
    """One of the last batches of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return increment_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


BatchFields = tuple[int, int, int, int]
"""The fields of a BatchMetadata."""


class ProducerEntry(NamedTuple):
    """What is known of one producer."""

    producer_id: int
    epoch: int = NO_EPOCH
    batches: tuple[BatchFields, ...] = ()
    """The last ones of this epoch, oldest first, at most BATCHES_REMEMBERED."""
    timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_EPOCH
    transaction_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][0] if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int | None:
        """Of the last batch; None where none is known."""
        return self.batches[-1][1] if self.batches else None


ProducerFields = tuple[int, int, tuple[BatchFields, ...], int, int, "int | None"]
"""The fields of a ProducerEntry. A plain tuple is what is kept, because one is made for every batch of an idempotent
producer, and takes a third of the time."""


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    is_aborted: bool


class Update(NamedTuple):
    """What an append changes, once it has happened."""

    entry: ProducerEntry
    completed: CompletedTransaction | None


@dataclass(slots=True)
class _Transaction:
    producer_id: int
    first_offset: int
    last_offset: int | None = None


class Verification:
    """A question to the transaction coordinator, whether a producer's transaction has this partition (KIP-890); of all
    who ask it at a time. What it is told counts only while it is the one that the partition has.
    """

    __slots__ = ("epoch", "is_verified", "producer_id", "users")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.is_verified = False
        self.users = 0


@dataclass(slots=True)
class ProducerState:
    """The producers of one partition.

    `expiration_ms` is `producer.id.expiration.ms`, `transaction_timeout_max_ms` is `transaction.max.timeout.ms`.
    """

    expiration_ms: int = 86_400_000
    transaction_timeout_max_ms: int = 900_000
    end_offset: int = 0
    """Up to where (exclusive) the state reflects the log; what a snapshot is named by."""
    changed_end_offset: int = field(default=0, compare=False)
    """The end of the last batch that has changed anything: a log that is cut off behind it keeps its state."""
    _producers: dict[int, ProducerFields] = field(default_factory=dict)
    _ongoing: dict[int, _Transaction] = field(default_factory=dict)  # by first offset, in that order
    _unreplicated: dict[int, _Transaction] = field(default_factory=dict)  # ended by a marker above the high watermark

    _verifications: dict[int, Verification] = field(default_factory=dict, compare=False, repr=False)
    _awaited: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)
    """Epoch and lowest sequence of what was to be verified, of each producer that has written nothing since."""

    # Verifying.

    def begin_verification(self, producer_id: int, epoch: int, sequence: int) -> Verification | None:
        """Of a producer whose batch would be the first of its transaction here; None where that is open here already.

        Invariant: the first batch of a transaction comes into the log only after the coordinator has said that the
        transaction has this partition, and so will end it here, and no marker of the producer was written since the
        question: that would have been the end of it. Whoever begins ends it, when the batch is in the log or refused.

        `sequence` is the batch's. Where the coordinator cannot be asked a producer sends the batch again, and those
        behind it do not come first (Kafka's VerificationStateEntry): a partition that knows nothing of a producer
        would take them, and refuse the first one for good.
        """
        if self._is_in_transaction(self.get(producer_id), epoch):
            return None
        self._await(producer_id, epoch, sequence)
        verification = self._verifications.get(producer_id)
        if verification is None or verification.epoch < epoch:
            verification = self._verifications[producer_id] = Verification(producer_id, epoch)
        elif verification.epoch > epoch:
            verification = Verification(producer_id, epoch)  # of no use: another has come
        verification.users += 1
        return verification

    def end_verification(self, verification: Verification) -> None:
        """Once for each `begin_verification`."""
        verification.users -= 1
        if not verification.users and self._verifications.get(verification.producer_id) is verification:
            del self._verifications[verification.producer_id]

    def _await(self, producer_id: int, epoch: int, sequence: int) -> None:
        awaited = self._awaited.get(producer_id)
        if awaited is None:
            if len(self._awaited) >= _AWAITED_MAX:
                del self._awaited[next(iter(self._awaited))]
            self._awaited[producer_id] = epoch, sequence
        elif awaited[0] < epoch or (awaited[0] == epoch and awaited[1] > sequence):
            self._awaited[producer_id] = epoch, sequence

    def _check_awaited(self, header: BatchHeader, offset: int) -> None:
        epoch, sequence = self._awaited.get(header.producer_id, (NO_EPOCH, NO_SEQUENCE))
        if epoch == header.producer_epoch and header.base_sequence > sequence:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} at offset {offset}: sequence {header.base_sequence} comes before"
                f" {sequence}, whose transaction could not be verified yet"
            )

    def _check_verified(self, header: BatchHeader, offset: int) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self._is_in_transaction(self.get(producer_id), epoch):
            return
        verification = self._verifications.get(producer_id)
        if verification is None or verification.epoch != epoch or not verification.is_verified:
            raise InvalidTransactionStateError(
                f"producer {producer_id} at offset {offset} has no open transaction that has this partition"
            )

    @staticmethod
    def _is_in_transaction(entry: ProducerEntry | None, epoch: int) -> bool:
        return entry is not None and entry.transaction_first_offset is not None and entry.epoch == epoch

    # Appending.

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch that is in the log already, when this one repeats it (a producer that has seen no answer)."""
        entry = self.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        first_sequence, last_sequence = header.base_sequence, header.last_sequence
        for batch in map(BatchMetadata._make, entry.batches):
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None

    def check_client(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> ProducerFields | BatchMetadata:
        """`find_duplicate` and `prepare_client` in one: the duplicate that the batch repeats, or what becomes of the
        producer, for `apply_clients`.
        """
        known, delta = self._producers.get(header.producer_id), header.last_offset_delta
        if known is not None and not header.is_transactional:
            epoch, sequence = header.producer_epoch, header.base_sequence
            found = next_of(known, epoch, sequence, delta, base_offset + delta, timestamp_ms)
            if found is not None:
                return found
        return self.find_duplicate(header) or self.prepare_client(header, base_offset, timestamp_ms)

    def prepare_client(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> ProducerEntry:
        """Checks a batch of a client, with epoch and sequence, that would get `base_offset`; changes nothing.

        `timestamp_ms` is the largest in the batch, as it will be stored. Raises InvalidProducerEpochError,
        OutOfOrderSequenceError, InvalidTransactionStateError.
        """
        if header.is_transactional:
            self._check_verified(header, base_offset)
        entry = self._known(header.producer_id)
        _check_epoch(entry, header.producer_epoch, base_offset)
        if self._awaited:
            self._check_awaited(header, base_offset)
        _check_sequence(entry, header, base_offset)
        return _with_batch(entry, header, base_offset, timestamp_ms).entry

    def prepare_coordinator(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> Update:
        """As `prepare_client` for a batch that a coordinator of this broker writes for a producer: offsets that are
        committed in a transaction have an epoch and no sequence.
        """
        if header.is_transactional:
            self._check_verified(header, base_offset)
        entry = self._known(header.producer_id)
        _check_epoch(entry, header.producer_epoch, base_offset)
        return _with_batch(entry, header, base_offset, timestamp_ms)

    def prepare_marker(
        self, header: BatchHeader, marker: EndTransactionMarker, offset: int, timestamp_ms: int
    ) -> Update:
        """Checks the end of a transaction that would be written at `offset`; changes nothing.

        Raises InvalidProducerEpochError and TransactionCoordinatorFencedError.
        """
        entry = self._known(header.producer_id)
        _check_epoch(entry, header.producer_epoch, offset)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"marker of coordinator epoch {marker.coordinator_epoch} for producer {header.producer_id} at offset"
                f" {offset} comes after one of epoch {entry.coordinator_epoch}"
            )
        return _with_marker(entry, header.producer_epoch, marker, offset, timestamp_ms)

    def replay(self, header: BatchHeader, marker: EndTransactionMarker | None) -> AbortedTransaction | None:
        """Takes over a batch that a leader has accepted: from a Fetch response, or from the log at recovery.

        `marker` is what a control batch holds; None for a data batch and for a control batch whose marker the cleaner
        has removed. Returns the entry for the transaction index, when the batch aborts a transaction.
        """
        completed = None
        if header.has_producer_id:
            entry = self._known(header.producer_id)
            timestamp_ms = header.max_timestamp_ms
            if marker is not None:
                update = _with_marker(entry, header.producer_epoch, marker, header.base_offset, timestamp_ms)
                completed = self._take(update)
            elif not header.is_control:
                completed = self._take(_with_batch(entry, header, header.base_offset, timestamp_ms))
            self.changed_end_offset = header.last_offset + 1
        self.end_offset = header.last_offset + 1
        return completed

    def apply(self, update: Update, end_offset: int) -> AbortedTransaction | None:
        """Takes over what was prepared, now that it is in the log, which ends at `end_offset`.

        Returns the entry for the transaction index, when the batch aborts a transaction.
        """
        aborted = self._take(update)
        self.end_offset = self.changed_end_offset = end_offset
        return aborted

    def apply_clients(self, producers: Mapping[int, ProducerFields], end_offset: int) -> None:
        """`apply` for what batches of clients, none of a transaction, make of their producers, by id."""
        self._producers.update(producers)
        for awaited in (self._verifications, self._awaited):
            if awaited:
                for producer_id in producers:
                    awaited.pop(producer_id, None)
        self.end_offset = self.changed_end_offset = end_offset

    def _known(self, producer_id: int) -> ProducerEntry:
        return self.get(producer_id) or ProducerEntry(producer_id)

    def _take(self, update: Update) -> AbortedTransaction | None:
        entry, completed = update
        self._producers[entry[0]] = entry
        if self._verifications:
            # The transaction is open here now, or has ended.
            self._verifications.pop(entry[0], None)
        if self._awaited:
            self._awaited.pop(entry[0], None)
        if completed is None:
            first_offset = entry.transaction_first_offset
            if first_offset is not None and first_offset not in self._ongoing:
                self._ongoing[first_offset] = _Transaction(entry.producer_id, first_offset)
            return None
        transaction = self._ongoing.pop(completed.first_offset)
        # What is stable after this marker, were all of it replicated: a reader may stop its search there.
        last_stable_offset = next(iter(self._ongoing), completed.last_offset + 1)
        transaction.last_offset = completed.last_offset
        self._unreplicated[completed.first_offset] = transaction
        if not completed.is_aborted:
            return None
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset
        )

    # What consumers may see.

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the first transaction begins that is open, or whose marker is not below the high watermark."""
        ongoing = next(iter(self._ongoing), None)
        unreplicated = min(self._unreplicated, default=None)
        if ongoing is None or unreplicated is None:
            return unreplicated if ongoing is None else ongoing
        return min(ongoing, unreplicated)

    @property
    def is_stable(self) -> bool:
        """Whether no transaction keeps consumers back."""
        return not self._ongoing and not self._unreplicated

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Ends the wait of the transactions whose markers are replicated."""
        if self._unreplicated:
            self._unreplicated = {
                first_offset: transaction
                for first_offset, transaction in self._unreplicated.items()
                if transaction.last_offset is None or transaction.last_offset >= high_watermark
            }

    def log_start_moved(self, log_start_offset: int) -> None:
        """Forgets what waits below the new start of the log."""
        self.high_watermark_moved(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)

    def has_late_transaction(self, now_ms: int) -> bool:
        """Whether the oldest open transaction hangs: its producer has written nothing for longer than it may live."""
        oldest = next(iter(self._ongoing.values()), None)
        entry = None if oldest is None else self.get(oldest.producer_id)
        if entry is None or entry.timestamp_ms <= 0:
            return False
        return now_ms - entry.timestamp_ms > self.transaction_timeout_max_ms + LATE_TRANSACTION_MS

    # The table.

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerEntry]:
        """All producers, for DescribeProducers."""
        return map(ProducerEntry._make, self._producers.values())

    def fields(self, producer_id: int) -> ProducerFields | None:
        """As `get`."""
        return self._producers.get(producer_id)

    def get(self, producer_id: int) -> ProducerEntry | None:
        entry = self._producers.get(producer_id)
        return None if entry is None else ProducerEntry._make(entry)

    def remove_expired(self, now_ms: int) -> None:
        """Forgets producers without open transaction that have written nothing for `expiration_ms`."""
        expired = [entry[0] for entry in self._producers.values() if self._is_expired(entry, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]

    def _is_expired(self, entry: ProducerFields, now_ms: int) -> bool:
        _, _, _, timestamp_ms, _, transaction_first_offset = entry
        return transaction_first_offset is None and now_ms - timestamp_ms >= self.expiration_ms

    def clear(self, end_offset: int) -> None:
        """Starts anew with a log that ends at `end_offset`."""
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.end_offset = end_offset
        self.changed_end_offset = 0

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """The entries of a snapshot at `end_offset`."""
        return [_snapshot_entry(entry) for entry in self._producers.values()]

    def load(self, entries: Iterable[ProducerSnapshotEntry], end_offset: int, now_ms: int) -> None:
        """Starts from a snapshot; producers that have expired are left out."""
        self.clear(end_offset)
        for stored in entries:
            entry = _entry_of_snapshot(stored)
            if not self._is_expired(entry, now_ms):
                self._producers[entry.producer_id] = entry
        if self._producers:
            self.changed_end_offset = end_offset
        begun = [entry for entry in self if entry.transaction_first_offset is not None]
        for entry in sorted(begun, key=lambda each: each.transaction_first_offset or 0):
            first_offset = entry.transaction_first_offset or 0
            self._ongoing[first_offset] = _Transaction(entry.producer_id, first_offset)


def next_of(
    known: ProducerFields,
    producer_epoch: int,
    base_sequence: int,
    last_offset_delta: int,
    last_offset: int,
    timestamp_ms: int,
) -> ProducerFields | None:
    """`ProducerState.check_client` for what nearly every batch is: the next one of a producer that is known, outside
    of transactions. None for all else, good or bad.
    """
    producer_id, epoch, batches, _, coordinator_epoch, first_offset = known
    if (
        epoch != producer_epoch
        or not batches
        or base_sequence != (batches[-1][0] + 1) & INT32_MAX
        or first_offset is not None
    ):
        return None
    batch = (base_sequence + last_offset_delta) & INT32_MAX, last_offset, last_offset_delta, timestamp_ms
    if len(batches) == BATCHES_REMEMBERED:
        _, second, third, fourth, fifth = batches
        batches = second, third, fourth, fifth, batch
    else:
        batches += (batch,)
    return producer_id, producer_epoch, batches, timestamp_ms, coordinator_epoch, None


def _check_epoch(entry: ProducerEntry, epoch: int, offset: int) -> None:
    if epoch < entry.epoch:
        raise InvalidProducerEpochError(
            f"producer {entry.producer_id} at offset {offset} has epoch {epoch}, and epoch {entry.epoch} has written"
            " already"
        )


def _check_sequence(entry: ProducerEntry, header: BatchHeader, offset: int) -> None:
    """A new epoch begins with 0, an old one goes on without a gap; a producer of whom nothing is left may go on
    anywhere, since retention may have removed what it wrote before.
    """
    if entry.epoch == NO_EPOCH:
        return
    first = header.base_sequence
    if header.producer_epoch != entry.epoch:
        if first != 0:
            raise OutOfOrderSequenceError(
                f"producer {entry.producer_id} at offset {offset} begins epoch {header.producer_epoch} with sequence"
                f" {first}, not 0"
            )
        return
    expected = increment_sequence(entry.last_sequence, 1)
    if first != expected:
        raise OutOfOrderSequenceError(
            f"producer {entry.producer_id} at offset {offset} sent sequence {first} where {expected} is next"
        )


def _with_batch(entry: ProducerEntry, header: BatchHeader, base_offset: int, timestamp_ms: int) -> Update:
    delta = header.last_offset_delta
    first_offset = entry.transaction_first_offset
    if header.is_transactional:
        first_offset = base_offset if first_offset is None else first_offset
    elif first_offset is not None:
        raise InvalidTransactionStateError(
            f"producer {entry.producer_id} wrote outside of its transaction at offset {base_offset}, while the one"
            f" that began at {first_offset} is open"
        )
    known = entry.batches[1 - BATCHES_REMEMBERED :] if header.producer_epoch == entry.epoch else ()
    batch = BatchMetadata(header.last_sequence, base_offset + delta, delta, timestamp_ms)
    updated = ProducerEntry(
        entry.producer_id, header.producer_epoch, (*known, batch), timestamp_ms, entry.coordinator_epoch, first_offset
    )
    return Update(updated, None)


def _with_marker(
    entry: ProducerEntry, epoch: int, marker: EndTransactionMarker, offset: int, timestamp_ms: int
) -> Update:
    first_offset = entry.transaction_first_offset
    completed = None
    if first_offset is not None:
        is_aborted = marker.type is ControlRecordType.ABORT
        completed = CompletedTransaction(entry.producer_id, first_offset, offset, is_aborted)
    batches = entry.batches if epoch == entry.epoch else ()
    return Update(ProducerEntry(entry.producer_id, epoch, batches, timestamp_ms, marker.coordinator_epoch), completed)


def _snapshot_entry(entry: ProducerFields) -> ProducerSnapshotEntry:
    producer_id, epoch, batches, timestamp_ms, coordinator_epoch, first_offset = entry
    last_sequence, last_offset, offset_delta, _ = batches[-1] if batches else (NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
    return ProducerSnapshotEntry(
        producer_id,
        epoch,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp_ms,
        coordinator_epoch,
        NO_OFFSET if first_offset is None else first_offset,
    )


def _entry_of_snapshot(stored: ProducerSnapshotEntry) -> ProducerEntry:
    batches: tuple[BatchFields, ...] = ()
    if stored.last_offset >= 0:
        batches = (BatchMetadata(stored.last_sequence, stored.last_offset, stored.offset_delta, stored.timestamp_ms),)
    first_offset = stored.transaction_first_offset
    return ProducerEntry(
        stored.producer_id,
        stored.epoch,
        batches,
        stored.timestamp_ms,
        stored.coordinator_epoch,
        None if first_offset < 0 else first_offset,
    )
