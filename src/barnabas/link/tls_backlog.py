"""What one connection has to send and has not encrypted yet, since its peer does not read so fast."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barnabas.wire.primitives import Buffer


class Backlog:
    """Buffers in their order, none of them copied: they must not change while they are here."""

    __slots__ = ("_views", "size_bytes")

    def __init__(self) -> None:
        self._views: deque[memoryview] = deque()
        self.size_bytes = 0

    def add(self, buffers: Iterable[Buffer]) -> None:
        """Puts the buffers behind what is here."""
        for buffer in buffers:
            view = memoryview(buffer)
            if view.nbytes:
                self._views.append(view)
                self.size_bytes += view.nbytes

    def give(self, take: Callable[[memoryview], int], bytes_max: int) -> int:
        """Gives `take` what is first, and so on, until it has taken so many bytes; it says how many it took of what it
        was given, and may call `clear`. Returns how many it took in all, and `bytes_max` where it takes no more.
        """
        views = self._views
        done = 0
        while views and done < bytes_max:
            view = views[0]
            count = take(view[: bytes_max - done])
            if not count:
                return bytes_max
            done += count
            self.size_bytes -= count
            if count == view.nbytes:
                views.popleft()
            else:
                views[0] = view[count:]
        return done

    def clear(self) -> None:
        """Nothing of it is to be sent any more."""
        self._views.clear()
        self.size_bytes = 0
