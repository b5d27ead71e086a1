"""Batches of one record each that are uniform, checked by columns instead of one by one.

Producers that send single records of a fixed size send the same frame around them each time: one batch is like the
next, but for its timestamp, its checksum and what is in key and value. Laid one behind the other, a slice with the step
of their size is one column of them, and comparing it is one operation for all batches. Nothing is assumed: the first
batch is checked as it would be alone, and one that differs from it in any byte of its frame is not uniform.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from barnabas.wire import crc
from barnabas.wire.compression_types import Buffer
from barnabas.wire.record_batch import BATCH_HEADER_BYTES, CHECKSUMMED_FROM
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_runs import behind_varint, size_at
from barnabas.wire.record_validation import AppendOrigin, AppendRules, ValidatedBatch, validate_records
from barnabas.wire.records import TimestampType
from barnabas.wire.sentinels import NO_PRODUCER_ID

UNIFORM_MIN: Final = 8
"""Fewer are not worth the columns."""

_OFFSET_BYTES: Final = 8
_EPOCH_AT: Final = 12
_EPOCH: Final = struct.Struct(">i")
_CRC_AT: Final = 17
_BASE_TIMESTAMP_AT: Final = 27
_MAX_TIMESTAMP_AT: Final = 35
_TIMESTAMP_BYTES: Final = 8
# What must be the same in all of them: base offset and length; magic; attributes and last offset delta; producer,
# epoch, sequence and count. Not so the leader epoch, which the leader sets.
_HEADER_FRAME: Final = (*range(_EPOCH_AT), 16, *range(CHECKSUMMED_FROM, _BASE_TIMESTAMP_AT), *range(43, 61))


class UniformBatches(NamedTuple):
    """Batches of magic 2, of equal size and with one record each, that may be appended as they are once
    `number_uniform` has been called on them.
    """

    records: bytearray
    """All of them, one behind the other; new memory."""
    batch_bytes: int
    """Of each."""
    timestamps_ms: tuple[int, ...]
    """Of the record in each."""


def join_uniform(
    batches: Sequence[Buffer], rules: AppendRules, now_ms: int, produce_version: int | None = None
) -> UniformBatches | None:
    """`validate_records` for what several requests of clients have brought, where all of it is good and uniform: single
    records without headers, not compressed, with timestamps that stay as they are, of no idempotent producer.

    None for all else, good or bad: then each is to be validated by itself.
    """
    first = batches[0]
    batch_bytes = len(first)
    if set(map(len, batches)) != {batch_bytes}:
        return None
    try:
        validated = validate_records(first, rules, now_ms, AppendOrigin.CLIENT, produce_version)
    except RecordsError:
        return None
    frame = _record_frame(first) if _is_plain(validated, batch_bytes) else None
    if frame is None:
        return None
    data = b"".join(batches)
    count = len(batches)
    for place in (*_HEADER_FRAME, *frame):
        if data[place::batch_bytes] != data[place : place + 1] * count:
            return None
    for place in range(_BASE_TIMESTAMP_AT, _BASE_TIMESTAMP_AT + _TIMESTAMP_BYTES):
        if data[place::batch_bytes] != data[place + _TIMESTAMP_BYTES :: batch_bytes]:
            return None  # the largest timestamp is not that of the record
    (timestamps_ms,) = zip(*_timestamps(batch_bytes).iter_unpack(data), strict=True)
    earliest_ms, latest_ms = min(timestamps_ms), max(timestamps_ms)
    if (
        earliest_ms < 0
        or now_ms - earliest_ms > rules.timestamp_before_max_ms
        or latest_ms - now_ms > rules.timestamp_after_max_ms
    ):
        return None
    checksum_of = crc.crc32c
    for checksum, checksummed in _checksums(batch_bytes).iter_unpack(data):
        if checksum_of(checksummed) != checksum:
            return None
    return UniformBatches(bytearray(data), batch_bytes, timestamps_ms)


def number_uniform(uniform: UniformBatches, base_offset: int, partition_leader_epoch: int) -> None:
    """Stores the leader epoch, and the offsets from `base_offset` on. All of it is outside of the checksums."""
    records, batch_bytes, timestamps_ms = uniform
    count = len(timestamps_ms)
    offsets = struct.pack(f">{count}q", *range(base_offset, base_offset + count))
    # The bytes in front of those that the largest has are 0, as they are in what a producer sends.
    digits = (base_offset + count - 1).bit_length() + 7 >> 3
    for place in range(_OFFSET_BYTES - digits, _OFFSET_BYTES):
        records[place::batch_bytes] = offsets[place::_OFFSET_BYTES]
    for place, byte in enumerate(_EPOCH.pack(partition_leader_epoch), _EPOCH_AT):
        records[place::batch_bytes] = bytes((byte,)) * count


def _is_plain(validated: ValidatedBatch, batch_bytes: int) -> bool:
    """Whether the bytes of the batch are what was given, and its header says nothing but the time of its one record."""
    header = validated.header
    return (
        header.size_bytes == batch_bytes
        and not validated.converted_count
        and validated.timestamp_type is TimestampType.CREATE_TIME
        and header.attributes == 0
        and header.record_count == 1
        and header.producer_id == NO_PRODUCER_ID
    )


def _record_frame(batch: Buffer) -> tuple[int, ...] | None:
    """Where the bytes around key and value are in a good batch of one record; None if that has headers, or deltas."""
    attributes = behind_varint(batch, BATCH_HEADER_BYTES)
    key = attributes + 3  # behind the deltas of timestamp and offset
    if batch[attributes + 1] or batch[attributes + 2]:
        return None
    key_bytes, key_end = size_at(batch, key)
    value = key_end + key_bytes
    value_bytes, value_end = size_at(batch, value)
    end = len(batch) - 1
    if value_end + value_bytes != end:
        return None
    return (*range(BATCH_HEADER_BYTES, key_end), *range(value, value_end), end)


@lru_cache(maxsize=256)
def _timestamps(batch_bytes: int) -> struct.Struct:
    """Of batches of that size: the base timestamp."""
    return struct.Struct(f">{_BASE_TIMESTAMP_AT}xq{batch_bytes - _MAX_TIMESTAMP_AT}x")


@lru_cache(maxsize=256)
def _checksums(batch_bytes: int) -> struct.Struct:
    """Of batches of that size: the checksum, and the bytes that it is of."""
    return struct.Struct(f">{_CRC_AT}xI{batch_bytes - CHECKSUMMED_FROM}s")
