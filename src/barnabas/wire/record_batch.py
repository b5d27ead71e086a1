"""The record batch of magic 2 (KIP-98): its header in place, its checksum, and the fields that a broker changes.

A broker assigns offsets and the leader epoch, both of which lie before the checksummed part, so that this costs two
stores. The largest timestamp and the timestamp type lie inside; where they change, the checksum is computed again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.wire import crc
from barnabas.wire.byte_work import WorkSteps, decompress_in_steps
from barnabas.wire.compression import decompress
from barnabas.wire.compression_types import DEFAULT_DECOMPRESSED_BYTES_MAX, Buffer, CompressionType
from barnabas.wire.record_column_reader import ColumnReader
from barnabas.wire.record_errors import CorruptRecordError, InvalidRecordError
from barnabas.wire.record_reader import iterate_entries, iterate_records
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V2, Record, RecordEntry, TimestampType
from barnabas.wire.sentinels import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

BATCH_HEADER_BYTES: Final = 61
"""From the base offset to the record count."""

MAGIC_AT: Final = 16
CHECKSUMMED_FROM: Final = 21
"""Where the attributes begin; the checksum covers them and all that follows."""
ATTRIBUTES_LOW_AT: Final = 22
"""The low byte of the attributes; the high one has no bits yet."""
PRODUCER_AT: Final = 43
PRODUCER: Final = struct.Struct(">qhi")
"""Id, epoch and base sequence."""
RECORD_COUNT_AT: Final = 57

ATTRIBUTE_COMPRESSION: Final = 0x07
"""The bits of the codec."""
ATTRIBUTE_LOG_APPEND_TIME: Final = 0x08
ATTRIBUTE_TRANSACTIONAL: Final = 0x10
ATTRIBUTE_CONTROL: Final = 0x20
ATTRIBUTE_DELETE_HORIZON: Final = 0x40

INT32_MAX: Final = 0x7FFF_FFFF

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""The fields of BatchHeader, in their order."""
# Members of an enum are slow to reach by name in Python 3.11, and these are wanted for every batch.
_CREATE_TIME: Final = TimestampType.CREATE_TIME
_LOG_APPEND_TIME: Final = TimestampType.LOG_APPEND_TIME

_CRC_AT: Final = 17
_MAX_TIMESTAMP_AT: Final = 35
_OFFSET: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_CRC_AND_ATTRIBUTES: Final = struct.Struct(">Ih")


