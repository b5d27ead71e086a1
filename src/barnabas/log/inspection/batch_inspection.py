"""Looks at the batches of a segment's file and changes nothing: not while a broker appends to it, and not when it is
damaged.

What a recovery would cut off is shown here instead: a batch that is not all there, bytes that are no batch, a checksum
that is wrong. The file is read once, in pieces, also where a batch is larger than a piece.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from barnabas.kernel.host import Buffer, Files
from barnabas.log.directories.files import read_at
from barnabas.wire import crc
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.legacy_records import LegacyBatch
from barnabas.wire.record_batch import BATCH_HEADER_BYTES, CHECKSUMMED_FROM, BatchHeader, read_batch_header
from barnabas.wire.record_errors import CorruptRecordError, RecordsError
from barnabas.wire.records import MAGIC_V2, Batch, TimestampType, walk_batches
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

SHOWN_BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""The largest batch whose records can be read here."""
_PIECE_BYTES: Final = 1024 * 1024
_PREFIX_BYTES: Final = struct.calcsize(">qiib")  # offset, size, leader epoch or CRC-32, magic
_LEGACY_CRC: Final = struct.Struct(">I")
_LEGACY_CRC_AT: Final = 12


class DamageKind(enum.Enum):
    """What is wrong with the rest of a file."""

    TORN = "torn"
    """It ends within a batch or an entry, as after a loss of power, or while a broker writes."""
    ZEROS = "zeros"
    """Nothing but zeros follows: space that was reserved and not used, or whose data a loss of power took."""
    CORRUPT = "corrupt"
    """What follows cannot be read."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The end of what can be read of a file; what lies behind `position` is unknown."""

    kind: DamageKind
    position: int
    detail: str


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the header of a batch says. What a format has no field for is the protocol's "none", mostly -1."""

    position: int
    """In the file."""
    size_bytes: int
    magic: int
    base_offset: int
    last_offset: int
    record_count: int | None
    """None where only decompressing would tell."""
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_transactional: bool
    is_control: bool
    compression_type: CompressionType | None
    """None for a codec that nobody knows."""
    timestamp_type: TimestampType
    max_timestamp_ms: int
    delete_horizon_ms: int | None
    crc: int
    is_crc_valid: bool | None
    """None where it was not computed."""
    fault: str | None
    """Why a recovery would cut the file off here; None where it would not."""

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes


def inspect_batches(files: Files, descriptor: int, *, checks_crcs: bool = True) -> Iterator[BatchFacts | Damage]:
    """The batches of a file in their order; one Damage, at the end, where the rest cannot be read as batches.

    A batch that a broker has begun to write meanwhile counts once it is whole. Raises OSError.
    """
    window = _Window(files, descriptor)
    end = files.size(descriptor)
    position = 0
    last_offset: int | None = None
    while position < end:
        left_bytes = end - position
        size_bytes = _batch_bytes(window, position, left_bytes)
        if size_bytes is None or (isinstance(size_bytes, int) and size_bytes > left_bytes):
            grown = files.size(descriptor)
            if grown > end:  # it was being written
                end = grown
                continue
            of = "which not even the size is there" if size_bytes is None else f"{size_bytes} bytes"
            yield Damage(DamageKind.TORN, position, f"the file ends after {left_bytes} bytes of a batch of {of}")
            return
        if isinstance(size_bytes, Damage):
            yield size_bytes
            return
        try:
            facts = _facts(window, position, size_bytes, last_offset, checks_crcs=checks_crcs)
        except RecordsError as error:
            yield Damage(DamageKind.CORRUPT, position, str(error))
            return
        yield facts
        position += size_bytes
        last_offset = facts.last_offset


def read_batch(files: Files, descriptor: int, facts: BatchFacts) -> Batch:
    """The batch itself, for its records. Raises RecordsError where it is too large or not what it was any more."""
    if facts.size_bytes > SHOWN_BATCH_BYTES_MAX:
        raise CorruptRecordError(f"a batch of {facts.size_bytes} bytes is too large to be shown")
    data = read_at(files, descriptor, facts.size_bytes, facts.position)
    spans = walk_batches(data).spans
    if not spans:
        raise CorruptRecordError("the batch was cut off meanwhile")
    return batch_at(data, spans[0])


def is_zero_from(files: Files, descriptor: int, position: int) -> bool:
    """Whether the rest of a file is there and has nothing but zeros."""
    found = False
    while data := files.pread(descriptor, _PIECE_BYTES, position):
        if data.count(0) != len(data):
            return False
        found = True
        position += len(data)
    return found


class _Window:
    """A piece of a file, read ahead."""

    __slots__ = ("_data", "_start", "descriptor", "files")

    def __init__(self, files: Files, descriptor: int) -> None:
        self.files = files
        self.descriptor = descriptor
        self._start = 0
        self._data = b""

    def view(self, position: int, size_bytes: int) -> memoryview:
        """The bytes from `position` on: `size_bytes` of them, or fewer where the file ends."""
        at = position - self._start
        if at < 0 or at + size_bytes > len(self._data):
            wanted = max(_PIECE_BYTES, size_bytes)
            self._data = read_at(self.files, self.descriptor, wanted, position)
            self._start = position
            at = 0
        return memoryview(self._data)[at : at + size_bytes]

    def checksum(self, position: int, end: int) -> int:
        """CRC-32C of a range; a large one is not read as a whole."""
        value = 0
        while position < end:
            piece = self.view(position, min(end - position, _PIECE_BYTES))
            if not piece:
                raise CorruptRecordError("the file was cut off meanwhile")
            value = crc.crc32c(piece, value)
            position += len(piece)
        return value


