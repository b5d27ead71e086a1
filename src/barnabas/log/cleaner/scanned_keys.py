"""The keys of a batch as a scan finds them: columns of records of one layout, and lists of those between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from struct import Struct


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """Keys of one size at equal distances."""

    data: bytes
    start: int
    """Where the first of the records begins that have them."""
    stride: int
    key_at: int
    """From the beginning of its record."""
    key_size: int
    count: int

    def __iter__(self) -> Iterator[bytes]:
        window = memoryview(self.data)[self.start : self.start + self.count * self.stride]
        column = _struct(self.key_at, self.key_size, self.stride)
        return chain.from_iterable(column.iter_unpack(window))


class ScannedKeys:
    """All keys, in the order of their records."""

    __slots__ = ("data_bytes", "pieces")

    def __init__(self, keys: Iterable[bytes] = (), data_bytes: int = 0) -> None:
        self.pieces: list[KeyColumn | list[bytes]] = [list(keys)]
        self.data_bytes = data_bytes
        """Of the records that the keys are of, decompressed: columns hold all of them."""

    def __len__(self) -> int:
        return sum([piece.count if isinstance(piece, KeyColumn) else len(piece) for piece in self.pieces])

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.pieces)

    def further(self) -> list[bytes]:
        """A list that the next keys are to be appended to."""
        last = self.pieces[-1]
        if isinstance(last, KeyColumn):
            last = []
            self.pieces.append(last)
        return last


@lru_cache(maxsize=256)
def _struct(at: int, size: int, stride: int) -> Struct:
    return Struct(f"{at}x{size}s{stride - at - size}x")
