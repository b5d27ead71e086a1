"""The frames of Produce requests as nearly all are: one partition, one batch, no transaction.

What is before and behind the batch is read in place with two look-ups, and the response is one `struct`: measured, the
general codec's objects cost more than the append. Whatever is not exactly of this form is left to it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.coordination.layout.topics import TopicPartition

OLDEST_VERSION: Final = 3
"""Before it, a request has message sets and no transactional id."""
_FLEXIBLE_SINCE: Final = 9
_RECORD_ERRORS_SINCE: Final = 8
_LOG_START_SINCE: Final = 5
_SMALLEST_BATCH_BYTES: Final = 61
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22  # the low byte: the high one has no bits yet
_TRANSACTIONAL_OR_CONTROL: Final = 0x30
_MAGIC: Final = 2

# Transactional id (null), acks, time-out, one topic, length of its name.
_START: Final = struct.Struct(">hhiih")
_FLEXIBLE_START: Final = struct.Struct(">BhiBB")
# One partition, its number, the size of its records.
_PARTITION: Final = struct.Struct(">iii")
_FLEXIBLE_PARTITION: Final = struct.Struct(">BiB")
_INT16: Final = struct.Struct(">h").pack
_INT32: Final = struct.Struct(">i").pack
_HEADER_BYTES: Final = 8


class ProduceFrame(NamedTuple):
    """What such a request says."""

    key: bytes
    """Topic and partition, as they are in the frame."""
    acks: int
    timeout_ms: int
    records_start: int
    records_end: int


def read_frame(buffer: bytearray | memoryview, position: int, end: int, api_version: int) -> ProduceFrame | None:
    """Reads the body `buffer[position:end]`; None if it is not of the form, or broken."""
    try:
        if api_version < _FLEXIBLE_SINCE:
            null_id, acks, timeout_ms, topics, name_length = _START.unpack_from(buffer, position)
            if null_id != -1 or topics != 1 or name_length <= 0:
                return None
            key_start = position + 12
            start = key_start + 2 + name_length
            partitions, _, size = _PARTITION.unpack_from(buffer, start)
            start += 12
            if partitions != 1 or start + size != end:
                return None
            records_end = end
            key_end = start - 4
        else:
            null_id, acks, timeout_ms, topics, name_length = _FLEXIBLE_START.unpack_from(buffer, position)
            if null_id != 0 or topics != 2 or not 1 < name_length < 0x80:
                return None
            key_start = position + 8
            start = key_start + name_length
            partitions, _, size = _FLEXIBLE_PARTITION.unpack_from(buffer, start)
            key_end = start + 5
            start += 6
            if size > 0x7F:
                size &= 0x7F
                shift = 7
                while buffer[start] > 0x7F and shift < 28:
                    size |= (buffer[start] & 0x7F) << shift
                    shift += 7
                    start += 1
                size |= buffer[start] << shift
                start += 1
            records_end = start + size - 1
            if partitions != 2 or records_end + 3 != end or any(buffer[records_end:end]):
                return None
        if (
            records_end - start < _SMALLEST_BATCH_BYTES
            or buffer[start + _MAGIC_AT] != _MAGIC
            or buffer[start + _ATTRIBUTES_AT] & _TRANSACTIONAL_OR_CONTROL
        ):
            return None
    except (struct.error, IndexError):
        return None
    return ProduceFrame(bytes(buffer[key_start:key_end]), acks, timeout_ms, start, records_end)


def read_key(key: bytes, api_version: int) -> TopicPartition | None:
    """The topic and partition of a frame's key; None if the name is not UTF-8."""
    name = key[1:-5] if api_version >= _FLEXIBLE_SINCE else key[2:-8]
    try:
        return TopicPartition(name.decode(), int.from_bytes(key[-4:], "big", signed=True))
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """The response to such requests of one version for one partition, ready but for its numbers."""

    has_log_start_offset: bool
    error_at: int
    """Where the error code is in the frame; the first offset, the time and the log's start follow it."""
    _pack: struct.Struct
    _size: int
    _prefix: bytes
    _suffix: bytes

    @classmethod
    def of(cls, topic_partition: TopicPartition, api_version: int) -> ResponseForm:
        name = topic_partition.topic.encode()
        number = _INT32(topic_partition.partition)
        if api_version < _FLEXIBLE_SINCE:
            prefix = _INT32(1) + _INT16(len(name)) + name + _INT32(1) + number
            # No record errors and no message; throttle time.
            suffix = _INT32(0) + _INT16(-1) + _INT32(0) if api_version >= _RECORD_ERRORS_SINCE else _INT32(0)
        else:
            # The header's tags, one topic, one partition.
            prefix = b"\x00\x02" + bytes((len(name) + 1,)) + name + b"\x02" + number
            # No record errors, no message, tags of partition and topic, throttle time, tags.
            suffix = b"\x01\x00\x00\x00" + _INT32(0) + b"\x00"
        has_log_start_offset = api_version >= _LOG_START_SINCE
        numbers = "hqqq" if has_log_start_offset else "hqq"
        pack = struct.Struct(f">ii{len(prefix)}s{numbers}{len(suffix)}s")
        return cls(has_log_start_offset, _HEADER_BYTES + len(prefix), pack, pack.size - 4, prefix, suffix)

    def frame(
        self, correlation_id: int, first_offset: int, log_append_time_ms: int, log_start_offset: int
    ) -> bytearray:
        """The response without error; it can be changed by `set_error` until it is sent."""
        if self.has_log_start_offset:
            return bytearray(
                self._pack.pack(
                    self._size,
                    correlation_id,
                    self._prefix,
                    0,
                    first_offset,
                    log_append_time_ms,
                    log_start_offset,
                    self._suffix,
                )
            )
        return bytearray(
            self._pack.pack(self._size, correlation_id, self._prefix, 0, first_offset, log_append_time_ms, self._suffix)
        )

    def set_error(self, frame: bytearray, code: int) -> None:
        """Makes it say that the records do not count as written; the offsets stay."""
        frame[self.error_at : self.error_at + 2] = _INT16(code)
