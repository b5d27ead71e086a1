"""Reading the records of a batch of magic 2 from its decompressed bytes.

A record is a length and then attributes, timestamp delta, offset delta, key, value and headers; all numbers but the
attributes are zigzag varints. The loops below are written out, with the one-byte varints inline, because they are the
hottest Python of a consumer, of the cleaner and of the leader's checks. They rely on two facts instead of checking each
step: indexing past the end raises IndexError, and a record whose parts do not end exactly where its length says is
refused, so that a slice that was cut short or a part that ran into the next record cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.wire.compression import Buffer
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.record_runs import RUN_MIN, run_like
from barnabas.wire.records import NO_OFFSET, NO_TIMESTAMP, Header, Record, RecordEntry

_INT64_MAX: Final = (1 << 63) - 1
_BEYOND_INT64: Final = 1 << 64
_COPIED_BYTES_PER_RECORD_MAX: Final = 2_048
"""Records of at most so many bytes on average are scanned in a copy as `bytes`, of which an index is so much cheaper
than of a memoryview that the copy pays.
"""
_VAIN_RUNS_MAX: Final = 3
"""Runs of like records that are looked for in vain before a batch counts as one without them."""
_new_scan: Final = tuple.__new__


class RecordScan(NamedTuple):
    """What a check of all records of a batch found."""

    max_timestamp_ms: int
    """NO_TIMESTAMP where no record has one."""
    min_timestamp_ms: int
    """The least timestamp of a record that has one; NO_TIMESTAMP where none has."""
    offset_delta_of_max_timestamp: int
    """Of the first record with the largest timestamp; NO_OFFSET where none has one."""
    has_sequential_offsets: bool
    """The offset deltas are 0, 1, 2, ..."""
    has_all_keys: bool


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zigzag varint of 32 bits, and the position after it. Raises InvalidRecordError where it is longer, IndexError
    where the data ends.
    """
    byte = data[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    return _read_long(data, position, 32)


def _read_long(data: Buffer, position: int, bits: int) -> tuple[int, int]:
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
    data: bytes, record_count: int, base_offset: int, base_timestamp_ms: int, log_append_time_ms: int | None
) -> Iterator[Record]:
    """The records in `data`, which must hold exactly `record_count` of them. `log_append_time_ms` replaces every
    timestamp where it is given.

    Raises InvalidRecordError at the record that cannot be read.
    """
    position = 0
    make = tuple.__new__
    timestamp = log_append_time_ms if log_append_time_ms is not None else base_timestamp_ms
    try:
        for _ in range(record_count):
            length = data[position]
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
                position += 1
            else:
                length, position = _read_long(data, position, 32)
            end = position + length
            position += 1  # attributes, which have no meaning yet

            delta = data[position]
            if delta < 0x80:
                delta = delta >> 1 ^ -(delta & 1)
                position += 1
            else:
                delta, position = _read_long(data, position, 64)
            if log_append_time_ms is None:
                timestamp = base_timestamp_ms + delta

            offset = data[position]
            if offset < 0x80:
                offset = offset >> 1 ^ -(offset & 1)
                position += 1
            else:
                offset, position = _read_long(data, position, 32)

            size = data[position]
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
                position += 1
            else:
                size, position = _read_long(data, position, 32)
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
                size, position = _read_long(data, position, 32)
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
                raise _wrong_length(position, end)
            yield make(Record, (base_offset + offset, timestamp, key, value, headers))
    except IndexError:
        raise _ends_early(len(data), record_count) from None
    if position != len(data):
        raise _bytes_left(len(data) - position, record_count)


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
                length, position = _read_long(data, position, 32)
            end = position + length
            if length < 0 or end > data_bytes:
                raise _ends_early(data_bytes, record_count)
            position += 1

            delta = data[position]
            if delta < 0x80:
                delta = delta >> 1 ^ -(delta & 1)
                position += 1
            else:
                delta, position = _read_long(data, position, 64)
            if log_append_time_ms is None:
                timestamp = base_timestamp_ms + delta

            offset = data[position]
            if offset < 0x80:
                offset = offset >> 1 ^ -(offset & 1)
                position += 1
            else:
                offset, position = _read_long(data, position, 32)

            size = data[position]
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
                position += 1
            else:
                size, position = _read_long(data, position, 32)
            if size < 0:
                key = None
            else:
                key = data[position : position + size]
                position += size

            size, position = read_varint(data, position)
            if position + max(size, 0) >= end:
                raise _wrong_length(position + max(size, 0), end)
            position = end
            yield make(RecordEntry, (base_offset + offset, timestamp, key, size >= 0, end - start))
    except IndexError:
        raise _ends_early(data_bytes, record_count) from None
    if position != data_bytes:
        raise _bytes_left(data_bytes - position, record_count)


