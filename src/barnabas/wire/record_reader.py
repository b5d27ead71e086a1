"""Reading the records of a batch of magic 2 from its decompressed bytes.

A record is a length and then attributes, timestamp delta, offset delta, key, value and headers; all numbers but the
attributes are zigzag varints. The loops below are written out, with the one-byte varints inline, because they are the
hottest Python of a consumer, of the cleaner and of the leader's checks. They rely on two facts instead of checking each
step: indexing past the end raises IndexError, and a record whose parts do not end exactly where its length says is
refused, so that a slice that was cut short or a part that ran into the next record cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.wire.compression_types import Buffer
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.records import Header, Record, RecordEntry


def read_varint(data: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """A zigzag varint of at most `bits` bits, and the position after it. Raises InvalidRecordError where it is longer,
    IndexError where the data ends.
    """
    byte = data[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    return read_long(data, position, bits)


def read_long(data: Buffer, position: int, bits: int) -> tuple[int, int]:
    """A zigzag varint of more than one byte and at most `bits` bits."""
    byte = data[position + 1]
    value = data[position] & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value >> 1 ^ -(value & 1), position + 2
    position += 2
    shift = 14
    while byte > 0x7F:
        if shift >= bits:
            raise InvalidRecordError(f"a varint of more than {bits} bits at byte {position}")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
    if value >> bits:
        raise InvalidRecordError(f"a varint of more than {bits} bits at byte {position}")
    return value >> 1 ^ -(value & 1), position


def iterate_records(
    data: bytes,
    record_count: int,
    base_offset: int,
    base_timestamp_ms: int,
    log_append_time_ms: int | None,
    first: tuple[int, int] = (0, 0),
) -> Iterator[Record]:
    """The records in `data`, which must hold exactly `record_count` of them. `log_append_time_ms` replaces every
    timestamp where it is given. `first` is the number of the record to begin with, and where it is.

    Raises InvalidRecordError at the record that cannot be read.
    """
    number, position = first
    make = tuple.__new__
    timestamp = log_append_time_ms if log_append_time_ms is not None else base_timestamp_ms
    try:
        for _ in range(number, record_count):
            length = data[position]
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
                position += 1
            else:
                length, position = read_long(data, position, 32)
            end = position + length
            position += 1  # attributes, which have no meaning yet

            delta = data[position]
            if delta < 0x80:
                delta = delta >> 1 ^ -(delta & 1)
                position += 1
            else:
                delta, position = read_long(data, position, 64)
            if log_append_time_ms is None:
                timestamp = base_timestamp_ms + delta

            offset = data[position]
            if offset < 0x80:
                offset = offset >> 1 ^ -(offset & 1)
                position += 1
            else:
                offset, position = read_long(data, position, 32)

            size = data[position]
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
                position += 1
            else:
                size, position = read_long(data, position, 32)
            if size < 0:
                key = None
            else:
                key = data[position : position + size]
                position += size

            size = data[position]
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
                position += 1
            else:
                size, position = read_long(data, position, 32)
            if size < 0:
                value = None
            else:
                value = data[position : position + size]
                position += size

            if data[position]:
                headers, position = _read_headers(data, position)
            else:
                headers = ()
                position += 1
            if position != end:
                raise wrong_length(position, end)
            yield make(Record, (base_offset + offset, timestamp, key, value, headers))
    except IndexError:
        raise ends_early(len(data), record_count) from None
    if position != len(data):
        raise bytes_left(len(data) - position, record_count)


def iterate_entries(
    data: bytes, record_count: int, base_offset: int, base_timestamp_ms: int, log_append_time_ms: int | None
) -> Iterator[RecordEntry]:
    """As `iterate_records`, without values and headers, whose bytes are passed over unread."""
    position = 0
    make = tuple.__new__
    timestamp = log_append_time_ms if log_append_time_ms is not None else base_timestamp_ms
    data_bytes = len(data)
    try:
        for _ in range(record_count):
            start = position
            length = data[position]
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
                position += 1
            else:
                length, position = read_long(data, position, 32)
            end = position + length
            if length < 0 or end > data_bytes:
                raise ends_early(data_bytes, record_count)
            position += 1

            delta = data[position]
            if delta < 0x80:
                delta = delta >> 1 ^ -(delta & 1)
                position += 1
            else:
                delta, position = read_long(data, position, 64)
            if log_append_time_ms is None:
                timestamp = base_timestamp_ms + delta

            offset = data[position]
            if offset < 0x80:
                offset = offset >> 1 ^ -(offset & 1)
                position += 1
            else:
                offset, position = read_long(data, position, 32)

            size = data[position]
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
                position += 1
            else:
                size, position = read_long(data, position, 32)
            if size < 0:
                key = None
            else:
                key = data[position : position + size]
                position += size

            size, position = read_varint(data, position)
            if position + max(size, 0) >= end:
                raise wrong_length(position + max(size, 0), end)
            position = end
            yield make(RecordEntry, (base_offset + offset, timestamp, key, size >= 0, end - start))
    except IndexError:
        raise ends_early(data_bytes, record_count) from None
    if position != data_bytes:
        raise bytes_left(data_bytes - position, record_count)


def _read_headers(data: Buffer, position: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count < 0 or count > len(data) - position:
        raise InvalidRecordError(f"a record claims {count} headers where {len(data) - position} bytes remain")
    headers: list[Header] = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise InvalidRecordError("a header has no key")
        key = bytes(data[position : position + size])
        position += size
        size, position = read_varint(data, position)
        if size < 0:
            headers.append((key, None))
        else:
            headers.append((key, bytes(data[position : position + size])))
            position += size
    if position > len(data):
        raise IndexError
    return tuple(headers), position


def wrong_length(position: int, end: int) -> InvalidRecordError:
    return InvalidRecordError(f"a record's length says that it ends at byte {end}; its parts end at byte {position}")


def ends_early(data_bytes: int, record_count: int) -> InvalidRecordError:
    return InvalidRecordError(f"{data_bytes} bytes end before the {record_count} records that the batch claims")


def bytes_left(left_bytes: int, record_count: int) -> InvalidRecordError:
    return InvalidRecordError(f"{left_bytes} bytes follow the {record_count} records that the batch claims")
