"""Checking the records of a batch of magic 2, all of them, without making any.

The loops are those of `record_reader`, and rely on the same two facts. Most batches have nothing unusual in them and
few enough records to be checked at once; of all others a step has some thousand.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from barnabas.kernel.steps import Steps, at_once
from barnabas.wire.compression_types import Buffer
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.record_reader import bytes_left, ends_early, read_long, read_varint, wrong_length
from barnabas.wire.record_runs import RUN_MIN, run_like
from barnabas.wire.sentinels import NO_OFFSET, NO_TIMESTAMP

_INT64_MAX: Final = (1 << 63) - 1
_BEYOND_INT64: Final = 1 << 64
_COPIED_BYTES_PER_RECORD_MAX: Final = 2_048
"""Records of at most so many bytes on average are scanned in a copy as `bytes`, of which an index is so much cheaper
than of a memoryview that the copy pays.
"""
SCANNED_PER_STEP: Final = 4096
"""Records that are like those of nearly all producers."""
_LOOKED_AT_PER_STEP: Final = 4096
"""Records, and headers of records, that are looked at one by one."""
SCANNED_AT_ONCE_MAX: Final = 16_384
"""Records, some 15 ms of them where all differ in size."""
_HEADERS_AT_ONCE_MAX: Final = 8192
_VAIN_RUNS_MAX: Final = 3
"""Runs of like records that are looked for in vain before a batch counts as one without them."""
_SHORT_RECORD_BYTES_MAX: Final = 64
"""A record of so many bytes says its length, which is one less, in one of them; any larger one in two or more."""
_SHORT_VALUE_BYTES_MAX: Final = 65
"""A value of so many bytes, with its size before it and no headers behind it, likewise."""
_TWO_BYTES_MAX: Final = (1 << 14) - 1
"""What a varint of two bytes encodes at most; of a record that has no longer one, no value has either."""
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
    has_many_headers: bool = False
    """A record has so many that making it takes long."""


def scan_records(data: Buffer, record_count: int, base_timestamp_ms: int) -> RecordScan:
    """Checks the structure of all records, headers included, and makes none of them.

    Raises InvalidRecordError for the first that cannot be read, and for timestamps that do not fit 64 bits.
    """
    return at_once(scan_in_steps(data, record_count, base_timestamp_ms))


def scan_usual(data: Buffer, record_count: int, base_timestamp_ms: int) -> RecordScan | None:
    """`scan_records` for what most producers send, quickly; None for all else, good or bad, and for what takes long.

    Raises InvalidRecordError for timestamps that do not fit 64 bits.
    """
    if record_count > SCANNED_AT_ONCE_MAX:
        return None
    data = _quick_to_index(data, record_count)
    no_timestamp_delta = NO_TIMESTAMP - base_timestamp_ms
    try:
        if record_count > RUN_MIN and type(data) is bytes:
            part = _scan_with_runs(data, 0, 0, record_count, no_timestamp_delta)
        else:
            part = _scan_part(data, 0, 0, record_count, no_timestamp_delta)
    except (IndexError, InvalidRecordError):
        return None
    if part is None or part[0] != len(data):
        return None
    _, max_delta, min_delta, offset_of_max, has_all_keys = part
    return _summary(base_timestamp_ms, max_delta, min_delta, offset_of_max, True, has_all_keys)


def scan_in_steps(data: Buffer, record_count: int, base_timestamp_ms: int) -> Steps[RecordScan]:
    """As `scan_records`, some records in each step."""
    data = _quick_to_index(data, record_count)
    part = yield from _scan_usual_in_steps(data, record_count, NO_TIMESTAMP - base_timestamp_ms)
    if part is None or part[0] != len(data):
        return (yield from _scan_any(data, record_count, base_timestamp_ms))
    _, max_delta, min_delta, offset_of_max, has_all_keys = part
    return _summary(base_timestamp_ms, max_delta, min_delta, offset_of_max, True, has_all_keys)


def _quick_to_index(data: Buffer, record_count: int) -> Buffer:
    if type(data) is memoryview and len(data) <= record_count * _COPIED_BYTES_PER_RECORD_MAX:
        return data.tobytes()
    return data


def scan_one_record(data: Buffer, position: int, length: int, key_size: int) -> bool | None:
    """Whether the one record from `position` to the end has a key, where it is as producers write it: it has the
    timestamp of the batch, and no headers. None for all else, good or bad.

    Its first two bytes, as one number, are `length`, and the next four `key_size`, behind attributes and deltas that
    are 0: whoever reads the header of the batch reads them with it. It is what a batch of one record costs most, if
    every step of the loop that reads many is done for it. So varints are not decoded, but compared with what they have
    to be, as all ends with the batch.
    """
    end = len(data)
    left = end - position  # from the length on
    if left > _SHORT_RECORD_BYTES_MAX:
        twice = left - 2 << 1
        if twice > _TWO_BYTES_MAX or length != (twice & 0x7F | 0x80) << 8 | twice >> 7:
            return None
        position += 6
    else:
        if length != left - 1 << 9:
            return None
        key_size >>= 8
        position += 5
    if key_size > 0x7F or data[-1]:  # the last byte says how many headers there are
        return None
    if key_size != 1:
        if key_size & 1:
            return None
        position += key_size >> 1
    left = end - position  # from the size of the value on
    try:
        size = data[position]
        if left > _SHORT_VALUE_BYTES_MAX:
            if size < 0x80 or size + (data[position + 1] - 1 << 7) != left - 3 << 1:
                return None
        elif size != left - 2 << 1 and (size != 1 or left != 2):
            return None
    except IndexError:
        return None
    return key_size != 1


# Position, largest and smallest timestamp delta, the offset delta of the first with the largest, whether all have keys.
_Part = tuple[int, int, int, int, bool]


def _scan_usual_in_steps(data: Buffer, record_count: int, no_timestamp_delta: int) -> Steps[_Part | None]:
    """`_scan_part` of all records."""
    position = number = 0
    max_delta, min_delta = -_BEYOND_INT64, _BEYOND_INT64
    offset_of_max = NO_OFFSET
    has_all_keys = True
    while number < record_count:
        stop = min(record_count, number + SCANNED_PER_STEP)
        try:
            if stop - number > RUN_MIN and type(data) is bytes:
                part = _scan_with_runs(data, position, number, stop, no_timestamp_delta)
            else:
                part = _scan_part(data, position, number, stop, no_timestamp_delta)
        except (IndexError, InvalidRecordError):
            return None
        if part is None:
            return None
        position, part_max, part_min, part_offset_of_max, part_has_all_keys = part
        has_all_keys = has_all_keys and part_has_all_keys
        if part_max > max_delta:
            max_delta, offset_of_max = part_max, part_offset_of_max
        min_delta = min(min_delta, part_min)
        number = stop
        if number < record_count:
            yield
    return position, max_delta, min_delta, offset_of_max, has_all_keys


def _scan_with_runs(data: bytes, position: int, number: int, stop: int, no_timestamp_delta: int) -> _Part | None:
    """`_scan_part`, where those records that are like one before them are checked by columns."""
    max_delta, min_delta = -_BEYOND_INT64, _BEYOND_INT64
    offset_of_max = NO_OFFSET
    has_all_keys = True
    runs_left = _VAIN_RUNS_MAX
    while number < stop:
        has_runs = runs_left > 0 and stop - number > RUN_MIN
        part_stop = number + 1 if has_runs else stop
        part = _scan_part(data, position, number, part_stop, no_timestamp_delta)
        if part is None:
            return None
        begin, number = position, part_stop
        position, part_max, part_min, part_offset_of_max, part_has_all_keys = part
        has_all_keys = has_all_keys and part_has_all_keys
        if part_max > max_delta:
            max_delta, offset_of_max = part_max, part_offset_of_max
        min_delta = min(min_delta, part_min)
        if not has_runs:
            continue
        run = run_like(data, begin, position, number, stop - number, no_timestamp_delta)
        if not run.records:
            runs_left -= 1
        elif run.max_delta is not None:
            if run.max_delta > max_delta:
                max_delta, offset_of_max = run.max_delta, run.number_of_max
            min_delta = min(min_delta, run.min_delta)
        position += run.records * (position - begin)
        number += run.records
    return position, max_delta, min_delta, offset_of_max, has_all_keys


def _scan_part(data: Buffer, position: int, number: int, stop: int, no_timestamp_delta: int) -> _Part | None:  # noqa: C901
    """The records from `number`, at `position`, to `stop`; None, or an error, where they or their headers are unusual.

    Varints of two bytes are read in place. Record lengths and offset deltas are compared as they are encoded, which is
    twice the value, so that a negative one, being odd, equals nothing. A timestamp that is the one before again is
    passed over.
    """
    max_delta, min_delta = -_BEYOND_INT64, _BEYOND_INT64
    offset_of_max = NO_OFFSET
    has_all_keys = True
    encoded_before, headers = -1, 0  # of headers twice as many
    for expected in range(number << 1, stop << 1, 2):
        length = data[position]
        position += 1
        if length > 0x7F:
            byte = data[position]
            if byte < 0x80:
                length += byte - 1 << 7
                position += 1
            else:
                length, position = read_long(data, position - 1, 32)
                length <<= 1
        start = position
        encoded = data[position + 1]  # behind the attributes
        position += 2
        if encoded != encoded_before or encoded > 0x7F:
            encoded_before = encoded
            if encoded < 0x80:
                delta = encoded >> 1 ^ -(encoded & 1)
            else:
                delta, position = read_long(data, position - 1, 64)
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
                offset, position = read_long(data, position - 1, 32)
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

        size = data[position]  # of the headers: how many
        if size:
            headers += size
            if headers > _HEADERS_AT_ONCE_MAX << 1:
                return None
            position = _skip_few_headers(data, position)
        else:
            position += 1
        if position - start << 1 != length:
            return None
    return position, max_delta, min_delta, offset_of_max, has_all_keys


def _scan_any(data: Buffer, record_count: int, base_timestamp_ms: int) -> Steps[RecordScan]:
    """`scan_records` for all that the format allows; what is wrong is refused here.

    It is the one loop without varints in place: nothing that is sent often comes here.
    """
    position = 0
    max_delta, min_delta = -_BEYOND_INT64, _BEYOND_INT64
    offset_of_max = NO_OFFSET
    is_sequential, has_all_keys, has_many_headers = True, True, False
    left = _LOOKED_AT_PER_STEP
    no_timestamp_delta = NO_TIMESTAMP - base_timestamp_ms
    try:
        for expected_offset in range(record_count):
            left -= 1
            if left <= 0:
                yield
                left = _LOOKED_AT_PER_STEP
            length, position = read_varint(data, position)
            end = position + length
            delta, position = read_varint(data, position + 1, 64)
            offset, position = read_varint(data, position)
            if offset != expected_offset:
                is_sequential = False
            if delta != no_timestamp_delta:
                if delta > max_delta:
                    max_delta = delta
                    offset_of_max = offset
                min_delta = min(min_delta, delta)

            size, position = read_varint(data, position)  # of the key
            has_all_keys = has_all_keys and size >= 0
            size, position = read_varint(data, position + max(0, size))  # of the value
            position += max(0, size)

            size = data[position]
            if size & 0x81 or size >> 1 >= len(data) - position:
                position, headers = yield from _skip_headers_in_steps(data, position)
                has_many_headers = has_many_headers or headers > _LOOKED_AT_PER_STEP
                left = 0
            elif size:
                position = _skip_few_headers(data, position)
                left -= size >> 1
            else:
                position += 1
            if position != end:
                raise wrong_length(position, end)
    except IndexError:
        raise ends_early(len(data), record_count) from None
    if position != len(data):
        raise bytes_left(len(data) - position, record_count)
    return _summary(
        base_timestamp_ms, max_delta, min_delta, offset_of_max, is_sequential, has_all_keys, has_many_headers
    )


def _summary(
    base_timestamp_ms: int,
    max_delta: int,
    min_delta: int,
    offset_delta_of_max_timestamp: int,
    has_sequential_offsets: bool,
    has_all_keys: bool,
    has_many_headers: bool = False,
) -> RecordScan:
    if max_delta < min_delta:
        return RecordScan(NO_TIMESTAMP, NO_TIMESTAMP, NO_OFFSET, has_sequential_offsets, has_all_keys, has_many_headers)
    max_timestamp_ms, min_timestamp_ms = base_timestamp_ms + max_delta, base_timestamp_ms + min_delta
    if max_timestamp_ms > _INT64_MAX or min_timestamp_ms < -_INT64_MAX:
        raise InvalidRecordError("a record's timestamp does not fit 64 bits")
    return _new_scan(
        RecordScan,
        (
            max_timestamp_ms, min_timestamp_ms, offset_delta_of_max_timestamp, has_sequential_offsets, has_all_keys,
            has_many_headers,
        ),
    )  # fmt: skip


def _skip_bytes(data: Buffer, position: int) -> int:
    """Where the bytes end whose size is at `position`. Raises InvalidRecordError where the size is negative."""
    size, position = read_varint(data, position)
    if size < 0:
        raise InvalidRecordError(f"a size of {size} at byte {position}")
    return position + size


def _skip_few_headers(data: Buffer, position: int) -> int:
    """Where the headers that begin at `position` end; checks what reading them does, and refuses 64 and more."""
    count = data[position]
    if count & 0x81:
        raise InvalidRecordError("very many headers, or fewer than none")
    position = _skip_headers(data, position + 1, count >> 1)
    if position > len(data):
        raise IndexError
    return position


def _skip_headers_in_steps(data: Buffer, position: int) -> Steps[tuple[int, int]]:
    """Where the headers end, and how many there are."""
    count, position = read_varint(data, position)
    if count < 0 or count > len(data) - position:
        raise InvalidRecordError(f"a record claims {count} headers where {len(data) - position} bytes remain")
    for done in range(0, count, _LOOKED_AT_PER_STEP):
        position = _skip_headers(data, position, min(_LOOKED_AT_PER_STEP, count - done))
        yield
    if position > len(data):
        raise IndexError
    return position, count


def _skip_headers(data: Buffer, position: int, count: int) -> int:
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise InvalidRecordError("a header has no key")
        size, position = read_varint(data, position + size)
        position += max(size, 0)
    return position