def scan_records(data: Buffer, record_count: int, base_timestamp_ms: int) -> RecordScan:
    """Checks the structure of all records, headers included, and makes none of them.

    Raises InvalidRecordError for the first that cannot be read, and for timestamps that do not fit 64 bits.
    """
    if type(data) is memoryview and len(data) <= record_count * _COPIED_BYTES_PER_RECORD_MAX:
        data = data.tobytes()
    # What producers send has the offset deltas 0, 1, 2, ...; all else, whether or not it is wrong, takes longer.
    no_timestamp_delta = NO_TIMESTAMP - base_timestamp_ms
    try:
        if record_count > RUN_MIN and type(data) is bytes:
            part = _scan_with_runs(data, record_count, no_timestamp_delta)
        else:
            part = _scan_part(data, 0, 0, record_count, no_timestamp_delta)
    except (IndexError, InvalidRecordError):
        part = None
    if part is None or part[0] != len(data):
        return _scan_any(data, record_count, base_timestamp_ms)
    _, max_delta, min_delta, offset_of_max, has_all_keys = part
    return _summary(base_timestamp_ms, max_delta, min_delta, offset_of_max, True, has_all_keys)


def scan_one_record(data: Buffer, position: int, base_timestamp_ms: int) -> RecordScan | None:
    """`scan_records` for the one record from `position` to the end, in the form that producers give it: its timestamp
    is that of the batch, and it has no headers. None for all else, good or bad.

    It is what a batch of one record costs most, if every step of the loop that reads many is done for it.
    """
    end = len(data)
    try:
        length = data[position]
        start = position + 1
        if length > 0x7F:
            byte = data[start]
            if byte > 0x7F:
                return None
            length += byte - 1 << 7
            start += 1
        # Behind the attributes: the deltas of timestamp and offset. A record without timestamp counts in no range.
        if length != end - start << 1 or data[start + 1] or data[start + 2] or base_timestamp_ms < 0:
            return None
        size = data[start + 3]  # of the key
        position = start + 4
        has_key = size != 1
        if has_key:
            if size & 0x81:
                return None
            position += size >> 1
        size = data[position]  # of the value
        position += 1
        if size > 0x7F:
            byte = data[position]
            if byte > 0x7F or size & 1:
                return None
            position += (size + (byte - 1 << 7) >> 1) + 1
        elif size != 1:
            if size & 1:
                return None
            position += size >> 1
        if data[position] or position + 1 != end:
            return None
    except IndexError:
        return None
    return _new_scan(RecordScan, (base_timestamp_ms, base_timestamp_ms, 0, True, has_key))


# Position, largest and smallest timestamp delta, the offset delta of the first with the largest, whether all have keys.
_Part = tuple[int, int, int, int, bool]


