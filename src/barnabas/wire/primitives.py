"""What every codec of the Kafka protocol rests on:

its two errors, variable-length integers, UUIDs, and the slow paths of compiled code.
"""

from __future__ import annotations

import struct
from typing import Final

from barnabas.kernel.steps import Steps

Buffer = bytes | bytearray | memoryview
Uuid = bytes
"""A topic's or a directory's id: its 16 bytes, as they are on the wire."""

ZERO_UUID: Final[Uuid] = bytes(16)
UNSIGNED_VARINT_BYTES_MAX: Final = 5
STRING_BYTES_MAX: Final = 0x7FFF
"""Longest string in UTF-8 that a message may hold, whatever the coding of its length."""


ELEMENTS_MAX: Final = 500_000
"""How many elements (structures and strings in arrays, in whatever depth) a large request may have in all. It bounds
what a request costs in memory and time whatever its bytes are: an element may take three bytes on the wire, and some
hundred and more as an object."""
_NUMBERS_PER_STEP: Final = 16_384
_TAGS_PER_STEP: Final = 512


class ProtocolError(ValueError):
    """The peer sent bytes that are not what the protocol prescribes; the connection cannot be trusted any further."""


class EncodeError(ValueError):
    """Our own fault: a message holds a value that cannot be written in the version asked for."""


def read_unsigned_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """The unsigned 32-bit varint at `position` and the position behind it.

    Raises `ProtocolError` if it does not end before `end`, or is longer than five bytes or 32 bits.
    """
    value = shift = 0
    longest = position + UNSIGNED_VARINT_BYTES_MAX
    for index in range(position, min(longest, end)):
        byte = buffer[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value <= 0xFFFFFFFF:
            return value, index + 1
        if byte < 0x80:
            break
        shift += 7
    else:
        if end < longest:
            raise ProtocolError(f"the bytes end within a varint that begins at byte {position}")
    raise ProtocolError(f"the varint at byte {position} is longer than 32 bits")


def unsigned_varint(value: int) -> bytes:
    """`value` (0 to 2**32 - 1) as an unsigned varint. Raises `EncodeError` outside that range."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise EncodeError(f"{value} does not fit an unsigned varint")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# What follows serves compiled code (see compiler_decode.py); the fast case is inlined there and never comes here.


def read_long_string(buffer: bytes | memoryview, position: int, end: int, length: int) -> tuple[str | None, int]:
    """A compact string whose length byte, just ahead of `position`, was `length`: 0 (null), or the first of several."""
    raw, position = read_long_bytes(buffer, position, end, length)
    if raw is None:
        return None, position
    if len(raw) > STRING_BYTES_MAX:
        raise ProtocolError(f"a string of {len(raw)} bytes; at most {STRING_BYTES_MAX} are allowed")
    return raw.decode(), position


def read_long_bytes(buffer: bytes | memoryview, position: int, end: int, length: int) -> tuple[bytes | None, int]:
    """Compact bytes whose length byte, just ahead of `position`, was `length`: 0 (null), or the first of several."""
    if length == 0:
        return None, position
    length, position = read_unsigned_varint(buffer, position - 1, end)
    stop = position + length - 1
    if not position <= stop <= end:
        raise ProtocolError(
            f"{length - 1} bytes are announced at byte {position}, and {max(end - position, 0)} are left"
        )
    return bytes(buffer[position:stop]), stop


def read_many(buffer: Buffer, position: int, end: int, count: int, code: str) -> tuple[list[int], int]:
    """`count` numbers of the `struct` code `code`, and the position behind them."""
    stop = position + count * struct.calcsize(code)
    if count < 0 or stop > end:
        raise ProtocolError(
            f"{count} elements are announced at byte {position}, and {max(end - position, 0)} bytes are left"
        )
    return [*struct.unpack_from(f">{count}{code}", buffer, position)], stop


def skip_tagged_fields(buffer: Buffer, position: int, end: int, count: int) -> int:
    """The position behind `count` tagged fields of which none is known.

    `count` is the byte just ahead of `position`, which may be the first of a longer varint.
    """
    if count > 0x7F:
        count, position = read_unsigned_varint(buffer, position - 1, end)
    previous = -1
    for _ in range(count):
        previous, size, position = read_tag(buffer, position, end, previous)
        position += size
    return position


def read_many_in_steps(buffer: Buffer, position: int, end: int, count: int, code: str) -> Steps[tuple[list[int], int]]:
    """As `read_many`."""
    size = struct.calcsize(f">{code}")
    if count < 0 or count * size > end - position:
        read_many(buffer, position, end, count, code)
    numbers: list[int] = []
    while count > _NUMBERS_PER_STEP:
        numbers += struct.unpack_from(f">{_NUMBERS_PER_STEP}{code}", buffer, position)
        position += _NUMBERS_PER_STEP * size
        count -= _NUMBERS_PER_STEP
        yield
    numbers += struct.unpack_from(f">{count}{code}", buffer, position)
    return numbers, position + count * size


def skip_tagged_fields_in_steps(buffer: Buffer, position: int, end: int, count: int) -> Steps[int]:
    """As `skip_tagged_fields`."""
    if count > 0x7F:
        count, position = read_unsigned_varint(buffer, position - 1, end)
    previous = -1
    left = _TAGS_PER_STEP
    for _ in range(count):
        previous, size, position = read_tag(buffer, position, end, previous)
        position += size
        left -= 1
        if not left:
            yield
            left = _TAGS_PER_STEP
    return position


def read_tag(buffer: Buffer, position: int, end: int, previous: int) -> tuple[int, int, int]:
    """Tag, size in bytes and position of the value of the tagged field at `position`, which follows the tag `previous`.

    Raises `ProtocolError` if the tags do not ascend, or the value does not fit before `end`.
    """
    tag, position = read_unsigned_varint(buffer, position, end)
    size, position = read_unsigned_varint(buffer, position, end)
    if tag <= previous:
        raise ProtocolError(f"tag {tag} comes after tag {previous}; tags ascend and none comes twice")
    if size > end - position:
        raise ProtocolError(f"tagged field {tag} says that it has {size} bytes, and {end - position} are left")
    return tag, size, position
