"""Records and the batches around them, of every message format: where each batch lies in a buffer, and what it holds.

A log segment, the `records` field of a Produce request and that of a Fetch response are all the same thing: batches one
after another. `walk_batches` finds them without looking inside; `batch_formats.batch_at` gives one of them the
face of `Batch`, which is the same for the batches of magic 2 and the messages of magic 0 and 1.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from barnabas.kernel.facts import fact
from barnabas.wire.compression_types import DEFAULT_DECOMPRESSED_BYTES_MAX, Buffer, CompressionType
from barnabas.wire.record_errors import CorruptRecordError

MAGIC_V0: Final = 0
MAGIC_V1: Final = 1
MAGIC_V2: Final = 2

LOG_OVERHEAD_BYTES: Final = 12
"""Offset and size, which precede every batch and every old message, and which the size does not count."""

_SMALLEST_SIZE: Final = (14, 22, 49)  # by magic: what the size field says of a batch, or message, with nothing in it
_PREFIX: Final = struct.Struct(">qiib")  # offset, size, leader epoch or CRC-32, magic

Header = tuple[bytes, bytes | None]
"""Key (UTF-8, as it is on the wire) and value of a record's header."""


class TimestampType(enum.IntEnum):
    """What a record's timestamp means (KIP-32, `message.timestamp.type`); messages of magic 0 have none."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """One record. A tuple, because a consumer makes hundreds of thousands of them a second."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class RecordEntry(NamedTuple):
    """What the cleaner and the look-up by time need of a record, without its value and headers."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    has_value: bool
    size_bytes: int
    """What the record takes in its (decompressed) batch."""


class BatchSpan(NamedTuple):
    """Where a batch lies in a buffer."""

    position: int
    size_bytes: int
    magic: int
    offset: int
    """The base offset of a batch of magic 2; the last offset of a compressed message of magic 0 or 1."""


@fact
class BatchWalk:
    """The whole batches of a buffer, and what is left after them."""

    spans: tuple[BatchSpan, ...]
    end_position: int
    """Where the last whole batch ends."""
    remaining_bytes: int
    """Bytes of a batch that the buffer holds only the beginning of; 0 where it ends with a batch. A Fetch response may
    end so, as may a torn log.
    """
    next_size_bytes: int | None
    """Size of that incomplete batch, where enough of it is there to know."""

    @property
    def is_complete(self) -> bool:
        return self.remaining_bytes == 0


class Batch(Protocol):
    """What batches of every format can say of themselves."""

    @property
    def magic(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def compression_type(self) -> CompressionType: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def producer_id(self) -> int: ...

    def verify(self) -> None:
        """Raises CorruptRecordError where the stored checksum is not that of the bytes."""
        ...

    def records(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """The records in the order of their offsets. Decompresses at the first one; raises InvalidRecordError for what
        cannot be read.
        """
        ...

    def entries(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> Iterator[RecordEntry]:
        """As `records`, without values and headers, and quicker."""
        ...


def walk_batches(
    buffer: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    batch_bytes_max: int | None = None,
    batches_max: int | None = None,
) -> BatchWalk:
    """Finds the batches between `start` and `end` by their size fields; nothing else of them is looked at, and nothing
    behind the first `batches_max`.

    Raises CorruptRecordError for a magic that is not known and for a size that no batch has, or that exceeds
    `batch_bytes_max`: whatever follows could not be found.
    """
    end = len(buffer) if end is None else end
    spans: list[BatchSpan] = []
    position = start
    next_size_bytes: int | None = None
    unpack_from = _PREFIX.unpack_from
    while end - position >= _PREFIX.size and len(spans) != batches_max:
        offset, size, _, magic = unpack_from(buffer, position)
        if not 0 <= magic <= MAGIC_V2:
            raise CorruptRecordError(f"batch at byte {position} has magic {magic}; 0, 1 and 2 are known")
        if size < _SMALLEST_SIZE[magic]:
            raise CorruptRecordError(
                f"batch at byte {position} has size {size}; with magic {magic} the least is {_SMALLEST_SIZE[magic]}"
            )
        next_size_bytes = size + LOG_OVERHEAD_BYTES
        if batch_bytes_max is not None and next_size_bytes > batch_bytes_max:
            raise CorruptRecordError(
                f"batch at byte {position} has {next_size_bytes} bytes; {batch_bytes_max} are allowed"
            )
        if next_size_bytes > end - position:
            break
        spans.append(BatchSpan(position, next_size_bytes, magic, offset))
        position += next_size_bytes
        next_size_bytes = None
    return BatchWalk(tuple(spans), position, end - position, next_size_bytes)
