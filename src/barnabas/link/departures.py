"""Peers that go, very many at once: their connections are closed some in each turn.

One poll of the loop may find that thousands of peers have ended their side (a client's process ends, a load balancer
restarts), and closing a connection with all that belongs to it takes some microseconds.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

CLOSED_PER_TURN: Final = 500


class Closing(Protocol):
    """A transport, as far as it is to be closed."""

    def close(self) -> object: ...


class Departures:
    """Of one loop. Who goes alone is closed at once."""

    __slots__ = ("_left", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = CLOSED_PER_TURN
        """How many more may be closed in this turn."""
        self._waiting: deque[Closing] = deque()

    def close_now(self, transport: Closing) -> bool:
        """Whether this transport may be closed in this turn; otherwise it is in one of the next."""
        if self._left == CLOSED_PER_TURN:
            self._loop.call_soon(self._next_turn)
        if self._left > 0:
            self._left -= 1
            return True
        self._waiting.append(transport)
        return False

    def _next_turn(self) -> None:
        closed = min(len(self._waiting), CLOSED_PER_TURN)
        self._left = CLOSED_PER_TURN - closed
        for _ in range(closed):
            self._waiting.popleft().close()
        if closed:
            self._loop.call_soon(self._next_turn)
