"""Receive buffers, lent to the connections that are in the middle of something.

A loop asks a connection for a buffer, receives, and tells the connection, without anything between. So all connections
that own none offer the same spare one; the connection that gets bytes takes it, and gives it back when its frames
are handled. Large buffers are anonymous mappings: what a peer announces and does not send costs no memory.
"""

from __future__ import annotations

import mmap
from typing import Final

SMALL_BYTES: Final = 64 * 1024
_SMALL_KEPT_MAX: Final = 64
_LARGE_KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
_POISON: Final = b"\xdb"


class BufferPool:
    """Small buffers of `SMALL_BYTES`, and large ones of any size. It keeps at most some 36 MiB of unused buffers.

    A pool that poisons overwrites what is given back, so that a test sees who kept a view of it.
    """

    __slots__ = ("_free", "_large", "_large_kept_bytes", "_lent_max", "lent", "poisons", "spare", "spare_view")

    def __init__(self, *, lent_max: int = 256, poisons: bool = False) -> None:
        self._lent_max = lent_max
        self.poisons = poisons
        self._free: list[tuple[bytearray, memoryview]] = []
        self._large: dict[int, list[memoryview]] = {}
        self._large_kept_bytes = 0
        self.spare, self.spare_view = _small()
        self.lent = 0
        """The number of buffers, small and large, that connections own now."""

    @property
    def is_scarce(self) -> bool:
        """More than `lent_max` buffers are lent: a waiting connection should keep a copy of its bytes instead."""
        return self.lent > self._lent_max

    def take(self) -> tuple[bytearray, memoryview]:
        """The spare buffer with what was received into it, and a view of all of it; another one becomes the spare."""
        taken = self.spare, self.spare_view
        self.spare, self.spare_view = self._free.pop() if self._free else _small()
        self.lent += 1
        return taken

    def release(self, buffer: bytearray, view: memoryview) -> None:
        """Takes back what `take` gave."""
        self.lent -= 1
        if self.poisons:
            self.poison(view)
        if len(self._free) < _SMALL_KEPT_MAX:
            self._free.append((buffer, view))

    def poison(self, view: memoryview) -> None:
        """Overwrites bytes that must not be used any more."""
        view[:] = _POISON * len(view)

    def take_large(self, size_bytes: int) -> memoryview:
        """A writable view of at least so many bytes, whose memory is only used as it is written to."""
        self.lent += 1
        capacity = 1 << (size_bytes - 1).bit_length()
        kept = self._large.get(capacity)
        if kept:
            self._large_kept_bytes -= capacity
            return kept.pop()
        return memoryview(mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def release_large(self, view: memoryview) -> None:
        """Takes back what `take_large` gave."""
        self.lent -= 1
        capacity = len(view)
        if self.poisons:
            self.poison(view[:SMALL_BYTES])
        if self._large_kept_bytes + capacity <= _LARGE_KEPT_BYTES_MAX:
            self._large_kept_bytes += capacity
            self._large.setdefault(capacity, []).append(view)


def _small() -> tuple[bytearray, memoryview]:
    buffer = bytearray(SMALL_BYTES)
    return buffer, memoryview(buffer)
