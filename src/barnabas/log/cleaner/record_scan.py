"""The keys of a batch, and its records as the bytes that they are, without an object for each.

These are the cleaner's hot loops: they see every record of a log. Records of one layout (the same sizes, the same
lengths of varints) lie at equal distances, and are told by whole columns of bytes; all others one by one. A checksum
says that the bytes are those that were validated when they were produced; checked here is that records lie within the
batch and end where it does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from barnabas.log.cleaner.scanned_keys import KeyColumn, ScannedKeys
from barnabas.wire.record_reader import bytes_left, ends_early, read_long, read_varint, wrong_length

DROPPED: Final = 0
VALUE: Final = 1
TOMBSTONE: Final = 2

_CONTINUES: Final = bytes(number >> 7 for number in range(256))
"""What each byte of a varint becomes: whether another one follows."""
_RUN_MIN: Final = 8
"""Records of one layout that are worth being told by columns."""
_VARINT_BOUNDS: Final = (1 << 6, 1 << 13)
_HEADS_MAX: Final = 8192
_STATE_OF_VALUE: Final = bytes(TOMBSTONE if byte == 1 else VALUE for byte in range(256))
_ONE_BY_ONE_MAX: Final = 256
"""Records that are read one by one, at most, before a run is looked for again."""


class _Layout(NamedTuple):
    """Where the parts of a record lie, from its beginning."""

    stride: int
    """The size of the record, with its length."""
    same: tuple[int, ...]
    """Bytes that make a layout: those of the lengths of the record, its key and its value."""
    varints: tuple[int, ...]
    """Bytes of the timestamp's and the offset's varints: whether another follows makes a layout."""
    continues: bytes
    """Of each of these whether it does."""
    body_at: int
    """Behind the length of the record."""
    records_until_longer: int
    """So many until the offset's varint has another byte, where offsets follow one another."""
    key_at: int
    key_size: int
    """-1 where there is no key."""
    state: int


def scan_keys(data: bytes, record_count: int) -> tuple[ScannedKeys, bytes]:
    """The keys of those records that have one, in order, and for each record whether it has no key (`DROPPED`), has a
    `VALUE`, or is a `TOMBSTONE`. Raises InvalidRecordError."""
    keys = ScannedKeys(data_bytes=len(data))
    states = bytearray()
    position = number = one_by_one = 0
    try:
        while number < record_count:
            if not one_by_one:
                layout = _layout(data, position)
                run = _run(data, position, layout, record_count - number)
                if run >= _RUN_MIN:
                    end = position + run * layout.stride
                    if layout.key_size >= 0:
                        keys.pieces.append(
                            KeyColumn(data, position, layout.stride, layout.key_at, layout.key_size, run)
                        )
                    states += bytes((layout.state,)) * run
                    position = end
                    number += run
                    continue
                run, position = _scan_heads(data, position, layout, record_count - number, keys, states)
                number += run
                if run >= _RUN_MIN:
                    continue
                one_by_one = _RUN_MIN
            count = min(one_by_one, record_count - number)
            position = _scan_few(data, position, count, keys.further(), states)
            number += count
            one_by_one = 2 * one_by_one if one_by_one < _ONE_BY_ONE_MAX else 0
    except IndexError:
        raise ends_early(len(data), record_count) from None
    if position != len(data):
        raise bytes_left(len(data) - position, record_count)
    return keys, bytes(states)


def _layout(data: bytes, position: int) -> _Layout:
    start = position
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise IndexError
    body_at = position - start
    position += 1
    first = position
    _, position = read_varint(data, position) if data[position] < 0x80 else read_long(data, position, 64)
    offset, position = read_varint(data, position)
    continues = data[first:position].translate(_CONTINUES)
    varints = range(first - start, position - start)
    first = position
    key_size, position = read_varint(data, position)
    key_at = position
    size_of_key = range(first - start, position - start)
    first = position = position + max(key_size, 0)
    value_size, position = read_varint(data, position)
    if position + max(value_size, 0) >= end:
        raise wrong_length(position + max(value_size, 0), end)
    return _Layout(
        stride=end - start,
        same=(*range(body_at), *size_of_key, *range(first - start, position - start)),
        varints=tuple(varints),
        continues=continues,
        body_at=body_at,
        records_until_longer=next((bound - offset for bound in _VARINT_BOUNDS if offset < bound), _HEADS_MAX),
        key_at=key_at - start,
        key_size=key_size,
        state=DROPPED if key_size < 0 else TOMBSTONE if value_size < 0 else VALUE,
    )


