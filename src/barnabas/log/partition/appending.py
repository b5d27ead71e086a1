"""What an append to a log gives and how it is refused, and the checks of a follower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.kernel.host import Buffer
from barnabas.log.producers.producer_state import ProducerStateError
from barnabas.log.segments.segment import BatchPlace
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.byte_work import WorkSteps
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import CorruptRecordError, InvalidRecordError, RecordError, RecordsError
from barnabas.wire.record_validation import AppendRules, ValidatedBatch
from barnabas.wire.records import Batch, walk_batches
from barnabas.wire.sentinels import NO_OFFSET


class AppendResult(NamedTuple):
    """Where records are in the log."""

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    """Of a topic with LogAppendTime; -1 otherwise. Of a duplicate, the timestamp it has in the log, as in Kafka."""
    log_start_offset: int
    record_count: int
    size_bytes: int
    is_duplicate: bool
    """The records were in the log already: a producer has sent them again, not knowing that they had come."""
    converted_count: int
    uncompressed_bytes: int


AppendedBatch = tuple[int, int, int, int, int, int, int, bool, int, int]
"""The fields of an AppendResult, of batches that are appended together: to make one takes a third of the time."""


class AppendedTogether:
    """What became of batches that clients have sent, in their order, and figures of those that were appended."""

    __slots__ = ("converted_count", "error_count", "outcomes", "record_count", "sent_bytes")

    def __init__(self) -> None:
        self.outcomes: list[AppendedBatch | AppendError] = []
        self.error_count = self.record_count = self.sent_bytes = self.converted_count = 0

    @classmethod
    def refused(cls, error: AppendError, count: int) -> AppendedTogether:
        """So many of them, for the same reason."""
        together = cls()
        together.outcomes = [error] * count
        together.error_count = count
        return together

    def join(self, others: AppendedTogether) -> None:
        """Those that follow."""
        self.outcomes += others.outcomes
        self.error_count += others.error_count
        self.record_count += others.record_count
        self.sent_bytes += others.sent_bytes
        self.converted_count += others.converted_count

    def add(self, outcome: AppendedBatch | AppendError, sent_bytes: int) -> None:
        """Of one batch, of so many bytes as it was sent, whatever is stored of it."""
        self.outcomes.append(outcome)
        if isinstance(outcome, AppendError):
            self.error_count += 1
            return
        self.record_count += outcome[5]
        self.sent_bytes += sent_bytes
        self.converted_count += outcome[8]


class Validation(NamedTuple):
    """A batch that is checked in steps, between which anything may happen to the log."""

    rules: AppendRules
    """Of the topic, when it began."""
    steps: WorkSteps[ValidatedBatch]


class AppendError(KafkaError):
    """Records that a leader refuses; nothing was appended."""

    def __init__(
        self,
        code: int,
        detail: str | None = None,
        *,
        record_errors: tuple[RecordError, ...] = (),
        log_start_offset: int = -1,
    ) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors
        """The records at fault, where single ones are (KIP-467)."""
        self.log_start_offset = log_start_offset

    @classmethod
    def of_records(cls, error: RecordsError, log_start_offset: int) -> AppendError:
        """For what the validation has found."""
        record_errors = error.record_errors if isinstance(error, InvalidRecordError) else ()
        if error.is_of_request:
            log_start_offset = NO_OFFSET
        return cls(error.error, str(error), record_errors=record_errors, log_start_offset=log_start_offset)

    @classmethod
    def of_producer(cls, error: ProducerStateError, log_start_offset: int) -> AppendError:
        """For what does not fit the state of its producer."""
        return cls(error.error, str(error), log_start_offset=log_start_offset)


class UnexpectedOffsetError(Exception):
    """Records from a leader do not begin where the follower's log ends or later."""

    def __init__(self, first_offset: int, log_end_offset: int) -> None:
        super().__init__(f"the leader sent offset {first_offset}; this log ends at {log_end_offset}")
        self.first_offset = first_offset
        self.log_end_offset = log_end_offset


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """What a follower appends of a Fetch response: checked, whole batches."""

    records: memoryview
    batches: Sequence[Batch]
    places: Sequence[BatchPlace]
    first_offset: int
    last_offset: int
    max_timestamp_ms: int


def check_fetched(records: Buffer, log_end_offset: int, leader_epoch: int | None) -> FetchedRecords | None:
    """The batches that a follower may append at `log_end_offset`; None where there is none.

    A partial batch at the end is left out, and so is everything from the first batch on whose leader epoch is above
    `leader_epoch`: a newer leader has written it, and its answer must not be taken for the older one's.

    Raises CorruptRecordError for a checksum or frame that is wrong and for offsets that do not increase, and
    UnexpectedOffsetError.
    """
    view = memoryview(records)
    batches: list[Batch] = []
    places: list[BatchPlace] = []
    next_offset = log_end_offset
    end = 0
    max_timestamp_ms = -1
    for span in walk_batches(view).spans:
        batch = batch_at(view, span)
        batch.verify()
        if (
            leader_epoch is not None
            and isinstance(batch, RecordBatch)
            and batch.header.partition_leader_epoch > leader_epoch
        ):
            break
        last_offset = batch.last_offset
        if not batches and batch.base_offset < log_end_offset:
            raise UnexpectedOffsetError(batch.base_offset, log_end_offset)
        if not next_offset <= batch.base_offset <= last_offset:
            raise CorruptRecordError(
                f"the leader sent a batch of the offsets {batch.base_offset} to {last_offset} where {next_offset} or"
                " later must follow"
            )
        next_offset = last_offset + 1
        end = span.position + span.size_bytes
        max_timestamp_ms = max(max_timestamp_ms, batch.max_timestamp_ms)
        batches.append(batch)
        places.append((span.size_bytes, last_offset, batch.max_timestamp_ms))
    if not batches:
        return None
    return FetchedRecords(view[:end], batches, places, batches[0].base_offset, next_offset - 1, max_timestamp_ms)


def storage_error(path: str, reason: object) -> KafkaError:
    """What everybody is told who needs a log directory that has failed."""
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline: {reason}")
