"""Jute, the encoding of ZooKeeper's wire protocol: big-endian integers, and strings, buffers and vectors behind a
32-bit length where -1 means null.

Writing is by functions that return bytes, joined by the caller; reading is by a `Reader` that checks every length
against the bytes that are there, so hostile input raises `MalformedFrameError` and never allocates more than the
frame's own size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from barnabas.coordination.errors import MalformedFrameError

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps

INT = struct.Struct("!i")
LONG = struct.Struct("!q")
NULL = INT.pack(-1)
TRUE = b"\x01"
FALSE = b"\x00"

NAMES_PER_STEP: Final = 20_000
"""How many strings of a vector are read in one step, where it is read in steps: 12 ms on a slow machine."""

pack_int = INT.pack
pack_long = LONG.pack


def pack_boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def pack_buffer(data: bytes | None) -> bytes:
    return NULL if data is None else INT.pack(len(data)) + data


def pack_string(text: str | None) -> bytes:
    if text is None:
        return NULL
    data = text.encode()
    return INT.pack(len(data)) + data


def pack_strings(texts: Iterable[str]) -> bytes:
    """A vector of strings."""
    encoded = [text.encode() for text in texts]
    parts = [INT.pack(len(encoded))]
    for data in encoded:
        parts.append(INT.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


class Reader:
    """Reads one frame, or a part of a larger buffer, from front to back.

    `data` is bytes because decoded buffers are slices of it, and those are copies that outlive it. `end` bounds the
    reading; it must not exceed `len(data)`.
    """

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return self.end - self.position

    def integer(self) -> int:
        start = self.position
        after = start + 4
        if after > self.end:
            raise self._short(4)
        self.position = after
        value: int = INT.unpack_from(self.data, start)[0]
        return value

    def long(self) -> int:
        start = self.position
        after = start + 8
        if after > self.end:
            raise self._short(8)
        self.position = after
        value: int = LONG.unpack_from(self.data, start)[0]
        return value

    def boolean(self) -> bool:
        start = self.position
        if start >= self.end:
            raise self._short(1)
        self.position = start + 1
        return self.data[start] != 0

    def structure(self, layout: struct.Struct) -> tuple[int, ...]:
        """Fixed-width fields in one go."""
        start = self.position
        after = start + layout.size
        if after > self.end:
            raise self._short(layout.size)
        self.position = after
        return layout.unpack_from(self.data, start)

    def buffer(self) -> bytes | None:
        """A copy of the bytes; None is jute's null, which is not the same as empty."""
        length = self.integer()
        if length == -1:
            return None
        start = self.position
        after = start + length
        if length < 0 or after > self.end:
            raise MalformedFrameError(
                f"a length of {length} at byte {start - 4} does not fit into the {self.end - start} bytes that follow"
            )
        self.position = after
        return self.data[start:after]

    def string(self) -> str:
        """Text; null reads as empty, as no request or reply of ZooKeeper's gives null strings a meaning of their
        own.
        """
        data = self.buffer()
        if data is None:
            return ""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MalformedFrameError(
                f"a string that ends at byte {self.position} is not UTF-8: {error.reason}"
            ) from None

    def count(self, item_bytes_min: int) -> int:
        """The number of items of a vector, each of which takes at least `item_bytes_min` bytes; null reads as none."""
        count = self.integer()
        if count == -1:
            return 0
        if count < 0 or count * item_bytes_min > self.end - self.position:
            raise MalformedFrameError(
                f"a vector of {count} items does not fit into the {self.end - self.position} bytes that follow"
            )
        return count

    def strings(self) -> list[str]:
        """A vector of strings."""
        return self._strings(self.count(4))

    def strings_in_steps(self) -> Steps[list[str]]:
        """A vector of strings that may be very many."""
        left = self.count(4)
        texts = self._strings(min(left, NAMES_PER_STEP))
        left -= len(texts)
        while left:
            yield
            more = self._strings(min(left, NAMES_PER_STEP))
            texts += more
            left -= len(more)
        return texts

    def _strings(self, count: int) -> list[str]:
        data = self.data
        end = self.end
        unpack = INT.unpack_from
        texts: list[str] = []
        position = self.position
        try:
            for _ in range(count):
                start = position + 4
                position = start + unpack(data, position)[0]
                if not start <= position <= end:
                    raise MalformedFrameError(f"a string at byte {start} has an impossible length")
                texts.append(data[start:position].decode())
        except struct.error:
            raise self._short(4) from None
        except UnicodeDecodeError as error:
            raise MalformedFrameError(f"a string at byte {position} is not UTF-8: {error.reason}") from None
        self.position = position
        return texts

    def finish(self) -> None:
        """Raises when bytes are left: the frame was longer than what it says it is."""
        if self.position != self.end:
            raise MalformedFrameError(f"{self.end - self.position} bytes are left over at the end of a frame")

    def _short(self, wanted: int) -> MalformedFrameError:
        return MalformedFrameError(f"{wanted} bytes wanted at byte {self.position}, but the frame ends at {self.end}")
