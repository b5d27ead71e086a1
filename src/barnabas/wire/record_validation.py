"""What a leader checks before it appends: the records of a Produce request, or of a coordinator of its own, become one
batch of magic 2.

Two steps, so that the work may be done off the event loop and the decision on it. `validate_records` is a pure function
of the bytes and the rules; it decompresses, looks at every record, and converts where it must. `assign_offsets` stores
what is only known at the moment of the append: a few bytes in the header, and the checksum where a timestamp changes.

The checks, their order and their errors are those of Kafka 3.9 with three differences. What Kafka would let into the
log although its invariants forbid it is refused (a batch from a client that has a delete horizon, or is transactional
without a producer id) or put right (offset deltas that are not 0, 1, 2, ... in uncompressed batches are renumbered,
which Kafka does for compressed ones). At most 100 records are named in an error. And logs are only written in magic 2:
`log.message.format.version` below 0.11 is not available, as it is not in Kafka from inter.broker.protocol.version 3.0
on (KIP-724).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from barnabas.wire import crc
from barnabas.wire.byte_work import TakesLongError, WorkSteps, at_once_max, run_at_once, run_first_step
from barnabas.wire.compression import decompress
from barnabas.wire.compression_types import DEFAULT_DECOMPRESSED_BYTES_MAX, Buffer, Compression, CompressionType
from barnabas.wire.legacy_records import MESSAGES_PER_STEP, LegacyBatch
from barnabas.wire.record_batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    CHECKSUMMED_FROM,
    HEADER,
    BatchHeader,
    RecordBatch,
    assign_offset_and_epoch,
    read_batch_header,
    set_max_timestamp,
)
from barnabas.wire.record_conversion import RECORDS_PER_STEP, rebuild_in_steps
from barnabas.wire.record_errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    RecordsError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from barnabas.wire.record_scan import (
    SCANNED_AT_ONCE_MAX,
    RecordScan,
    scan_in_steps,
    scan_one_record,
    scan_usual,
)
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V2, BatchSpan, Record, TimestampType, walk_batches
from barnabas.wire.sentinels import NO_PRODUCER_ID, NO_TIMESTAMP

RECORD_ERRORS_MAX: Final = 100
"""The most records that one error names; the response would otherwise be many times as large as the request."""

SMALLEST_RECORD_BYTES: Final = 7
"""A record without key, value and headers: its size and six fields of one byte."""

_MAGIC_2_SINCE_PRODUCE_VERSION: Final = 3
_ZSTD_SINCE_PRODUCE_VERSION: Final = 7
_INT64_MAX: Final = (1 << 63) - 1
_UNUSUAL_ATTRIBUTES: Final = ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_CONTROL | ATTRIBUTE_DELETE_HORIZON
_SIZE_AND_MAGIC: Final = struct.Struct(">8xi4xb")
_header_and_record_at: Final = struct.Struct(f"{HEADER.format}HI").unpack_from
"""The header, and of the first record what `scan_one_record` wants to know."""
_SMALLEST_BATCH_BYTES: Final = BATCH_HEADER_BYTES + SMALLEST_RECORD_BYTES
_WALKED_PER_STEP: Final = 8192
_COPIED_BYTES_MAX: Final = 2048
"""So few are copied for their checksum, which costs less than a view of them."""
_new_tuple: Final = tuple.__new__

Item = TypeVar("Item")
Result = TypeVar("Result")


class AppendOrigin(enum.Enum):
    """Who made the records; a coordinator of this broker may write control batches."""

    CLIENT = enum.auto()
    COORDINATOR = enum.auto()


# Members of an enum are slow to reach by name in Python 3.11, and these are wanted for every batch.
_CLIENT: Final = AppendOrigin.CLIENT
_LOG_APPEND_TIME: Final = TimestampType.LOG_APPEND_TIME


@dataclass(frozen=True, slots=True)
class AppendRules:
    """The configuration of the topic, as far as it concerns a batch. Defaults are Kafka's."""

    batch_bytes_max: int = 1_048_588
    """`max.message.bytes`."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    """`message.timestamp.type`."""
    timestamp_before_max_ms: int = _INT64_MAX
    """`message.timestamp.before.max.ms`."""
    timestamp_after_max_ms: int = _INT64_MAX
    """`message.timestamp.after.max.ms`."""
    is_compacted: bool = False
    """Whether `cleanup.policy` contains compact, so that every record needs a key."""
    compression: Compression | None = None
    """`compression.type` and the level of it; None for "producer"."""
    decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX
    """What the records of one batch may become."""

    @property
    def records_max(self) -> int:
        """How many records one batch may have: as many as fit into `batch_bytes_max` uncompressed.

        Each is looked at on the event loop, and a few hundred compressed bytes can hold millions of empty ones. The
        error is that of a batch that is too large, on which Kafka's producers split it.
        """
        return self.batch_bytes_max // SMALLEST_RECORD_BYTES


class ValidatedBatch(NamedTuple):
    """One batch of magic 2 that may be appended once `assign_offsets` has been called on it. A tuple, because one is
    made for every batch that is produced.
    """

    records: bytearray | memoryview
    """The bytes of the batch: new memory where it was rebuilt, otherwise those that were given."""
    header: BatchHeader
    max_timestamp_ms: int
    """The largest timestamp of the records (CREATE_TIME); `assign_offsets` corrects the header where the producer had
    it wrong.
    """
    timestamp_type: TimestampType
    converted_count: int
    """Records that were written anew: converted from an older format, compressed again or renumbered (the metrics of
    KIP-188).
    """
    uncompressed_bytes: int
    """Header and records, decompressed."""

    @property
    def record_count(self) -> int:
        return self.header.record_count


UsualBatch = tuple["bytearray | memoryview", int, int, int, int, int, int, int, int]
"""Of a batch as nearly every producer sends it: its bytes, attributes, count of records, the largest timestamp that its
header names, producer id, epoch and base sequence; then the largest that it has, and its size when it is decompressed.
A plain tuple, since to make a ValidatedBatch with its header takes half as long as to check one record."""


def check_produce_version(buffer: Buffer, version: int) -> None:
    """Checks what a Produce request of `version` may carry for one partition.

    Since version 3 that is exactly one batch, of magic 2, and zstd only since version 7. Raises InvalidRecordError,
    UnsupportedCompressionTypeError, and CorruptRecordError for what is no batch.
    """
    if version < _MAGIC_2_SINCE_PRODUCE_VERSION:
        return
    if version >= _ZSTD_SINCE_PRODUCE_VERSION and _is_one_batch(buffer):
        return
    spans = walk_batches(buffer, batches_max=2).spans
    if len(spans) != 1:
        raise InvalidRecordError(
            f"Produce version {version} carries exactly one batch for each partition, not {'more' if spans else 'none'}"
        )
    if spans[0].magic != MAGIC_V2:
        raise InvalidRecordError(f"Produce version {version} carries batches of magic 2, not {spans[0].magic}")
    header = read_batch_header(buffer, spans[0].position)
    if version < _ZSTD_SINCE_PRODUCE_VERSION and header.compression_type is CompressionType.ZSTD:
        raise UnsupportedCompressionTypeError(
            f"Produce version {version} cannot carry zstd; version {_ZSTD_SINCE_PRODUCE_VERSION} can"
        )


def _is_one_batch(buffer: Buffer) -> bool:
    """Whether the buffer is exactly one batch of magic 2, by its size field; False may also mean that it is none."""
    if len(buffer) < BATCH_HEADER_BYTES:
        return False
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer)
    return bool(magic == MAGIC_V2 and size + LOG_OVERHEAD_BYTES == len(buffer))


def validate_records(
    buffer: Buffer,
    rules: AppendRules,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    produce_version: int | None = None,
    *,
    only_at_once: bool = False,
) -> ValidatedBatch:
    """Checks the batches in the buffer and makes one batch of magic 2 of them, in place where that is possible. Nothing
    in the buffer is changed.

    With `produce_version`, `check_produce_version` comes first.

    A partial batch at the end is ignored. Raises

    - CorruptRecordError: a size or checksum is wrong;
    - RecordTooLargeError: a batch exceeds `batch_bytes_max`, before or after it was rebuilt, or its records exceed
    `decompressed_bytes_max` or `records_max`;
    - UnsupportedCompressionTypeError: the codec is none of the five;
    - InvalidTimestampError: timestamps outside of the allowed range, or of the broker's type, which only a broker may
    set;
    - InvalidRecordError: anything else that a producer must not send; `record_errors` names the records where single
    ones are at fault.
    With `only_at_once`, TakesLongError is raised where `validate_in_steps` has more than one step.
    """
    usual = validate_usual(buffer, rules, now_ms, produce_version, only_at_once)
    if usual is not None:
        return validated(usual, rules)
    steps = validate_in_steps(buffer, rules, now_ms, origin, produce_version)
    return run_first_step(steps) if only_at_once else run_at_once(steps)


def validate_in_steps(
    buffer: Buffer,
    rules: AppendRules,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    produce_version: int | None = None,
) -> WorkSteps[ValidatedBatch]:
    """As `validate_records`, in steps of some milliseconds each. The buffer must not change meanwhile."""
    if produce_version is not None:
        _check_request(buffer, produce_version)
    spans = yield from _spans(buffer, rules)
    if spans[0].magic == MAGIC_V2:
        validated = yield from _validate_batch(buffer, spans, rules, now_ms, origin)
    else:
        validated = yield from _validate_messages(buffer, spans, rules, now_ms)
    if validated.converted_count and len(validated.records) > rules.batch_bytes_max:
        raise _too_large(len(validated.records), rules)
    return validated


def _spans(buffer: Buffer, rules: AppendRules) -> WorkSteps[list[BatchSpan]]:
    spans: list[BatchSpan] = []
    position = 0
    while True:
        walk = walk_batches(buffer, position, batches_max=_WALKED_PER_STEP)
        spans += walk.spans
        if len(walk.spans) < _WALKED_PER_STEP:
            break
        position = walk.end_position
        yield None
    if not spans:
        raise InvalidRecordError("there is no batch")
    largest = 0
    for start in range(0, len(spans), _WALKED_PER_STEP):
        largest = max(largest, *(span.size_bytes for span in spans[start : start + _WALKED_PER_STEP]))
        if largest > rules.batch_bytes_max:
            raise _too_large(largest, rules)
    return spans


def assign_offsets(batch: ValidatedBatch, base_offset: int, partition_leader_epoch: int, now_ms: int) -> int:
    """Stores offset, leader epoch and timestamps in the batch, whose memory must be writable, and returns the last
    offset.

    With LOG_APPEND_TIME, `now_ms` becomes the timestamp of all records; otherwise it is not used.
    """
    records, header, max_timestamp_ms, timestamp_type, _, _ = batch
    assign_offset_and_epoch(records, 0, base_offset, header.length_bytes, partition_leader_epoch)
    if timestamp_type is _LOG_APPEND_TIME:
        set_max_timestamp(records, 0, header, timestamp_type, now_ms)
    elif header.max_timestamp_ms != max_timestamp_ms or header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        set_max_timestamp(records, 0, header, timestamp_type, max_timestamp_ms)
    return base_offset + header.last_offset_delta


def _check_request(buffer: Buffer, produce_version: int) -> None:
    try:
        check_produce_version(buffer, produce_version)
    except RecordsError as error:
        error.is_of_request = True
        raise


def validate_usual(
    buffer: Buffer, rules: AppendRules, now_ms: int, produce_version: int | None = None, only_at_once: bool = False
) -> UsualBatch | None:
    """`validate_records` for what nearly every producer sends, without the steps that only other batches need: the
    buffer is one batch of magic 2, in the codec that the topic wants, with nothing unusual in its header.

    None for all else, good or bad: then `validate_records` goes the long way, which alone knows the order in which
    faults are named. Only what is wrong with the records inside is raised here, since nothing could be named before it.
    With `only_at_once`, TakesLongError where it is clear that the long way has several steps: nothing is tried twice.
    """
    size_bytes = len(buffer)
    if size_bytes < _SMALLEST_BATCH_BYTES:
        return None
    (
        base_offset, length_bytes, _, magic, checksum, attributes, last_offset_delta, base_timestamp_ms,
        latest_timestamp_ms, producer_id, producer_epoch, base_sequence, record_count, length, key_size,
    ) = _header_and_record_at(buffer)  # fmt: skip
    target = rules.compression
    if (
        magic != MAGIC_V2
        or length_bytes + LOG_OVERHEAD_BYTES != size_bytes
        or size_bytes > rules.batch_bytes_max
        or base_offset
        or attributes & _UNUSUAL_ATTRIBUTES
        or last_offset_delta + 1 != record_count
        or (base_sequence < 0 and producer_id > NO_PRODUCER_ID)
        or (attributes & ATTRIBUTE_TRANSACTIONAL and producer_id <= NO_PRODUCER_ID)
        or (target is not None and target.type != attributes & ATTRIBUTE_COMPRESSION)
    ):
        return None
    if record_count != 1:
        if record_count <= 0 or record_count * SMALLEST_RECORD_BYTES > rules.batch_bytes_max:
            return None
        if only_at_once and record_count > SCANNED_AT_ONCE_MAX:
            raise TakesLongError
    records: bytearray | memoryview
    if type(buffer) is memoryview or (type(buffer) is bytearray and size_bytes <= _COPIED_BYTES_MAX):
        records = buffer
    else:
        records = memoryview(buffer)
    if crc.crc32c(records[CHECKSUMMED_FROM:]) != checksum:
        return None
    has_all_keys: bool | None = None
    max_timestamp_ms = min_timestamp_ms = base_timestamp_ms
    if record_count == 1 and base_timestamp_ms >= 0 and not attributes & ATTRIBUTE_COMPRESSION:
        has_all_keys = scan_one_record(buffer, BATCH_HEADER_BYTES, length, key_size)
    if has_all_keys is None:
        stored = memoryview(records)[BATCH_HEADER_BYTES:]
        payload: Buffer | None = stored
        if attributes & ATTRIBUTE_COMPRESSION:
            payload = _decompressed(stored, attributes, rules, produce_version, only_at_once)
        scan = None if payload is None else scan_usual(payload, record_count, base_timestamp_ms)
        if payload is None or scan is None:
            return None
        size_bytes = BATCH_HEADER_BYTES + len(payload)
        max_timestamp_ms, min_timestamp_ms, _, _, has_all_keys, _ = scan
    # As `_is_acceptable` and `_largest` have it, which cost as much as the rest when there is one record. A record
    # without timestamp counts in no range.
    if (rules.is_compacted and not has_all_keys) or (
        rules.timestamp_type is not _LOG_APPEND_TIME
        and max_timestamp_ms != NO_TIMESTAMP
        and (
            now_ms - min_timestamp_ms > rules.timestamp_before_max_ms
            or max_timestamp_ms - now_ms > rules.timestamp_after_max_ms
        )
    ):
        return None
    if max_timestamp_ms < NO_TIMESTAMP:
        max_timestamp_ms = NO_TIMESTAMP
    return (
        records, attributes, record_count, latest_timestamp_ms, producer_id, producer_epoch, base_sequence,
        max_timestamp_ms, size_bytes,
    )  # fmt: skip


def validated(usual: UsualBatch, rules: AppendRules) -> ValidatedBatch:
    """The same as `validate_records` gives it."""
    records, _, _, _, _, _, _, max_timestamp_ms, uncompressed_bytes = usual
    header = _new_tuple(BatchHeader, HEADER.unpack_from(records))
    return _new_tuple(ValidatedBatch, (records, header, max_timestamp_ms, rules.timestamp_type, 0, uncompressed_bytes))


def _decompressed(
    payload: Buffer, attributes: int, rules: AppendRules, produce_version: int | None, only_at_once: bool
) -> Buffer | None:
    """For `validate_usual`: None where that is long work, or nothing for this version."""
    codec = CompressionType.of_attributes(attributes)
    is_old = produce_version is not None and produce_version < _ZSTD_SINCE_PRODUCE_VERSION
    decompressed_bytes_max = at_once_max(payload, rules.decompressed_bytes_max)
    if not decompressed_bytes_max or (is_old and codec is CompressionType.ZSTD):
        return None
    try:
        return decompress(payload, codec, decompressed_bytes_max)
    except DecompressedTooLargeError:
        if only_at_once and decompressed_bytes_max < rules.decompressed_bytes_max:
            raise TakesLongError from None
        return None


def _validate_batch(
    buffer: Buffer, spans: Sequence[BatchSpan], rules: AppendRules, now_ms: int, origin: AppendOrigin
) -> WorkSteps[ValidatedBatch]:
    span = spans[0]
    if len(spans) > 1:
        raise InvalidRecordError(f"there are {len(spans)} batches where one is allowed")
    batch = RecordBatch(buffer, span.position)
    header = batch.header
    batch.verify()
    if origin is _CLIENT:
        _check_client_header(header)
    if header.record_count > rules.records_max:
        raise _too_many(header.record_count, rules)
    source = header.compression_type
    payload = yield from batch.payload_in_steps(rules.decompressed_bytes_max)
    scan = yield from scan_in_steps(payload, header.record_count, header.base_timestamp_ms)
    is_append_time = header.timestamp_type is _LOG_APPEND_TIME
    if is_append_time:
        scan = scan._replace(max_timestamp_ms=header.max_timestamp_ms, min_timestamp_ms=header.max_timestamp_ms)
    if not _is_acceptable(scan, is_append_time, rules, now_ms):
        checking = _check_records(batch.records_in(payload), is_append_time, rules, now_ms)
        yield from _off_the_loop(checking) if scan.has_many_headers else checking
    target = rules.compression
    uncompressed_bytes = BATCH_HEADER_BYTES + len(payload)
    keeps_codec = target is None or target.type is source or (not source and header.is_control)
    if keeps_codec and scan.has_sequential_offsets:
        view = memoryview(buffer)[span.position : span.position + span.size_bytes]
        return ValidatedBatch(view, header, _largest(scan), rules.timestamp_type, 0, uncompressed_bytes)
    if header.is_control:
        raise InvalidRecordError("a control batch is neither compressed nor renumbered")
    rebuilding = _rebuilt(batch.records_in(payload), target or Compression(source), rules, uncompressed_bytes, header)
    return (yield from _off_the_loop(rebuilding) if scan.has_many_headers else rebuilding)


def _off_the_loop(steps: WorkSteps[Result]) -> WorkSteps[Result]:
    """For a record of very many headers, which is one piece to the interpreter."""
    result: Result = yield partial(run_at_once, steps)
    return result


def _check_client_header(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecordError(f"batch has base offset {header.base_offset}; a producer sends 0")
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecordError(
            f"batch has {header.record_count} records and last offset delta {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecordError("clients are not allowed to write control batches")
    if header.attributes & ATTRIBUTE_DELETE_HORIZON:
        raise InvalidRecordError("clients are not allowed to set a delete horizon")
    if header.has_producer_id:
        if header.base_sequence < 0:
            raise InvalidRecordError(f"producer {header.producer_id} sent sequence {header.base_sequence}")
    elif header.is_transactional:
        raise InvalidRecordError("batch is transactional and has no producer id")


def _is_acceptable(scan: RecordScan, is_append_time: bool, rules: AppendRules, now_ms: int) -> bool:
    """Whether no record can break a rule; otherwise they have to be looked at one by one."""
    if (rules.is_compacted and not scan.has_all_keys) or is_append_time:
        return False
    if rules.timestamp_type is _LOG_APPEND_TIME or scan.max_timestamp_ms == NO_TIMESTAMP:
        return True
    return (
        now_ms - scan.min_timestamp_ms <= rules.timestamp_before_max_ms
        and scan.max_timestamp_ms - now_ms <= rules.timestamp_after_max_ms
    )


def _largest(scan: RecordScan) -> int:
    """The largest timestamp as a header has it: one below -1 is none, as in Kafka."""
    return max(NO_TIMESTAMP, scan.max_timestamp_ms)


def _validate_messages(
    buffer: Buffer, spans: list[BatchSpan], rules: AppendRules, now_ms: int
) -> WorkSteps[ValidatedBatch]:
    magic = spans[0].magic
    source = CompressionType.NONE
    is_single = len(spans) == 1
    records: list[Record] = []
    uncompressed_bytes = 0
    left = MESSAGES_PER_STEP
    for span in _used_up(spans):
        if span.magic != magic:
            raise InvalidRecordError(f"a batch of magic {span.magic} follows one of magic {magic}")
        message = LegacyBatch(buffer, span.position)
        message.verify()
        inner = [(0, message)]
        if message.compression_type is not CompressionType.NONE:
            if not is_single:
                raise InvalidRecordError("there are several messages; where one is compressed, it is the only one")
            source = message.compression_type
            inner = yield from _inner_messages(message, rules)
        is_append_time = message.timestamp_type is TimestampType.LOG_APPEND_TIME
        start = len(records)
        for offset, single in _used_up(inner):
            record = message.record_of(offset, single)
            records.append(record)
            uncompressed_bytes += len(record.key or b"") + len(record.value or b"")
            left -= 1
            if not left:
                yield None
                left = MESSAGES_PER_STEP
        yield from _check_records(iter(records[start:] if start else records), is_append_time, rules, now_ms)
    target = rules.compression or Compression(source)
    return (yield from _rebuilt(_used_up(records), target, rules, uncompressed_bytes, None))


def _used_up(items: list[Item]) -> Iterator[Item]:
    """The items of a list that nobody else uses; a million that were freed at once would take as long as a step is."""
    items.reverse()
    while items:
        yield items.pop()


def _inner_messages(message: LegacyBatch, rules: AppendRules) -> WorkSteps[list[tuple[int, LegacyBatch]]]:
    errors: list[RecordError] = []
    messages = yield from message.inner_messages_in_steps(rules.decompressed_bytes_max, rules.records_max + 1)
    if len(messages) > rules.records_max:
        raise _too_many(len(messages), rules)
    for index, (_, inner) in enumerate(messages):
        if inner.magic != message.magic:
            errors.append(RecordError(index, f"the message has magic {inner.magic} and its wrapper {message.magic}"))
        inner.verify()
        if index % MESSAGES_PER_STEP == MESSAGES_PER_STEP - 1:
            yield None
    _raise_record_errors(errors, len(errors), has_timestamp_error=False)
    return messages


def _check_records(records: Iterator[Record], is_append_time: bool, rules: AppendRules, now_ms: int) -> WorkSteps[None]:
    """Looks at each record and raises with the index of every one that breaks a rule."""
    errors: list[RecordError] = []
    error_count = 0
    has_timestamp_error = False
    for index, record in enumerate(records):
        problem = _key_problem(record, rules)
        if problem is None:
            problem = _timestamp_problem(record, is_append_time, rules, now_ms)
            has_timestamp_error |= problem is not None
        if problem is not None:
            error_count += 1
            if error_count <= RECORD_ERRORS_MAX:
                errors.append(RecordError(index, problem))
        if index % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
            yield None
    _raise_record_errors(errors, error_count, has_timestamp_error)


def _raise_record_errors(errors: list[RecordError], error_count: int, has_timestamp_error: bool) -> None:
    if not errors:
        return
    message = (
        f"{error_count} records are not acceptable; the first, at index {errors[0].batch_index}: {errors[0].message}"
    )
    kind = InvalidTimestampError if has_timestamp_error else InvalidRecordError
    raise kind(message, tuple(errors[:RECORD_ERRORS_MAX]))


def _key_problem(record: Record, rules: AppendRules) -> str | None:
    if rules.is_compacted and record.key is None:
        return "a compacted topic does not accept records without keys"
    return None


def _timestamp_problem(record: Record, is_append_time: bool, rules: AppendRules, now_ms: int) -> str | None:
    if rules.timestamp_type is TimestampType.CREATE_TIME and record.timestamp_ms != NO_TIMESTAMP:
        earliest_ms, latest_ms = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
        if not earliest_ms <= record.timestamp_ms <= latest_ms:
            return f"timestamp {record.timestamp_ms} is not within {earliest_ms} and {latest_ms}"
    elif is_append_time:
        return "the timestamp type is LogAppendTime, which only a broker may set"
    return None


def _rebuilt(
    records: Iterator[Record],
    target: Compression,
    rules: AppendRules,
    uncompressed_bytes: int,
    template: BatchHeader | None,
) -> WorkSteps[ValidatedBatch]:
    batch = yield from rebuild_in_steps(records, target, template=template)
    header = read_batch_header(batch)
    return ValidatedBatch(
        batch,
        header,
        header.max_timestamp_ms,
        rules.timestamp_type,
        header.record_count,
        uncompressed_bytes + len(batch),
    )


def _too_large(size_bytes: int, rules: AppendRules) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"batch has {size_bytes} bytes; the topic allows {rules.batch_bytes_max} (max.message.bytes)"
    )


def _too_many(record_count: int, rules: AppendRules) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"batch has at least {record_count} records; a topic with max.message.bytes {rules.batch_bytes_max} allows"
        f" {rules.records_max}: send smaller batches"
    )
