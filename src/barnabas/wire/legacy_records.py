"""Messages of magic 0 and 1, from before Kafka 0.11: reading them, whole and wrapped, and writing them for consumers
that know nothing newer.

A message is an offset and a size, and then a CRC-32, magic, attributes, from magic 1 on a timestamp (KIP-32), key and
value. A set of messages is compressed by putting it into the value of another message, the wrapper. The wrapper's
offset is that of its last message; the messages inside have absolute offsets with magic 0, and offsets relative to the
first with magic 1 (KIP-31).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from barnabas.wire.byte_work import WorkSteps, decompress_in_steps, run_at_once
from barnabas.wire.compression import compress
from barnabas.wire.compression_types import DEFAULT_DECOMPRESSED_BYTES_MAX, Buffer, Compression, CompressionType
from barnabas.wire.record_errors import CorruptRecordError, InvalidRecordError
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V0, MAGIC_V1, Record, RecordEntry, TimestampType
from barnabas.wire.sentinels import NO_PRODUCER_ID, NO_TIMESTAMP

MESSAGE_OVERHEAD_BYTES: Final = (26, 34)
"""By magic: what a message takes besides key and value."""

MESSAGES_PER_STEP: Final = 1024

_ATTRIBUTE_LOG_APPEND_TIME: Final = 0x08
_PREFIX: Final = struct.Struct(">qiIbb")  # offset, size, CRC-32, magic, attributes
_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_CHECKSUMMED_FROM: Final = 16  # the magic
_TIMESTAMP_AT: Final = 18
_KEY_AT: Final = (18, 26)  # by magic: the length of the key
_NULL: Final = _LENGTH.pack(-1)


class LegacyBatch:
    """A message of magic 0 or 1 in a buffer: a record by itself, or a wrapper with several inside."""

    __slots__ = (
        "_attributes",
        "_buffer",
        "_crc",
        "_end",
        "_offset",
        "_position",
        "_timestamp_ms",
        "magic",
        "size_bytes",
    )

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        """Raises CorruptRecordError where the buffer ends before the message does, or the message is smaller than its
        fields.
        """
        try:
            offset, size, checksum, magic, attributes = _PREFIX.unpack_from(buffer, position)
        except struct.error:
            raise CorruptRecordError(f"{max(len(buffer) - position, 0)} bytes are not a message") from None
        self._offset: int = offset
        self._crc: int = checksum
        self._attributes: int = attributes
        self.magic: int = magic
        if magic not in (MAGIC_V0, MAGIC_V1):
            raise CorruptRecordError(f"message has magic {magic} where 0 or 1 is expected")
        self.size_bytes: int = size + LOG_OVERHEAD_BYTES
        if self.size_bytes < MESSAGE_OVERHEAD_BYTES[self.magic] or position + self.size_bytes > len(buffer):
            raise CorruptRecordError(
                f"message of magic {self.magic} has {self.size_bytes} bytes;"
                f" {MESSAGE_OVERHEAD_BYTES[self.magic]} to {len(buffer) - position} are possible"
            )
        self._buffer = buffer
        self._position = position
        self._end = position + self.size_bytes
        self._timestamp_ms: int = (
            _TIMESTAMP.unpack_from(buffer, position + _TIMESTAMP_AT)[0] if self.magic else NO_TIMESTAMP
        )

    @property
    def base_offset(self) -> int:
        """Of a wrapper, the offset of its first message, for which the wrapper must be decompressed."""
        if self.compression_type is CompressionType.NONE:
            return self._offset
        return next(self.records()).offset

    @property
    def last_offset(self) -> int:
        return self._offset

    @property
    def timestamp_ms(self) -> int:
        """The message's own timestamp."""
        return self._timestamp_ms

    @property
    def max_timestamp_ms(self) -> int:
        return self._timestamp_ms

    @property
    def timestamp_type(self) -> TimestampType:
        if self.magic == MAGIC_V0:
            return TimestampType.NO_TIMESTAMP_TYPE
        return (
            TimestampType.LOG_APPEND_TIME
            if self._attributes & _ATTRIBUTE_LOG_APPEND_TIME
            else TimestampType.CREATE_TIME
        )

    @property
    def compression_type(self) -> CompressionType:
        return CompressionType.of_attributes(self._attributes)

    @property
    def is_control(self) -> bool:
        return False

    @property
    def is_transactional(self) -> bool:
        return False

    @property
    def producer_id(self) -> int:
        return NO_PRODUCER_ID

    @property
    def view(self) -> memoryview:
        """The bytes of the message, with its offset and size."""
        return memoryview(self._buffer)[self._position : self._end]

    def verify(self) -> None:
        computed = zlib.crc32(memoryview(self._buffer)[self._position + _CHECKSUMMED_FROM : self._end])
        if computed != self._crc:
            raise CorruptRecordError(f"message has checksum {self._crc:#010x}; its bytes have {computed:#010x}")

    def key_and_value(self) -> tuple[memoryview | None, memoryview | None]:
        """Of the message itself. Raises InvalidRecordError where they do not fill it exactly."""
        view = memoryview(self._buffer)[: self._end]
        key, position = self._read_bytes(view, self._position + _KEY_AT[self.magic])
        value, position = self._read_bytes(view, position)
        if position != self._end:
            raise InvalidRecordError(f"message has {self._end - position} bytes after its value")
        return key, value

    def _read_bytes(self, view: memoryview, position: int) -> tuple[memoryview | None, int]:
        if position + 4 > len(view):
            raise InvalidRecordError("message ends before its key and value do")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if length < 0:
            return None, position
        if length > len(view) - position:
            raise InvalidRecordError(
                f"message claims {length} bytes of key or value where {len(view) - position} remain"
            )
        return view[position : position + length], position + length

    def records(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        if self.compression_type is CompressionType.NONE:
            yield self.record_of(self._offset, self)
            return
        for offset, message in self.inner_messages(decompressed_bytes_max):
            yield self.record_of(offset, message)

    def record_of(self, offset: int, message: LegacyBatch) -> Record:
        """The record in this message, or in one that it wraps. Raises InvalidRecordError for one that is malformed."""
        timestamp_ms = message._timestamp_ms
        if message is not self and message.magic and self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            timestamp_ms = self._timestamp_ms
        key, value = message.key_and_value()
        return Record(
            offset, timestamp_ms, None if key is None else bytes(key), None if value is None else bytes(value)
        )

    def entries(self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX) -> Iterator[RecordEntry]:
        for record in self.records(decompressed_bytes_max):
            size_bytes = MESSAGE_OVERHEAD_BYTES[self.magic] + len(record.key or b"") + len(record.value or b"")
            yield RecordEntry(record.offset, record.timestamp_ms, record.key, record.value is not None, size_bytes)

    def inner_messages(
        self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX, messages_max: int | None = None
    ) -> list[tuple[int, LegacyBatch]]:
        """The messages in a wrapper with their absolute offsets; no more than the first `messages_max` are looked at.

        Raises InvalidRecordError for a wrapper without messages, with messages that are compressed again or newer than
        the wrapper's format can hold, with a partial message, or whose offset is less than that of its last message;
        and as `compression.decompress` does.
        """
        return run_at_once(self.inner_messages_in_steps(decompressed_bytes_max, messages_max))

    def inner_messages_in_steps(
        self, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX, messages_max: int | None = None
    ) -> WorkSteps[list[tuple[int, LegacyBatch]]]:
        """As `inner_messages`."""
        compression_type = self.compression_type
        if compression_type is CompressionType.ZSTD:
            raise InvalidRecordError(f"message of magic {self.magic} is compressed with zstd, which needs magic 2")
        _, value = self.key_and_value()
        if value is None:
            raise InvalidRecordError("wrapper message has no value")
        data = yield from decompress_in_steps(
            value, compression_type, decompressed_bytes_max, ignore_lz4_checksum=self.magic == MAGIC_V0
        )
        messages: list[LegacyBatch] = []
        position = 0
        while position < len(data) and len(messages) != messages_max:
            try:
                message = LegacyBatch(data, position)
            except CorruptRecordError as problem:
                raise InvalidRecordError(f"wrapper message holds what is no message: {problem}") from None
            if message.compression_type is not CompressionType.NONE:
                raise InvalidRecordError("wrapper message holds a compressed message")
            messages.append(message)
            position += message.size_bytes
            if not len(messages) % MESSAGES_PER_STEP:
                yield None
        if not messages:
            raise InvalidRecordError("wrapper message holds no message")
        base_offset = 0
        # Some producers (old librdkafka) leave the wrapper's offset 0; then the inner offsets stand as they are.
        if self.magic != MAGIC_V0 and self._offset:
            last_inner_offset = messages[-1].last_offset
            if self._offset < last_inner_offset:
                raise InvalidRecordError(
                    f"wrapper message has offset {self._offset}, less than {last_inner_offset} of its last message"
                )
            base_offset = self._offset - last_inner_offset
        found: list[tuple[int, LegacyBatch]] = []
        for message in messages:
            found.append((base_offset + message.last_offset, message))
            if not len(found) % (MESSAGES_PER_STEP * 8):
                yield None
        return found


def write_message(
    magic: int,
    offset: int,
    timestamp_ms: int,
    key: Buffer | None,
    value: Buffer | None,
    *,
    compression_type: CompressionType = CompressionType.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """One message; with magic 0 the timestamp is left out. Raises ValueError for a magic that is not 0 or 1."""
    if magic not in (MAGIC_V0, MAGIC_V1):
        raise ValueError(f"messages have magic 0 or 1, not {magic}")
    attributes = int(compression_type)
    if magic and timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= _ATTRIBUTE_LOG_APPEND_TIME
    body = b"".join(
        (
            bytes((magic, attributes)),
            _TIMESTAMP.pack(timestamp_ms) if magic else b"",
            *((_NULL,) if key is None else (_LENGTH.pack(len(key)), key)),
            *((_NULL,) if value is None else (_LENGTH.pack(len(value)), value)),
        )
    )
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def write_messages(
    magic: int,
    records: Sequence[Record],
    compression: Compression,
    *,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time_ms: int = NO_TIMESTAMP,
) -> bytes:
    """The records, at least one, as messages; in a wrapper where there is a compression. Headers have no place in this
    format and are left out.

    With LOG_APPEND_TIME every message, and the wrapper, has `log_append_time_ms`. Raises ValueError for zstd, which
    this format does not have.
    """
    if compression.type is CompressionType.ZSTD:
        raise ValueError(f"zstd needs magic 2, not {magic}")
    is_append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
    is_compressed = compression.type is not CompressionType.NONE
    subtrahend = records[0].offset if magic and is_compressed else 0
    messages = b"".join(
        write_message(
            magic,
            record.offset - subtrahend,
            log_append_time_ms if is_append_time else record.timestamp_ms,
            record.key,
            record.value,
            timestamp_type=timestamp_type,
        )
        for record in records
    )
    if not is_compressed:
        return messages
    return write_message(
        magic,
        records[-1].offset,
        log_append_time_ms if is_append_time else max(record.timestamp_ms for record in records),
        None,
        compress(messages, compression, broken_lz4_checksum=magic == MAGIC_V0),
        compression_type=compression.type,
        timestamp_type=timestamp_type,
    )