def _run(data: bytes, position: int, layout: _Layout, records_max: int) -> int:
    """How many records from there on have the layout."""
    stride = layout.stride
    run = min(records_max, (len(data) - position) // stride)
    for at in layout.same:
        if run < _RUN_MIN:
            return run
        column = data[position + at : position + run * stride : stride]
        run -= len(column.lstrip(column[:1]))
    for at in layout.varints:
        if run < _RUN_MIN:
            return run
        column = data[position + at : position + run * stride : stride].translate(_CONTINUES)
        run -= len(column.lstrip(column[:1]))
    return run


def _scan_heads(
    data: bytes, position: int, layout: _Layout, records_max: int, keys: ScannedKeys, states: bytearray
) -> tuple[int, int]:
    """As many records as begin as the layout does, of whatever size: how many, and where they end.

    Their heads, from behind the length to the first byte of the value's, are of one size, and are told by columns."""
    key_at, key_size = layout.key_at - layout.body_at, layout.key_size
    if key_size < 0:
        return 0, position
    width = key_at + key_size + 1
    heads: list[bytes] = []
    append = heads.append
    data_bytes = len(data)
    end = head_end = position
    for _ in range(min(records_max, layout.records_until_longer)):
        byte = data[end]
        if byte < 0x80:
            at = end + 1
            end = at + (byte >> 1)
        else:
            second = data[end + 1]
            if second < 0x80:
                at = end + 2
                end = at + ((byte & 0x7F | second << 7) >> 1)
            else:
                size, at = read_long(data, end, 32)
                end = at + size
        head_end = at + width
        if head_end >= end:
            break  # it is of another layout, or its key is longer than itself
        append(data[at:head_end])
    if end > data_bytes:
        raise IndexError
    matrix = b"".join(heads)
    run = len(heads)
    for at in layout.varints:
        column = matrix[at - layout.body_at :: width][:run].translate(_CONTINUES)
        run -= len(column.lstrip(layout.continues[at - layout.varints[0] :][:1]))
    for at in range(layout.varints[-1] + 1 - layout.body_at, key_at):
        column = matrix[at::width][:run]
        run -= len(column.lstrip(data[position + layout.body_at + at : position + layout.body_at + at + 1]))
    if not run:
        return 0, position
    keys.pieces.append(KeyColumn(matrix, 0, width, key_at, key_size, run))
    # The length of what is null is one byte, 1; nothing else begins so.
    states += matrix[width - 1 :: width][:run].translate(_STATE_OF_VALUE)
    if run < len(heads) or head_end >= end:
        end = position
        for _ in range(run):
            size, end = read_varint(data, end)
            end += size
    return run, end


def _scan_few(data: bytes, position: int, count: int, keys: list[bytes], states: bytearray) -> int:
    """`count` records one by one; returns where they end."""
    data_bytes = len(data)
    for _ in range(count):
        byte = data[position]
        if byte < 0x80:
            end = position + 1 + (byte >> 1)
            position += 2
        else:
            second = data[position + 1]
            if second < 0x80:
                end = position + 2 + (((byte & 0x7F) | second << 7) >> 1)
                position += 3
            else:
                byte, position = read_long(data, position, 32)
                end = position + byte
                byte = 0 if byte >= 0 else 1
                position += 1
        if byte & 1 or end > data_bytes:
            raise IndexError
        while data[position] > 0x7F:
            position += 1
        position += 1
        while data[position] > 0x7F:
            position += 1
        position += 1
        size = data[position]
        if size < 0x80:
            size = size >> 1 ^ -(size & 1)
            position += 1
        else:
            size, position = read_long(data, position, 32)
        if size < 0:
            states.append(DROPPED)
        else:
            key_at = position
            position += size
            keys.append(data[key_at:position])
            # The length of what is null is one byte, 1; nothing else begins so.
            states.append(TOMBSTONE if data[position] == 1 else VALUE)
        if position >= end:
            raise wrong_length(position, end)
        position = end
    return position


def kept_records(data: bytes, states: bytes) -> list[bytes]:
    """The records, each with its length, whose state is not `DROPPED`. Raises InvalidRecordError."""
    kept: list[bytes] = []
    append = kept.append
    position = 0
    try:
        for state in states:
            start = position
            byte = data[position]
            if byte < 0x80:
                position += 1 + (byte >> 1)
            else:
                second = data[position + 1]
                if second < 0x80:
                    position += 2 + ((byte & 0x7F | second << 7) >> 1)
                else:
                    length, position = read_long(data, position, 32)
                    position += length
            if state:
                append(data[start:position])
    except IndexError:
        raise ends_early(len(data), len(states)) from None
    if position != len(data):
        raise bytes_left(len(data) - position, len(states))
    return kept


def largest_timestamp_delta(records: list[bytes], largest: int) -> int:
    """The largest difference of a timestamp from that of the batch, among records as `kept_records` gives them;
    `largest` is that of the whole batch, where the search may end: the last record has it as a rule."""
    found: int | None = None
    for record in reversed(records):
        _, at = read_varint(record, 0)
        at += 1
        delta = record[at]
        delta = delta >> 1 ^ -(delta & 1) if delta < 0x80 else read_long(record, at, 64)[0]
        if delta == largest:
            return largest
        if found is None or delta > found:
            found = delta
    return 0 if found is None else found
