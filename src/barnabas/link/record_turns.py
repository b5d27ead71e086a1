"""When small TLS records are decrypted: so many in a turn of the loop, of all connections together.

Each may be a new key, which takes OpenSSL 65 µs. Whoever has more than there is room for in this turn waits for one of
the next, one of each address in turn, brokers' own first; and whoever comes meanwhile waits behind them. Otherwise
those that were there first would have all of each turn as long as they have something left.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from barnabas.link.lines import Lines

SMALL_RECORDS_PER_TURN: Final = 512
"""Of all connections together."""
SHARE_MIN: Final = 8
"""Of one connection, where very many wait; each has as much more as there are fewer."""


class Reader(Protocol):
    """A connection."""

    address: str
    goes_first: bool

    def read_on(self) -> None:
        """It is its turn: it may have `left` records decrypted."""
        ...


class RecordTurns:
    """Those of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = self._share = SMALL_RECORDS_PER_TURN
        self._first: Lines[Reader] = Lines()
        self._others: Lines[Reader] = Lines()
        self._is_serving = self._is_due = False
        self.waiting = 0
        """How many connections wait."""

    @property
    def left(self) -> int:
        """How many small records one connection may have decrypted now; 0 where it has to `wait`."""
        if self.waiting and not self._is_serving:
            return 0
        return min(self._left, self._share)

    def spend(self, small_records: int) -> None:
        """So many have been decrypted, or are."""
        self._left -= small_records
        self._have_next_turn()

    def wait(self, reader: Reader) -> None:
        """Has it read on in one of the next turns, unless it leaves before. It must not wait already."""
        if self._is_serving or self._left <= 0 or self.waiting:
            (self._first if reader.goes_first else self._others).add(reader)
            self.waiting += 1
            self._have_next_turn()
        else:
            self._loop.call_soon(reader.read_on)

    def leave(self, reader: Reader) -> None:
        """It is over. Nothing happens where it does not wait."""
        if self.waiting and (self._first if reader.goes_first else self._others).discard(reader):
            self.waiting -= 1

    # Inside.

    def _have_next_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_due = False
        self._left = self._share = SMALL_RECORDS_PER_TURN
        waiting = self.waiting
        if not waiting:
            return
        self._share = max(SHARE_MIN, SMALL_RECORDS_PER_TURN // waiting)
        self._is_serving = True
        try:
            for _ in range(waiting):
                if self._left <= 0 or not self.waiting:
                    break
                self.waiting -= 1
                (self._first or self._others).pop().read_on()
        finally:
            self._is_serving = False
            self._share = SMALL_RECORDS_PER_TURN
            if self.waiting:
                self._have_next_turn()