def _scan_with_runs(data: bytes, record_count: int, no_timestamp_delta: int) -> _Part | None:
    """`_scan_part` of all records, of which those that are like one before them are checked by columns."""
    position = number = 0
    max_delta, min_delta = -_BEYOND_INT64, _BEYOND_INT64
    offset_of_max = NO_OFFSET
    has_all_keys = True
    runs_left = _VAIN_RUNS_MAX
    while number < record_count:
        has_runs = runs_left > 0 and record_count - number > RUN_MIN
        stop = number + 1 if has_runs else record_count
        part = _scan_part(data, position, number, stop, no_timestamp_delta)
        if part is None:
            return None
        begin, number = position, stop
        position, part_max, part_min, part_offset_of_max, part_has_all_keys = part
        has_all_keys = has_all_keys and part_has_all_keys
        if part_max > max_delta:
            max_delta, offset_of_max = part_max, part_offset_of_max
        min_delta = min(min_delta, part_min)
        if not has_runs:
            continue
        run = run_like(data, begin, position, number, record_count - number, no_timestamp_delta)
        if not run.records:
            runs_left -= 1
        elif run.max_delta is not None:
            if run.max_delta > max_delta:
                max_delta, offset_of_max = run.max_delta, run.number_of_max
            min_delta = min(min_delta, run.min_delta)
        position += run.records * (position - begin)
        number += run.records
    return position, max_delta, min_delta, offset_of_max, has_all_keys


def _scan_part(data: Buffer, position: int, number: int, stop: int, no_timestamp_delta: int) -> _Part | None:
    """The records from `number`, at `position`, to `stop`; None, or an error, where they are unusual.

    Varints of two bytes are read in place. Record lengths and offset deltas are compared as they are encoded, which is
    twice the value, so that a negative one, being odd, equals nothing. A timestamp that is the one before again is
    passed over.
    """
    max_delta, min_delta = -_BEYOND_INT64, _BEYOND_INT64
    offset_of_max = NO_OFFSET
    has_all_keys = True
    encoded_before = -1
    for expected in range(number << 1, stop << 1, 2):
        length = data[position]
        position += 1
        if length > 0x7F:
            byte = data[position]
            if byte < 0x80:
                length += byte - 1 << 7
                position += 1
            else:
                length, position = _read_long(data, position - 1, 32)
                length <<= 1
        start = position
        encoded = data[position + 1]  # behind the attributes
        position += 2
        if encoded != encoded_before or encoded > 0x7F:
            encoded_before = encoded
            if encoded < 0x80:
                delta = encoded >> 1 ^ -(encoded & 1)
            else:
                delta, position = _read_long(data, position - 1, 64)
            if delta > max_delta and delta != no_timestamp_delta:
                max_delta = delta
                offset_of_max = expected >> 1
            if delta < min_delta and delta != no_timestamp_delta:
                min_delta = delta

        offset = data[position]
        position += 1
        if offset > 0x7F:
            byte = data[position]
            if byte < 0x80:
                offset += byte - 1 << 7
                position += 1
            else:
                offset, position = _read_long(data, position - 1, 32)
                offset <<= 1
        if offset != expected:
            return None

        size = data[position]  # of the key
        position += 1
        if size == 1:
            has_all_keys = False
        elif size & 0x81:
            position = _skip_bytes(data, position - 1)
        else:
            position += size >> 1

        size = data[position]  # of the value
        position += 1
        if size & 0x81:
            if size > 0x7F and not size & 1 and data[position] < 0x80:
                position += (size + (data[position] - 1 << 7) >> 1) + 1
            elif size != 1:
                position = _skip_bytes(data, position - 1)
        else:
            position += size >> 1

        if data[position]:
            position = _skip_headers(data, position)
        else:
            position += 1
        if position - start << 1 != length:
            return None
    return position, max_delta, min_delta, offset_of_max, has_all_keys