class BatchHeader(NamedTuple):
    """The header of a batch, field by field."""

    base_offset: int
    length_bytes: int
    """What follows this field; see `size_bytes`."""
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    """Timestamp of the first record; with a delete horizon, the horizon."""
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length_bytes + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression_type(self) -> CompressionType:
        """Raises UnsupportedCompressionTypeError for the three values that no codec has."""
        return CompressionType.of_attributes(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return _LOG_APPEND_TIME if self.attributes & ATTRIBUTE_LOG_APPEND_TIME else _CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may go; set by the cleaner (KIP-534)."""
        return self.base_timestamp_ms if self.attributes & ATTRIBUTE_DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; NO_SEQUENCE where the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


def increment_sequence(sequence: int, increment: int) -> int:
    """The sequence `increment` records later: after 2147483647 comes 0."""
    return (sequence + increment) & INT32_MAX


def read_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Reads the header in place.

    Raises CorruptRecordError where the buffer ends within the header, the magic is not 2, or the length is less than a
    header's.
    """
    try:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    except struct.error:
        raise CorruptRecordError(
            f"{max(len(buffer) - position, 0)} bytes are not a record batch; its header alone has {BATCH_HEADER_BYTES}"
        ) from None
    if header.magic != MAGIC_V2:
        raise CorruptRecordError(f"batch has magic {header.magic} where 2 is expected")
    if header.length_bytes < BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptRecordError(
            f"batch has {header.length_bytes + LOG_OVERHEAD_BYTES} bytes; its header alone has {BATCH_HEADER_BYTES}"
        )
    return header


def compute_checksum(buffer: Buffer, position: int, size_bytes: int) -> int:
    """CRC-32C of a batch, from its attributes to its end. Copies nothing."""
    return crc.crc32c(memoryview(buffer)[position + CHECKSUMMED_FROM : position + size_bytes])


def verify_checksum(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raises CorruptRecordError where the stored checksum is not that of the bytes, or the buffer ends before the batch
    does.
    """
    size_bytes = header.length_bytes + LOG_OVERHEAD_BYTES
    if position + size_bytes > len(buffer):
        raise CorruptRecordError(f"batch has {size_bytes} bytes where {len(buffer) - position} remain")
    computed = crc.crc32c(memoryview(buffer)[position + CHECKSUMMED_FROM : position + size_bytes])
    if computed != header.crc:
        raise CorruptRecordError(f"batch has checksum {header.crc:#010x}; its bytes have {computed:#010x}")


def set_checksum(batch: bytearray) -> None:
    """Computes the checksum of a batch that fills its buffer, and stores it."""
    _CRC.pack_into(batch, _CRC_AT, crc.crc32c(memoryview(batch)[CHECKSUMMED_FROM:]))


def set_producer(
    batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int, *, is_transactional: bool = False
) -> None:
    """Sets whose batch it is, in a batch that fills its buffer, and the checksum; also that it belongs to that
    producer's transaction.
    """
    PRODUCER.pack_into(batch, PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    if is_transactional:
        batch[ATTRIBUTES_LOW_AT] |= ATTRIBUTE_TRANSACTIONAL
    set_checksum(batch)


def set_base_offset(buffer: bytearray | memoryview, position: int, base_offset: int) -> None:
    """Outside of the checksum."""
    _OFFSET.pack_into(buffer, position, base_offset)


assign_offset_and_epoch: Final = struct.Struct(">qii").pack_into
"""(buffer, position, base offset, length in bytes, leader epoch): sets what the leader decides. The length is written
as it was, to make it one store. All of it is outside of the checksum.
"""


def set_max_timestamp(
    buffer: bytearray | memoryview,
    position: int,
    header: BatchHeader,
    timestamp_type: TimestampType,
    max_timestamp_ms: int,
) -> None:
    """Sets the largest timestamp, the timestamp type and the checksum; touches nothing where both are so already."""
    if header.max_timestamp_ms == max_timestamp_ms and header.timestamp_type is timestamp_type:
        return
    attributes = header.attributes & ~ATTRIBUTE_LOG_APPEND_TIME
    if timestamp_type is _LOG_APPEND_TIME:
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
    _CRC_AND_ATTRIBUTES.pack_into(buffer, position + _CRC_AT, 0, attributes)
    _OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_AT, max_timestamp_ms)
    _CRC.pack_into(buffer, position + _CRC_AT, compute_checksum(buffer, position, header.size_bytes))


class RecordBatch:
    """A batch of magic 2 in a buffer, read when asked."""

    __slots__ = ("_buffer", "_position", "header")

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        """Raises CorruptRecordError where there is no header, or where the buffer ends before the batch does."""
        self.header = read_batch_header(buffer, position)
        if position + self.header.size_bytes > len(buffer):
            raise CorruptRecordError(f"batch has {self.header.size_bytes} bytes where {len(buffer) - position} remain")
        self._buffer = buffer
        self._position = position

    @property
    def magic(self) -> int:
        return MAGIC_V2

    @property
    def size_bytes(self) -> int:
        return self.header.size_bytes

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.last_offset

    @property
    def max_timestamp_ms(self) -> int:
        return self.header.max_timestamp_ms

    @property
    def timestamp_type(self) -> TimestampType:
        return self.header.timestamp_type

    @property
    def compression_type(self) -> CompressionType:
        return self.header.compression_type

    @property
    def is_control(self) -> bool:
        return self.header.is_control

    @property
    def is_transactional(self) -> bool:
        return self.header.is_transactional

    @property
    def producer_id(self) -> int:
        return self.header.producer_id

    @property
    def view(self) -> memoryview:
        """The bytes of the batch."""
        return memoryview(self._buffer)[self._position : self._position + self.header.size_bytes]

    def verify(self) -> None:
        verify_checksum(self._buffer, self._position, self.header)

    def payload(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> Buffer:
        """The bytes of the records, decompressed. Raises as `compression.decompress` does."""
        return decompress(self.view[BATCH_HEADER_BYTES:], self.header.compression_type, decompressed_bytes_max)

    def records(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        header = self._checked_header()
        yield from self.records_in(self.payload(decompressed_bytes_max) if header.record_count else b"")

    def records_in(self, payload: Buffer) -> Iterator[Record]:
        """As `records`, where `payload` has been decompressed already."""
        header = self._checked_header()
        return iterate_records(
            bytes(payload),
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            self._log_append_time_ms(),
        )

    def columns(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> ColumnReader:
        """For who needs keys and values of many records: they are read some at a time. Decompresses at once."""
        header = self._checked_header()
        data = bytes(self.payload(decompressed_bytes_max)) if header.record_count else b""
        return ColumnReader(data, header.record_count, header.base_offset)

    def payload_in_steps(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> WorkSteps[Buffer]:
        """As `payload`, with decompression as work on bytes."""
        return decompress_in_steps(self.view[BATCH_HEADER_BYTES:], self.header.compression_type, decompressed_bytes_max)

    def entries(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> Iterator[RecordEntry]:
        header = self._checked_header()
        yield from iterate_entries(
            bytes(self.payload(decompressed_bytes_max)) if header.record_count else b"",
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            self._log_append_time_ms(),
        )

    def find_timestamp(
        self, timestamp_ms: int, from_offset: int = 0, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX
    ) -> tuple[int, int] | None:
        """Offset and timestamp of the first record from `from_offset` on that is not older than `timestamp_ms`
        (ListOffsets by time).

        None where there is none; then, and where the whole batch has the broker's time, nothing is decompressed.
        """
        header = self.header
        if header.max_timestamp_ms < timestamp_ms or header.last_offset < from_offset:
            return None
        for entry in self.entries(decompressed_bytes_max):
            if entry.timestamp_ms >= timestamp_ms and entry.offset >= from_offset:
                return entry.offset, entry.timestamp_ms
        return None

    def find_max_timestamp(
        self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX
    ) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp (ListOffsets with -3, KIP-734); None
        where no record has one.
        """
        best: tuple[int, int] | None = None
        for entry in self.entries(decompressed_bytes_max):
            if entry.timestamp_ms > (NO_TIMESTAMP if best is None else best[1]):
                best = entry.offset, entry.timestamp_ms
        return best

    def _checked_header(self) -> BatchHeader:
        if self.header.record_count < 0:
            raise InvalidRecordError(f"batch claims {self.header.record_count} records")
        return self.header

    def _log_append_time_ms(self) -> int | None:
        return self.header.max_timestamp_ms if self.header.attributes & ATTRIBUTE_LOG_APPEND_TIME else None