def _batch_bytes(window: _Window, position: int, left_bytes: int) -> int | Damage | None:
    """The size of the batch at a position; None where too little of it is there to know."""
    if left_bytes < _PREFIX_BYTES:
        return None
    prefix = window.view(position, _PREFIX_BYTES)
    try:
        size_bytes = walk_batches(prefix).next_size_bytes
    except CorruptRecordError:
        if not any(prefix) and is_zero_from(window.files, window.descriptor, position):
            return Damage(DamageKind.ZEROS, position, f"the last {left_bytes} bytes are zeros")
        size, magic = struct.unpack_from(">i4xb", prefix, 8)
        return Damage(
            DamageKind.CORRUPT,
            position,
            f"no batch begins here: its magic would be {magic}, and its size {size}",
        )
    if size_bytes is None:
        raise RuntimeError("a batch is never as small as its prefix")
    return size_bytes


def _facts(
    window: _Window, position: int, size_bytes: int, previous_offset: int | None, *, checks_crcs: bool
) -> BatchFacts:
    magic = window.view(position, _PREFIX_BYTES)[_PREFIX_BYTES - 1]
    if magic != MAGIC_V2:
        return _legacy_facts(window, position, size_bytes, previous_offset)
    header = read_batch_header(window.view(position, BATCH_HEADER_BYTES))
    computed = None
    if checks_crcs:
        computed = window.checksum(position + CHECKSUMMED_FROM, position + size_bytes)
    return BatchFacts(
        position=position,
        size_bytes=size_bytes,
        magic=magic,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        compression_type=_codec(header.attributes),
        timestamp_type=header.timestamp_type,
        max_timestamp_ms=header.max_timestamp_ms,
        delete_horizon_ms=header.delete_horizon_ms,
        crc=header.crc,
        is_crc_valid=None if computed is None else computed == header.crc,
        fault=_fault(header, computed, previous_offset),
    )


def _fault(header: BatchHeader, computed: int | None, previous_offset: int | None) -> str | None:
    if computed is not None and computed != header.crc:
        return f"its checksum is {header.crc:#010x}, and that of its bytes {computed:#010x}"
    if _codec(header.attributes) is None:
        return f"its codec has number {header.attributes & 7}, which nobody knows"
    if header.last_offset_delta < 0 or header.record_count < 0:
        return f"it claims {header.record_count} records, the last one {header.last_offset_delta} after the first"
    return _order_fault(header.base_offset, previous_offset)


def _order_fault(base_offset: int, previous_offset: int | None) -> str | None:
    if previous_offset is not None and base_offset <= previous_offset:
        return f"it begins with offset {base_offset}, and the batch before it ends with {previous_offset}"
    return None


def _legacy_facts(window: _Window, position: int, size_bytes: int, previous_offset: int | None) -> BatchFacts:
    """Of a message of magic 0 or 1; the checksum is always computed, since what is inside is read."""
    if size_bytes > SHOWN_BATCH_BYTES_MAX:
        raise CorruptRecordError(f"a message of {size_bytes} bytes is too large to be read")
    view: Buffer = window.view(position, size_bytes)
    batch = LegacyBatch(view)
    codec = _codec(view[_PREFIX_BYTES])
    fault: str | None = None
    base_offset = batch.last_offset
    record_count: int | None = None
    try:
        batch.verify()
        is_crc_valid = True
    except CorruptRecordError as error:
        is_crc_valid, fault = False, str(error)
    if fault is None:
        try:
            offsets = [entry.offset for entry in batch.entries()]
            base_offset, record_count = min(offsets, default=base_offset), len(offsets)
            fault = _order_fault(base_offset, previous_offset)
        except RecordsError as error:
            fault = str(error)
    return BatchFacts(
        position=position,
        size_bytes=size_bytes,
        magic=batch.magic,
        base_offset=base_offset,
        last_offset=batch.last_offset,
        record_count=record_count,
        partition_leader_epoch=NO_EPOCH,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        last_sequence=NO_SEQUENCE,
        is_transactional=False,
        is_control=False,
        compression_type=codec,
        timestamp_type=batch.timestamp_type,
        max_timestamp_ms=batch.max_timestamp_ms if batch.magic else NO_TIMESTAMP,
        delete_horizon_ms=None,
        crc=_LEGACY_CRC.unpack_from(view, _LEGACY_CRC_AT)[0],
        is_crc_valid=is_crc_valid,
        fault=fault,
    )


def _codec(attributes: int) -> CompressionType | None:
    try:
        return CompressionType.of_attributes(attributes)
    except RecordsError:
        return None
