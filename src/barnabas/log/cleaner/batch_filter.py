"""What is kept of one batch (Apache Kafka's MemoryRecords.filterTo with the filter of LogCleaner; KIP-534).

Offsets never change. A batch whose records all go stays as an empty one where it is the last of its producer, or where
the cleaning ends with it. What stays of a batch is copied as it is, byte by byte: the batch keeps its first timestamp,
too, unless it gets a horizon in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.log.cleaner.record_scan import DROPPED, TOMBSTONE, VALUE, kept_records, largest_timestamp_delta
from barnabas.wire.compression import compress
from barnabas.wire.compression_types import NO_COMPRESSION, Buffer, Compression
from barnabas.wire.legacy_records import LegacyBatch, write_messages
from barnabas.wire.record_batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    BATCH_HEADER_BYTES,
    HEADER,
    RecordBatch,
    set_checksum,
)
from barnabas.wire.record_builder import empty_batch, write_varint
from barnabas.wire.record_reader import read_long, read_varint
from barnabas.wire.records import LOG_OVERHEAD_BYTES

_WITHOUT_TOMBSTONES = bytes(DROPPED if state == TOMBSTONE else state for state in range(256))


class LastBatch(NamedTuple):
    """Where a producer that the log knows has written last."""

    last_offset: int | None
    """Of its last batch of data; None where its epoch has none, and then its marker is kept."""
    epoch: int


@dataclass(frozen=True, slots=True)
class FilterRules:
    """What one cleaning goes by."""

    now_ms: int
    delete_retention_ms: int
    producers: Mapping[int, LastBatch]
    end_offset: int
    """Where this cleaning ends: the batch before it stays, so that the log ends where it did."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a batch becomes."""

    data: Buffer
    last_offset: int
    max_timestamp_ms: int


def is_last_of_producer(batch: RecordBatch, producers: Mapping[int, LastBatch]) -> bool:
    """Whether a recovery needs the batch for what it says of its producer."""
    if not batch.header.has_producer_id:
        return False
    last = producers.get(batch.producer_id)
    if last is None:
        return False
    if last.last_offset is None:
        return batch.is_control and batch.header.producer_epoch == last.epoch
    return batch.last_offset == last.last_offset


def filter_batch(
    batch: RecordBatch, data: Buffer, states: bytes, rules: FilterRules, *, is_discardable: bool
) -> Kept | None:
    """`data` is the batch as it is, `states` what its records are: `DROPPED`, or what is kept, for one that is not a
    marker. None where nothing of it is needed. Raises RecordsError for what cannot be read."""
    header = batch.header
    attributes = header.attributes
    is_control = attributes & ATTRIBUTE_CONTROL
    horizon_ms = header.delete_horizon_ms
    is_due = horizon_ms is not None and horizon_ms <= rules.now_ms
    sets_horizon = False
    if is_control:
        states = bytes((DROPPED if is_discardable and is_due else VALUE,)) * header.record_count
        sets_horizon = is_discardable and horizon_ms is None
    elif is_discardable:
        states = bytes(header.record_count)
    elif TOMBSTONE in states:
        if is_due:
            states = states.translate(_WITHOUT_TOMBSTONES)
        sets_horizon = horizon_ms is None
    dropped = states.count(DROPPED)
    if dropped == len(states):
        if batch.last_offset + 1 == rules.end_offset or is_last_of_producer(batch, rules.producers):
            return Kept(empty_batch(header), batch.last_offset, header.max_timestamp_ms)
        return None
    if not dropped and not sets_horizon:
        return Kept(data, batch.last_offset, header.max_timestamp_ms)
    records = kept_records(bytes(batch.payload()), states)
    base_timestamp_ms, max_timestamp_ms = header.base_timestamp_ms, header.max_timestamp_ms
    if not attributes & ATTRIBUTE_LOG_APPEND_TIME:
        max_timestamp_ms = base_timestamp_ms + largest_timestamp_delta(records, max_timestamp_ms - base_timestamp_ms)
    if sets_horizon:
        horizon_ms = rules.now_ms + rules.delete_retention_ms
        records = [_moved(record, base_timestamp_ms - horizon_ms) for record in records]
        base_timestamp_ms = horizon_ms
        attributes |= ATTRIBUTE_DELETE_HORIZON
    payload = compress(b"".join(records), Compression(header.compression_type))
    new_header = header._replace(
        length_bytes=BATCH_HEADER_BYTES + len(payload) - LOG_OVERHEAD_BYTES,
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        record_count=len(records),
    )
    kept = bytearray().join((HEADER.pack(*new_header), payload))
    set_checksum(kept)
    return Kept(kept, batch.last_offset, max_timestamp_ms)


def _moved(record: bytes, by_ms: int) -> bytes:
    """The record with another difference of its timestamp."""
    _, start = read_varint(record, 0)
    start += 1
    delta, end = read_varint(record, start) if record[start] < 0x80 else read_long(record, start, 64)
    body = b"".join((record[start - 1 : start], write_varint(delta + by_ms), record[end:]))
    return write_varint(len(body)) + body


def filter_legacy_batch(batch: LegacyBatch, data: Buffer, states: bytes) -> Kept | None:
    """As `filter_batch` for messages of magic 0 and 1, which have no place for a horizon: their tombstones stay."""
    dropped = states.count(DROPPED)
    if not dropped:
        return Kept(data, batch.last_offset, batch.max_timestamp_ms)
    if dropped == len(states):
        return None
    records = [record for record, state in zip(batch.records(), states, strict=True) if state]
    kept = write_messages(
        batch.magic,
        records,
        Compression(batch.compression_type) if batch.compression_type else NO_COMPRESSION,
        timestamp_type=batch.timestamp_type,
        log_append_time_ms=batch.max_timestamp_ms,
    )
    return Kept(kept, records[-1].offset, LegacyBatch(kept).max_timestamp_ms)
