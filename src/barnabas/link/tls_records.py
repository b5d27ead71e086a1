"""Where TLS's records begin: their headers are not encrypted, so they can be counted before OpenSSL works on them.

What is around data may be dear: a new key (KeyUpdate) takes OpenSSL 65 µs and 27 bytes, so that what one reception has
room for would hold the loop for 150 ms, again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.wire.primitives import Buffer

_HEADER_BYTES: Final = 5
_SMALL_BYTES: Final = 64
"""Any larger record carries data, or costs less for its size than one that does."""
_NOT_SMALL_BYTES: Final = _HEADER_BYTES + _SMALL_BYTES
_JUDGED_RECORDS: Final = 64
_DATA_BYTES_MIN: Final = 2
"""Of each record on the average: Java gives the size of a frame a record of its own, 4 bytes, and then the frame."""


class Records:
    """The records of one connection, in one direction."""

    __slots__ = ("_data_bytes", "_header", "_is_between", "_judged", "_left", "small")

    def __init__(self) -> None:
        self.small = 0
        """How many of those that `cut` took last may carry next to nothing, and cost as much as any."""
        self._left = 0
        """What is still to come of the present record."""
        self._header = b""
        """The part of the next record's header that has come."""
        self._is_between = True
        self._judged = 0
        self._data_bytes = 0

    def is_only(self, received: Buffer, size: int) -> bool:
        """Whether the bytes, so many, are one record as a whole, and not a small one. It may be taken without `cut`,
        but not without `carry`.
        """
        return self._is_between and size >= _NOT_SMALL_BYTES and received[3] << 8 | received[4] == size - _HEADER_BYTES

    def cut(self, received: Buffer, records_max: int) -> int:
        """How many of the bytes belong to the present record and the next `records_max`; they count as taken."""
        position, size = self._left, len(received)
        if self._is_between and size >= _HEADER_BYTES and records_max > 0:
            body_bytes = received[3] << 8 | received[4]
            if body_bytes == size - _HEADER_BYTES:  # one, and all of it, as mostly: the loop would find the same
                self.small = 1 if body_bytes < _SMALL_BYTES else 0
                self._judged += 1
                return size
        count = small = 0
        while position < size and count < records_max:
            if self._header or size - position < _HEADER_BYTES:
                missing = _HEADER_BYTES - len(self._header)
                self._header += bytes(received[position : position + missing])
                position += missing
                if len(self._header) < _HEADER_BYTES:
                    position = size
                    break
                body_bytes = self._header[3] << 8 | self._header[4]
                self._header = b""
                position += body_bytes
            else:
                body_bytes = received[position + 3] << 8 | received[position + 4]
                position += _HEADER_BYTES + body_bytes
            count += 1
            if body_bytes < _SMALL_BYTES:
                small += 1
        self.small = small
        self._judged += count
        self._left = max(position - size, 0)
        self._is_between = not (self._left or self._header)
        return min(position, size)

    def begin(self) -> None:
        """The handshake is over, whose records count for nothing."""
        self._judged = self._data_bytes = 0

    def carry(self, data_bytes: int) -> None:
        """Notes what came out of the only record. Where that is something, the record itself need not be counted."""
        if data_bytes:
            self._data_bytes += data_bytes
        else:
            self._judged += 1

    def carry_data(self, data_bytes: int, *, is_all: bool) -> bool:
        """Notes what came out of those that were taken, of all of them or not; False where that is too little."""
        self._data_bytes += data_bytes
        if self._judged < _JUDGED_RECORDS or not is_all:
            return True
        enough = self._data_bytes >= _DATA_BYTES_MIN * self._judged
        self._judged = self._data_bytes = 0
        return enough
