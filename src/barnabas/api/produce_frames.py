"""The frames of Produce requests as nearly all are: one partition, one batch, no transaction.

A producer's requests are the same bytes from the client id up to the size of the records, as long as they are for one
partition. So what was read of one is kept, and the next is known by comparing those bytes. Measured, the general
codec's objects cost more than the append. Whatever is not exactly of this form is left to it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from barnabas.wire.topics import TopicPartition

OLDEST_VERSION: Final = 3
"""Before it, a request has message sets and no transactional id."""
FLEXIBLE_SINCE: Final = 9
MAGIC_END: Final = 17
"""In a batch, where its magic ends; the checksum follows."""
ATTRIBUTES_AT: Final = 22
"""In a batch, the low byte of its attributes; the high one has no bits yet."""
RECORD_COUNT_AT: Final = 57
TRANSACTIONAL_OR_CONTROL: Final = 0x30
"""The bits of the attributes that are left to the general path."""
_RECORD_ERRORS_SINCE: Final = 8
_LOG_START_SINCE: Final = 5
_SMALLEST_BATCH_BYTES: Final = 61
_MAGIC_AT: Final = 16
_MAGIC: Final = 2

# Transactional id (null), acks, time-out, one topic, length of its name.
_START: Final = struct.Struct(">hhiih")
_FLEXIBLE_START: Final = struct.Struct(">BhiBB")
# One partition, its number.
_PARTITION: Final = struct.Struct(">ii")
_FLEXIBLE_PARTITION: Final = struct.Struct(">Bi")
_size_at: Final = struct.Struct(">i").unpack_from
_INT16: Final = struct.Struct(">h").pack
_INT32: Final = struct.Struct(">i").pack
_HEADER_BYTES: Final = 8


class ProduceFrame(NamedTuple):
    """What such a request says, but for its records."""

    topic_partition: TopicPartition
    acks: int
    timeout_ms: int
    size_at: int
    """Where the size of the records is."""


def read_frame(buffer: bytearray | memoryview, position: int, api_version: int) -> ProduceFrame | None:
    """Reads the body that begins at `position`, up to the records; None if it is not of the form, or broken."""
    try:
        if api_version < FLEXIBLE_SINCE:
            null_id, acks, timeout_ms, topics, name_length = _START.unpack_from(buffer, position)
            name_start = position + _START.size
            is_usual = null_id == -1 and topics == 1 and name_length > 0
        else:
            null_id, acks, timeout_ms, topics, name_length = _FLEXIBLE_START.unpack_from(buffer, position)
            name_start = position + _FLEXIBLE_START.size
            is_usual = null_id == 0 and topics == 2 and 1 < name_length < 0x80
            name_length -= 1
        if not is_usual:
            return None
        name_end = name_start + name_length
        name = bytes(buffer[name_start:name_end]).decode()
        if api_version < FLEXIBLE_SINCE:
            partitions, number = _PARTITION.unpack_from(buffer, name_end)
            size_at = name_end + _PARTITION.size
            partitions += 1
        else:
            partitions, number = _FLEXIBLE_PARTITION.unpack_from(buffer, name_end)
            size_at = name_end + _FLEXIBLE_PARTITION.size
    except (struct.error, UnicodeDecodeError):
        return None
    if partitions != 2:
        return None
    return ProduceFrame(TopicPartition(name, number), acks, timeout_ms, size_at)


def find_records(buffer: bytearray | memoryview, size_at: int, end: int) -> int | None:
    """Where the records begin, which go up to `end`; None if they are not one batch in the right place.

    For versions before 9; the batch itself is not looked into, but for being of magic 2 and of no transaction.
    """
    start = size_at + 4
    if (
        end - start < _SMALLEST_BATCH_BYTES
        or _size_at(buffer, size_at)[0] != end - start
        or buffer[start + _MAGIC_AT] != _MAGIC
        or buffer[start + ATTRIBUTES_AT] & TRANSACTIONAL_OR_CONTROL
    ):
        return None
    return start


def find_compact_records(buffer: bytearray | memoryview, size_at: int, end: int) -> int | None:
    """As `find_records`, for version 9 and above, where three counts of no tagged fields are between records and
    `end`.
    """
    size = shift = 0
    start = size_at
    while start < end and shift <= 28:
        byte = buffer[start]
        start += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    size -= 1
    if (
        size < _SMALLEST_BATCH_BYTES
        or start + size + 3 != end
        or buffer[end - 3] | buffer[end - 2] | buffer[end - 1]
        or buffer[start + _MAGIC_AT] != _MAGIC
        or buffer[start + ATTRIBUTES_AT] & TRANSACTIONAL_OR_CONTROL
    ):
        return None
    return start


class ResponseForm:
    """The response to such requests of one version for one partition, ready but for its numbers."""

    __slots__ = ("_has_log_start_offset", "_pack", "_prefix", "_size", "_suffix", "_unpack", "error_at")

    def __init__(self, topic_partition: TopicPartition, api_version: int) -> None:
        name = topic_partition.topic.encode()
        number = _INT32(topic_partition.partition)
        if api_version < FLEXIBLE_SINCE:
            prefix = _INT32(1) + _INT16(len(name)) + name + _INT32(1) + number
            # No record errors and no message; throttle time.
            suffix = _INT32(0) + _INT16(-1) + _INT32(0) if api_version >= _RECORD_ERRORS_SINCE else _INT32(0)
        else:
            # The header's tags, one topic, one partition.
            prefix = b"\x00\x02" + bytes((len(name) + 1,)) + name + b"\x02" + number
            # No record errors, no message, tags of partition and topic, throttle time, tags.
            suffix = b"\x01\x00\x00\x00" + _INT32(0) + b"\x00"
        self._has_log_start_offset = api_version >= _LOG_START_SINCE
        numbers = "hqqq" if self._has_log_start_offset else "hqq"
        form = struct.Struct(f">ii{len(prefix)}s{numbers}{len(suffix)}s")
        self._pack = form.pack
        self._unpack = form.unpack_from
        self._size = form.size - 4
        self._prefix = prefix
        self._suffix = suffix
        self.error_at = _HEADER_BYTES + len(prefix)
        """Where the error code is in the frame; the first offset, the time and the log's start follow it."""

    def frame(
        self, correlation_id: int, first_offset: int, log_append_time_ms: int, log_start_offset: int
    ) -> bytearray:
        """The response without error; it can be changed by `set_error` until it is sent."""
        if self._has_log_start_offset:
            numbers = self._pack(
                self._size,
                correlation_id,
                self._prefix,
                0,
                first_offset,
                log_append_time_ms,
                log_start_offset,
                self._suffix,
            )
            return bytearray(numbers)
        return bytearray(
            self._pack(self._size, correlation_id, self._prefix, 0, first_offset, log_append_time_ms, self._suffix)
        )

    def set_error(self, frame: bytearray, code: int) -> None:
        """Makes it say that the records do not count as written; the offsets stay."""
        frame[self.error_at : self.error_at + 2] = _INT16(code)

    def numbers(self, frame: bytearray) -> tuple[int, int, int, int]:
        """Of a response that `frame` has made: correlation id, first offset, time, and the log's start, -1 where the
        version has none.
        """
        _, correlation_id, _, _, *numbers, _ = self._unpack(frame)
        first_offset, log_append_time_ms, log_start_offset = numbers if self._has_log_start_offset else (*numbers, -1)
        return correlation_id, first_offset, log_append_time_ms, log_start_offset
