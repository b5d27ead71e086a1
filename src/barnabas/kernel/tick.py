"""The order of service: control before data, and one send per connection and tick of the loop.

What arrives in one poll of the loop is handled in one tick: frames of control connections at once, as they arrive;
frames of all others when the poll is over. Then come the callers of `before_send` (appends that were joined, and the
acknowledgements that follow them), and then everything that is to be sent leaves, in one write per connection.

A connection that comes alone does not wait for the end of the poll: its tick is run while its bytes are received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

# What waits in more bytes than this is handled in several ticks, so that control frames come between.
DATA_BYTES_PER_TICK: Final = 4 * 1024 * 1024
ROUNDS_PER_TICK: Final = 8
"""An append is written, that wakes a fetch, that moves a high watermark, that answers a producer: four rounds."""


class TickParticipant(Protocol):
    """A connection, as a tick sees it."""

    def deliver(self) -> int:
        """Handles the frames that have arrived; returns roughly how many bytes it handled."""
        ...

    def flush(self) -> None:
        """Sends what is ready."""
        ...


class Tick:
    """The ticks of one loop; each connection of the loop has the same."""

    __slots__ = ("_before_send", "_latest", "_loop", "_ready", "_run_method", "_scheduled", "_waiting", "held", "spent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[TickParticipant] = deque()
        self._ready: list[TickParticipant] = []
        self._before_send: list[Callable[[], object]] = []
        self._scheduled = False
        self._latest: TickParticipant | None = None
        self._run_method = self._run
        self.held = False
        """True while frames of data connections wait, because the broker has enough to do."""
        self.spent = 0
        """The cost of this tick's requests, in bytes; each handler adds its own."""

    def is_sole_ready(self, connection: TickParticipant) -> bool:
        """Whether `connection`, of which bytes have come, is the only one that is busy: those before were its own too,
        and this tick has nothing to do yet. To be asked once for all bytes that come of data connections.

        Then nothing is gained by waiting for the end of the poll; between `begin` and `finish` its frames are handled
        at once.
        """
        is_alone = connection is self._latest and not self._scheduled and not self.held
        self._latest = connection
        return is_alone

    def begin(self) -> None:
        """Begins a tick here and now, for a connection that comes alone."""
        self._scheduled = True

    def finish(self) -> None:
        """Ends what `begin` began: does whatever was asked for meanwhile, and sends."""
        if self._before_send or self._ready or self._waiting:
            self._run()
        else:
            self._scheduled = False
            self.spent = 0

    def wait_turn(self, connection: TickParticipant) -> None:
        """`connection.deliver` is called later in this tick, once for each call of this."""
        self._waiting.append(connection)
        if not self._scheduled:
            self._schedule()

    def will_send(self, connection: TickParticipant) -> None:
        """`connection.flush` is called at the end of this tick, once for each call of this."""
        self._ready.append(connection)
        if not self._scheduled:
            self._schedule()

    def before_send(self, callback: Callable[[], object], *, goes_first: bool = False) -> None:
        """Calls `callback()` once, in this tick, after frames were handled and before anything is sent; before the
        others that have asked for it, if it `goes_first`.

        So it is also when a callback asks for it, for a few rounds; what goes on and on is continued in the next tick.
        """
        if goes_first:
            self._before_send.insert(0, callback)
        else:
            self._before_send.append(callback)
        if not self._scheduled:
            self._schedule()

    def hold(self) -> None:
        """Frames of data connections wait until `go_on`."""
        self.held = True

    def go_on(self) -> None:
        """Ends what `hold` began."""
        self.held = False
        if self._waiting and not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._run_method)

    def _run(self) -> None:
        # While this runs, `_scheduled` stays True: what is added now is seen below or scheduled at the end.
        waiting = self._waiting
        budget = DATA_BYTES_PER_TICK
        turns = len(waiting)
        while turns and budget > 0 and self.spent < DATA_BYTES_PER_TICK and not self.held:
            turns -= 1
            budget -= waiting.popleft().deliver()
        rounds = ROUNDS_PER_TICK
        while self._before_send and rounds:
            rounds -= 1
            callbacks, self._before_send = self._before_send, []
            for callback in callbacks:
                self._call(callback)
        if self._ready:
            ready, self._ready = self._ready, []
            for connection in ready:
                connection.flush()
        self._scheduled = False
        self.spent = 0
        if self._ready or self._before_send or (waiting and not self.held):
            self._schedule()

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - one failure must not keep everything else from being sent
            self._loop.call_exception_handler({"message": f"{callback!r}, before sending, failed", "exception": error})
