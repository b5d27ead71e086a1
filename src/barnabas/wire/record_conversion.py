"""Batches made anew: another codec, an older message format for old consumers, or magic 2 for what old producers sent.

Pure functions; what they do is work for the processor, so they belong off the event loop when the batches are large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypedDict

from barnabas.wire.batch_formats import batch_at
from barnabas.wire.byte_work import WorkSteps, run_at_once
from barnabas.wire.compression_types import DEFAULT_DECOMPRESSED_BYTES_MAX, Buffer, Compression, CompressionType
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_batch import BatchHeader, RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import InvalidRecordError, RecordsError, UnsupportedCompressionTypeError
from barnabas.wire.records import MAGIC_V0, MAGIC_V2, Batch, Record, TimestampType, walk_batches
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

RECORDS_PER_STEP: Final = 1024
"""Records that are read and written anew: some 4 ms of them."""


@dataclass(frozen=True, slots=True)
class ConvertedRecords:
    """Batches in an older format, and what their making took (the metrics of KIP-188)."""

    data: bytes
    converted_count: int
    """Records that were written anew; those of batches that were old enough already do not count."""
    temporary_bytes: int
    """Batches read and batches written, before compression."""


def down_convert(
    buffer: Buffer,
    to_magic: int,
    first_offset: int = 0,
    *,
    decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX,
) -> ConvertedRecords:
    """The batches of the buffer in the format of `to_magic`, 0 or 1, for a Fetch request older than version 4 (magic 1)
    or 2 (magic 0).

    Offsets and the codec stay; headers and control batches, for which the old formats have no place, are left out, as
    are timestamps with magic 0 and a partial batch at the end. Records of transactions are records like others. From
    uncompressed batches of magic 2 come messages one by one, so those before `first_offset` are left out, on which some
    old consumers rely. The result may be empty.

    It ends before a batch of zstd, which old consumers cannot read (KIP-110). Raises UnsupportedCompressionTypeError
    where there is nothing before that, and CorruptRecordError or InvalidRecordError for what cannot be read.
    """
    if not MAGIC_V0 <= to_magic < MAGIC_V2:
        raise ValueError(f"records are converted down to magic 0 or 1, not {to_magic}")
    pieces: list[Buffer] = []
    converted_count = temporary_bytes = 0
    for span in walk_batches(buffer).spans:
        batch = batch_at(buffer, span)
        if batch.is_control:
            continue
        if batch.compression_type is CompressionType.ZSTD:
            if pieces:
                break  # the consumer is told when it comes back for this batch
            raise UnsupportedCompressionTypeError(
                "batches that are compressed with zstd cannot be converted for consumers this old"
            )
        temporary_bytes += batch.size_bytes
        if batch.magic <= to_magic:
            pieces.append(memoryview(buffer)[span.position : span.position + span.size_bytes])
            continue
        records = list(batch.records(decompressed_bytes_max))
        if batch.compression_type is CompressionType.NONE:
            records = [record for record in records if record.offset >= first_offset]
        if not records:
            continue
        converted = _write_messages(to_magic, records, batch)
        pieces.append(converted)
        converted_count += len(records)
        temporary_bytes += len(converted)
    return ConvertedRecords(b"".join(pieces), converted_count, temporary_bytes)


def _write_messages(magic: int, records: list[Record], batch: Batch) -> bytes:
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    return write_messages(
        magic,
        records,
        Compression(batch.compression_type),
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
        log_append_time_ms=batch.max_timestamp_ms,
    )


def rebuild_batch(
    records: Iterable[Record],
    compression: Compression,
    *,
    template: BatchHeader | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time_ms: int = NO_TIMESTAMP,
) -> bytearray:
    """One batch of magic 2 with the records renumbered from offset 0; producer's fields and the transactional flag are
    those of `template`.

    Raises InvalidRecordError for records and fields that the format cannot hold, and where there are no records.
    """
    return run_at_once(
        rebuild_in_steps(
            records,
            compression,
            template=template,
            timestamp_type=timestamp_type,
            log_append_time_ms=log_append_time_ms,
        )
    )


def rebuild_in_steps(
    records: Iterable[Record],
    compression: Compression,
    *,
    template: BatchHeader | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time_ms: int = NO_TIMESTAMP,
) -> WorkSteps[bytearray]:
    """As `rebuild_batch`."""
    try:
        builder = RecordBatchBuilder(
            compression=compression,
            timestamp_type=timestamp_type,
            log_append_time_ms=log_append_time_ms,
            **_producer_fields(template),
        )
        append = builder.append
        left = RECORDS_PER_STEP
        for record in records:
            append(record.timestamp_ms, record.key, record.value, record.headers)
            left -= 1
            if not left:
                builder.settle()
                yield None
                left = RECORDS_PER_STEP
        return (yield from builder.build_in_steps())
    except RecordsError:
        raise
    except ValueError as problem:
        raise InvalidRecordError(f"records cannot be written as a batch: {problem}") from None


def recompress_batch(
    buffer: Buffer, compression: Compression, *, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX
) -> bytearray:
    """The batch of magic 2 at the start of the buffer with another codec or level; everything else of it is kept,
    offsets and gaps included.

    Raises as reading its records does.
    """
    batch = RecordBatch(buffer)
    header = batch.header
    try:
        builder = RecordBatchBuilder(
            base_offset=header.base_offset,
            compression=compression,
            timestamp_type=header.timestamp_type,
            log_append_time_ms=header.max_timestamp_ms,
            partition_leader_epoch=header.partition_leader_epoch,
            is_control=header.is_control,
            delete_horizon_ms=header.delete_horizon_ms,
            **_producer_fields(header),
        )
        for record in batch.records(decompressed_bytes_max):
            builder.append(record.timestamp_ms, record.key, record.value, record.headers, record.offset)
        return builder.build(header.last_offset)
    except RecordsError:
        raise
    except ValueError as problem:
        raise InvalidRecordError(f"batch cannot be written anew: {problem}") from None


class _ProducerFields(TypedDict):
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool


def _producer_fields(header: BatchHeader | None) -> _ProducerFields:
    if header is None:
        return {
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_EPOCH,
            "base_sequence": NO_SEQUENCE,
            "is_transactional": False,
        }
    return {
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
    }
