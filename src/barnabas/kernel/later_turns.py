"""Work that no caller waits for, done in parts over the loop's next turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable

Key = TypeVar("Key", bound="Hashable")
Item = TypeVar("Item")


class LaterTurns(Generic[Key, Item]):
    """Does one thing for each of many items, which have keys.

    Invariant: it is done once for each item, and for the item of a key before `do_now` of that key returns. So another
    item may have the key of one that still waits, if its maker calls `do_now` first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, do: Callable[[Item], object], per_turn: int) -> None:
        """`do` is called for `per_turn` items in a turn at most; what it raises is reported by the loop."""
        self._loop = loop
        self._do = do
        self._per_turn = per_turn
        self._waiting: dict[Key, Item] = {}
        self._is_scheduled = False

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._waiting)

    def add(self, key: Key, item: Item) -> None:
        """Its turn is not this one."""
        self.do_now(key)
        self._waiting[key] = item
        self._schedule()

    def do_now(self, key: Key) -> None:
        """Does nothing when no item of that key waits."""
        if self._waiting and key in self._waiting:
            self._do(self._waiting.pop(key))

    def finish(self) -> None:
        """Does all remaining work."""
        while self._waiting:
            self._do(self._waiting.popitem()[1])

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        left = self._per_turn
        try:
            while self._waiting and left:
                left -= 1
                self._do(self._waiting.popitem()[1])
        finally:
            if self._waiting:
                self._schedule()
