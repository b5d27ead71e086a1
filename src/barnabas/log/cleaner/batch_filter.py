"""What is kept of one batch (Apache Kafka's MemoryRecords.filterTo with the filter of LogCleaner; KIP-534).

Offsets never change. A batch whose records all go stays as an empty one where it is the last of its producer, or where
the cleaning ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.log.cleaner.offset_map import OffsetMap
from barnabas.log.cleaner.transactions import CleanedTransactions
from barnabas.wire.compression_types import Buffer, Compression
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder, empty_batch
from barnabas.wire.records import Record


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
    batch: RecordBatch, data: Buffer, offsets: OffsetMap, transactions: CleanedTransactions, rules: FilterRules
) -> Kept | None:
    """`data` is the batch as it is; None where nothing of it is needed. Raises RecordsError for what cannot be read."""
    header = batch.header
    is_discardable = transactions.is_discarded(batch)
    horizon_ms = header.delete_horizon_ms
    is_due = horizon_ms is not None and horizon_ms <= rules.now_ms
    drops_all = is_discardable and (is_due or not batch.is_control)
    kept: list[Record] = []
    if not drops_all:
        # A batch with a horizon has it in place of its first timestamp; one without lets its tombstones stay.
        kept = [
            record
            for record in batch.records()
            if batch.is_control or _is_kept(record, offsets, keeps_tombstones=not is_due)
        ]
    if not kept:
        if is_last_of_producer(batch, rules.producers) or batch.last_offset + 1 == rules.end_offset:
            return Kept(empty_batch(header), batch.last_offset, batch.max_timestamp_ms)
        return None
    sets_horizon = horizon_ms is None and (
        any(record.value is None for record in kept) or (batch.is_control and is_discardable)
    )
    if len(kept) == header.record_count and not sets_horizon:
        return Kept(data, batch.last_offset, batch.max_timestamp_ms)
    builder = RecordBatchBuilder(
        base_offset=header.base_offset,
        compression=Compression(header.compression_type),
        timestamp_type=batch.timestamp_type,
        log_append_time_ms=header.max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        partition_leader_epoch=header.partition_leader_epoch,
        delete_horizon_ms=rules.now_ms + rules.delete_retention_ms if sets_horizon else horizon_ms,
    )
    for record in kept:
        builder.append(record.timestamp_ms, record.key, record.value, record.headers, record.offset)
    return Kept(builder.build(batch.last_offset), batch.last_offset, builder.max_timestamp_ms)


def _is_kept(record: Record, offsets: OffsetMap, *, keeps_tombstones: bool) -> bool:
    if record.offset > offsets.latest_offset:
        return True
    if record.key is None:
        return False
    return record.offset >= offsets.get(record.key) and (record.value is not None or keeps_tombstones)
