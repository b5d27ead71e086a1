"""Writing batches of magic 2."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from barnabas.wire.byte_work import WorkSteps, compress_in_steps
from barnabas.wire.compression import compress
from barnabas.wire.compression_types import NO_COMPRESSION, Buffer, Compression
from barnabas.wire.record_batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    HEADER,
    INT32_MAX,
    BatchHeader,
    set_checksum,
)
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V2, Header, TimestampType
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

_INT64_MAX: Final = (1 << 63) - 1
# Members of an enum are slow to reach by name in Python 3.11, and these are wanted for every batch.
_CREATE_TIME: Final = TimestampType.CREATE_TIME
_LOG_APPEND_TIME: Final = TimestampType.LOG_APPEND_TIME

_ONE_BYTE: Final = tuple(bytes((value << 1,)) for value in range(64))
"""The varints of 0 to 63."""
_NULL: Final = b"\x01"
"""The varint of -1, the length of what is null."""


class RecordBatchFullError(ValueError):
    """The record would make the batch larger than its limit; build this batch and put the record into the next one."""


def write_varint(value: int) -> bytes:
    """A zigzag varint; of values within 32 bits it is a varint, within 64 bits a varlong."""
    if 0 <= value < 64:
        return _ONE_BYTE[value]
    value = value << 1 ^ value >> 63
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7)) if value > 0x7F else bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class RecordBatchBuilder:
    """Collects records and makes one batch of them.

    `limit_bytes` bounds the batch before compression; the first record is always taken, so that a large record can
    travel alone. `base_offset` is what the offset deltas count from: 0 for producers. `log_append_time_ms` goes with
    TimestampType.LOG_APPEND_TIME. `delete_horizon_ms` is the cleaner's (KIP-534).

    Raises ValueError for producer fields that contradict each other, as all of its methods do for values that the
    format cannot hold.
    """

    __slots__ = (
        "_attributes",
        "_base_offset",
        "_base_sequence",
        "_base_timestamp_ms",
        "_compression",
        "_last_offset",
        "_limit_bytes",
        "_log_append_time_ms",
        "_max_timestamp_ms",
        "_partition_leader_epoch",
        "_pieces",
        "_producer_epoch",
        "_producer_id",
        "_record_count",
        "_settled",
        "_size_bytes",
    )

    def __init__(
        self,
        *,
        base_offset: int = 0,
        compression: Compression = NO_COMPRESSION,
        limit_bytes: int = INT32_MAX,
        timestamp_type: TimestampType = _CREATE_TIME,
        log_append_time_ms: int = NO_TIMESTAMP,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
        partition_leader_epoch: int = NO_EPOCH,
        delete_horizon_ms: int | None = None,
    ) -> None:
        is_append_time = timestamp_type is _LOG_APPEND_TIME
        if not is_append_time and timestamp_type is not _CREATE_TIME:
            raise ValueError("a batch of magic 2 has a timestamp type: CREATE_TIME or LOG_APPEND_TIME")
        if is_transactional and producer_id == NO_PRODUCER_ID:
            raise ValueError("a transactional batch needs a producer id")
        if producer_id != NO_PRODUCER_ID:
            if producer_epoch < 0:
                raise ValueError(f"producer {producer_id} needs an epoch, not {producer_epoch}")
            if base_sequence < 0 and not is_control:
                raise ValueError(f"producer {producer_id} needs a sequence, not {base_sequence}")
        self._base_offset = base_offset
        self._compression = compression
        self._limit_bytes = limit_bytes
        self._log_append_time_ms = log_append_time_ms if is_append_time else None
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._partition_leader_epoch = partition_leader_epoch
        self._attributes = (
            int(compression.type)
            | (ATTRIBUTE_LOG_APPEND_TIME if is_append_time else 0)
            | (ATTRIBUTE_TRANSACTIONAL if is_transactional else 0)
            | (ATTRIBUTE_CONTROL if is_control else 0)
            | (ATTRIBUTE_DELETE_HORIZON if delete_horizon_ms is not None else 0)
        )
        self._base_timestamp_ms = delete_horizon_ms
        self._max_timestamp_ms = NO_TIMESTAMP
        self._last_offset = base_offset - 1
        self._record_count = 0
        self._settled: list[bytes] = []
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._size_bytes = BATCH_HEADER_BYTES

    @property
    def record_count(self) -> int:
        return self._record_count

    @property
    def size_bytes(self) -> int:
        """What the batch takes so far, before compression."""
        return self._size_bytes

    @property
    def last_offset(self) -> int:
        return self._last_offset

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp among the records; the broker's time where that is the timestamp type."""
        return self._max_timestamp_ms if self._log_append_time_ms is None else self._log_append_time_ms

    def append(
        self,
        timestamp_ms: int,
        key: bytes | memoryview | None,
        value: bytes | memoryview | None,
        headers: Sequence[Header] = (),
        offset: int | None = None,
    ) -> int:
        """Adds a record and returns its offset: the one after the last, or `offset`, which must be larger than the
        last.

        Raises RecordBatchFullError beyond the limit, and ValueError for a timestamp below -1 or an offset that does not
        fit; then nothing has changed.
        """
        last_offset = self._last_offset
        if offset is None:
            offset = last_offset + 1
        elif offset <= last_offset:
            raise ValueError(f"offset {offset} does not follow offset {last_offset}")
        base_timestamp_ms = self._base_timestamp_ms
        if base_timestamp_ms is None:
            base_timestamp_ms = timestamp_ms
        if not NO_TIMESTAMP <= timestamp_ms <= _INT64_MAX:
            raise ValueError(f"timestamp {timestamp_ms} is not one: milliseconds since 1970, or -1 for none")
        timestamp_delta = timestamp_ms - base_timestamp_ms
        offset_delta = offset - self._base_offset
        if offset_delta > INT32_MAX:
            raise ValueError(f"offset {offset} is too far from the base offset {self._base_offset}")

        one_byte = _ONE_BYTE
        pieces: list[bytes | memoryview] = [
            b"\0",
            one_byte[timestamp_delta] if 0 <= timestamp_delta < 64 else write_varint(timestamp_delta),
            one_byte[offset_delta] if offset_delta < 64 else write_varint(offset_delta),
        ]
        if key is None:
            pieces.append(_NULL)
        else:
            size = len(key)
            pieces += (one_byte[size] if size < 64 else write_varint(size), key)
        if value is None:
            pieces.append(_NULL)
        else:
            size = len(value)
            pieces += (one_byte[size] if size < 64 else write_varint(size), value)
        if headers:
            _add_headers(pieces, headers)
        else:
            pieces.append(b"\0")
        body = b"".join(pieces)
        size = len(body)
        length = one_byte[size] if size < 64 else write_varint(size)

        size += len(length) + self._size_bytes
        if size > self._limit_bytes and (self._record_count or size > INT32_MAX):
            raise RecordBatchFullError(f"batch would have {size} bytes; its limit is {self._limit_bytes}")
        self._pieces += (length, body)
        self._size_bytes = size
        self._record_count += 1
        self._last_offset = offset
        self._base_timestamp_ms = base_timestamp_ms
        if timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = timestamp_ms
        return offset

    @property
    def room_bytes(self) -> int:
        """What records that are added may take."""
        return self._limit_bytes - self._size_bytes

    def timestamp_delta(self, timestamp_ms: int) -> int:
        """What a record of that time has for it: 0 where it is the first."""
        return 0 if self._base_timestamp_ms is None else timestamp_ms - self._base_timestamp_ms

    def append_written(self, records: bytes, count: int, timestamp_ms: int) -> None:
        """Adds records that somebody else has written (`record_columns`): `count` of them, with the offset deltas from
        `record_count` on and the `timestamp_delta` of `timestamp_ms`. For batches without gaps between offsets.

        Raises RecordBatchFullError and ValueError as `append` does; then nothing has changed.
        """
        if not NO_TIMESTAMP <= timestamp_ms <= _INT64_MAX:
            raise ValueError(f"timestamp {timestamp_ms} is not one: milliseconds since 1970, or -1 for none")
        if self._last_offset != self._base_offset + self._record_count - 1:
            raise ValueError("records that are written already would not follow: the batch has gaps")
        size = self._size_bytes + len(records)
        if size > self._limit_bytes and (self._record_count or count > 1 or size > INT32_MAX):
            raise RecordBatchFullError(f"batch would have {size} bytes; its limit is {self._limit_bytes}")
        self.settle()
        self._settled.append(records)
        self._size_bytes = size
        self._record_count += count
        self._last_offset += count
        if self._base_timestamp_ms is None:
            self._base_timestamp_ms = timestamp_ms
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms)

    def settle(self) -> None:
        """For who adds very many records in steps: joins those that were added since, of which `build` has less to do
        then.
        """
        if self._pieces:
            self._settled.append(b"".join(self._pieces))
            self._pieces.clear()

    def build(self, last_offset: int | None = None) -> bytearray:
        """The batch, in memory that the log may patch. Raises ValueError without records.

        `last_offset` keeps the range of offsets and sequences of a batch whose last records the cleaner removed.
        """
        last_offset_delta = self._last_offset_delta(last_offset)
        if self._compression.type:
            return self._compressed(compress(self._records(), self._compression), last_offset_delta)
        header = self._header(self._size_bytes, last_offset_delta)
        batch = bytearray().join((header, *self._settled, *self._pieces))
        set_checksum(batch)
        return batch

    def build_in_steps(self, last_offset: int | None = None) -> WorkSteps[bytearray]:
        """As `build`, with compression as work on bytes."""
        if not self._compression.type:
            return self.build(last_offset)
        last_offset_delta = self._last_offset_delta(last_offset)
        payload = yield from compress_in_steps(self._records(), self._compression)
        return self._compressed(payload, last_offset_delta)

    def _last_offset_delta(self, last_offset: int | None) -> int:
        if not self._record_count:
            raise ValueError("a batch needs a record; see empty_batch for those that the cleaner emptied")
        last_offset = self._last_offset if last_offset is None else last_offset
        last_offset_delta = last_offset - self._base_offset
        if last_offset < self._last_offset or last_offset_delta > INT32_MAX:
            raise ValueError(f"last offset {last_offset} does not cover the records to {self._last_offset}")
        return last_offset_delta

    def _records(self) -> bytes:
        return b"".join((*self._settled, *self._pieces))

    def _compressed(self, payload: Buffer, last_offset_delta: int) -> bytearray:
        batch = bytearray().join((self._header(BATCH_HEADER_BYTES + len(payload), last_offset_delta), payload))
        set_checksum(batch)
        return batch

    def _header(self, size_bytes: int, last_offset_delta: int) -> bytes:
        try:
            return HEADER.pack(
                self._base_offset,
                size_bytes - LOG_OVERHEAD_BYTES,
                self._partition_leader_epoch,
                MAGIC_V2,
                0,
                self._attributes,
                last_offset_delta,
                NO_TIMESTAMP if self._base_timestamp_ms is None else self._base_timestamp_ms,
                self.max_timestamp_ms,
                self._producer_id,
                self._producer_epoch,
                self._base_sequence,
                self._record_count,
            )
        except struct.error as problem:
            raise ValueError(f"a field of the batch header is out of its range: {problem}") from None


def empty_batch(header: BatchHeader) -> bytearray:
    """A batch without records, that keeps the offsets, the producer's state and the timestamps of one whose records the
    cleaner removed.
    """
    attributes = header.attributes & (ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
    batch = bytearray(
        HEADER.pack(
            *header._replace(
                length_bytes=BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES,
                attributes=attributes,
                base_timestamp_ms=NO_TIMESTAMP,
                record_count=0,
            )
        )
    )
    set_checksum(batch)
    return batch


def _add_headers(pieces: list[bytes | memoryview], headers: Sequence[Header]) -> None:
    pieces.append(write_varint(len(headers)))
    for key, value in headers:
        pieces += (write_varint(len(key)), key)
        if value is None:
            pieces.append(_NULL)
        else:
            pieces += (write_varint(len(value)), value)