def _scan_any(data: Buffer, record_count: int, base_timestamp_ms: int) -> RecordScan:
    """`scan_records` for all that the format allows; what is wrong is refused here."""
    position = 0
    max_delta, min_delta = -_BEYOND_INT64, _BEYOND_INT64
    offset_of_max = NO_OFFSET
    is_sequential = has_all_keys = True
    no_timestamp_delta = NO_TIMESTAMP - base_timestamp_ms
    try:
        for expected_offset in range(record_count):
            length = data[position]
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
                position += 1
            else:
                length, position = _read_long(data, position, 32)
            end = position + length
            position += 1

            delta = data[position]
            if delta < 0x80:
                delta = delta >> 1 ^ -(delta & 1)
                position += 1
            else:
                delta, position = _read_long(data, position, 64)

            offset = data[position]
            if offset < 0x80:
                offset = offset >> 1 ^ -(offset & 1)
                position += 1
            else:
                offset, position = _read_long(data, position, 32)
            if offset != expected_offset:
                is_sequential = False
            if delta != no_timestamp_delta:
                if delta > max_delta:
                    max_delta = delta
                    offset_of_max = offset
                if delta < min_delta:
                    min_delta = delta

            size = data[position]
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
                position += 1
            else:
                size, position = _read_long(data, position, 32)
            if size < 0:
                has_all_keys = False
            else:
                position += size

            size = data[position]
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
                position += 1
            else:
                size, position = _read_long(data, position, 32)
            position += max(0, size)

            if data[position]:
                position = _skip_headers(data, position)
            else:
                position += 1
            if position != end:
                raise _wrong_length(position, end)
    except IndexError:
        raise _ends_early(len(data), record_count) from None
    if position != len(data):
        raise _bytes_left(len(data) - position, record_count)
    return _summary(base_timestamp_ms, max_delta, min_delta, offset_of_max, is_sequential, has_all_keys)


def _summary(
    base_timestamp_ms: int,
    max_delta: int,
    min_delta: int,
    offset_delta_of_max_timestamp: int,
    has_sequential_offsets: bool,
    has_all_keys: bool,
) -> RecordScan:
    if max_delta < min_delta:
        return RecordScan(NO_TIMESTAMP, NO_TIMESTAMP, NO_OFFSET, has_sequential_offsets, has_all_keys)
    max_timestamp_ms, min_timestamp_ms = base_timestamp_ms + max_delta, base_timestamp_ms + min_delta
    if max_timestamp_ms > _INT64_MAX or min_timestamp_ms < -_INT64_MAX:
        raise InvalidRecordError("a record's timestamp does not fit 64 bits")
    return _new_scan(
        RecordScan,
        (max_timestamp_ms, min_timestamp_ms, offset_delta_of_max_timestamp, has_sequential_offsets, has_all_keys),
    )


def _skip_bytes(data: Buffer, position: int) -> int:
    """Where the bytes end whose size is at `position`. Raises InvalidRecordError where the size is negative."""
    size, position = read_varint(data, position)
    if size < 0:
        raise InvalidRecordError(f"a size of {size} at byte {position}")
    return position + size


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


def _skip_headers(data: Buffer, position: int) -> int:
    """Where the headers that begin at `position` end; checks what `_read_headers` checks."""
    count, position = read_varint(data, position)
    if count < 0 or count > len(data) - position:
        raise InvalidRecordError(f"a record claims {count} headers where {len(data) - position} bytes remain")
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise InvalidRecordError("a header has no key")
        size, position = read_varint(data, position + size)
        position += max(size, 0)
    if position > len(data):
        raise IndexError
    return position


def _wrong_length(position: int, end: int) -> InvalidRecordError:
    return InvalidRecordError(f"a record's length says that it ends at byte {end}; its parts end at byte {position}")


def _ends_early(data_bytes: int, record_count: int) -> InvalidRecordError:
    return InvalidRecordError(f"{data_bytes} bytes end before the {record_count} records that the batch claims")


def _bytes_left(left_bytes: int, record_count: int) -> InvalidRecordError:
    return InvalidRecordError(f"{left_bytes} bytes follow the {record_count} records that the batch claims")
