"""Whose TLS handshake is worked on when: off the loop, few at once, and bounded for each address.

To sign with an RSA key of 4096 bits takes 5 ms and more, so a hundred clients that come at once would stop a broker's
loop for long. Handshakes are steps, each of which is done by a thread. Who has begun and says nothing more holds a
place, of which there are few: while others wait for one, the quietest are sent away.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.kernel.host import HostClosedError, OffloadFullError, OffloadKind
from barnabas.link.lines import Lines
from barnabas.link.record_turns import RecordTurns

if TYPE_CHECKING:
    import ssl

    from barnabas.kernel.host import Offload
    from barnabas.kernel.timers import Timer, Timers

AT_ONCE: Final = 2
"""Steps that are worked on at a time; compression, which has the same threads, goes on beside them."""
BEGUN_MAX: Final = 512
"""Clients' handshakes that have begun; each may take some 50 KiB."""
BEGUN_PER_ADDRESS_MAX: Final = 128
QUIET_SECONDS: Final = 2.0
"""How long a client that has begun may say nothing while others wait for its place."""
PATIENCE: Final = 0.25
"""What part of the time that a client has had counts as if it were quiet: one byte a second holds no place for long."""
HANDSHAKE_MS: Final = 30_000
"""How long a handshake may take in all, but for the time that it waits for our own work."""
RECEIVED_BYTES: Final = 64 * 1024
FIRST_BYTES: Final = 4 * 1024
"""What is received of a client that has no place yet, of whom there may be very many."""
_LOOK_MS: Final = 500
_FULL_PAUSE_MS: Final = 20


class Handshaker(Protocol):
    """A connection, as the handshakes see it."""

    address: str
    quiet_since: float
    """Since when its peer is waited for, less `PATIENCE` of the time for which it was waited for before; infinity while
    a step of it waits or is worked on."""
    goes_first: bool

    def do_step(self) -> None:
        """Called in a thread. Raises whatever OpenSSL raises."""
        ...

    def step_done(self, error: BaseException | None) -> None: ...
    def place_free(self) -> None:
        """It may begin."""
        ...

    def evict(self) -> None:
        """It has been quiet for too long while others wait."""
        ...


class Handshakes:
    """All handshakes of one loop's connections, with the buffer that they receive into."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        offload: Offload,
        *,
        of_one_owner: int | None = None,
    ) -> None:
        """With `of_one_owner`, somebody else bounds the connections, to so many: all may begin, from one address too,
        and of one address those that came last are worked on first, as who came first is given up first.
        """
        self._begun_max = of_one_owner or BEGUN_MAX
        self._per_address_max = of_one_owner or BEGUN_PER_ADDRESS_MAX
        self._loop = loop
        self._timers = timers
        self._offload = offload
        self._begun: dict[Handshaker, None] = {}
        self._by_address: dict[str, int] = {}
        self._waiting: OrderedDict[str, OrderedDict[Handshaker, None]] = OrderedDict()
        """Those without a place, by their addresses; whose turn it is comes first."""
        self._first: Lines[Handshaker] = Lines(is_last_first=of_one_owner is not None)
        self._steps: Lines[Handshaker] = Lines(is_last_first=of_one_owner is not None)
        """Whose step will be worked on unless they leave."""
        self._working = 0
        self._timer: Timer | None = None
        self._retry: Timer | None = None
        self.turns = RecordTurns(loop)
        """Of those whose handshakes are over."""
        self.received = memoryview(bytearray(RECEIVED_BYTES))
        """Where bytes are received to before they are decrypted; of whoever receives at the moment."""
        self.received_first = self.received[:FIRST_BYTES]
        """Its part that those have which have no place yet."""

    @property
    def begun(self) -> int:
        """Clients whose handshakes have begun and are not over."""
        return len(self._begun)

    @property
    def waiting(self) -> int:
        """Clients that wait for a place, or for a step to be worked on."""
        return sum(map(len, self._waiting.values())) + len(self._first) + len(self._steps)

    # Places.

    def enter(self, connection: Handshaker) -> bool:
        """Whether it may begin now; otherwise `place_free` is called, unless it leaves before."""
        if self._has_place(connection.address):
            self._take_place(connection)
            return True
        self._waiting.setdefault(connection.address, OrderedDict())[connection] = None
        if self._timer is None:
            self._timer = self._timers.call_after(_LOOK_MS, self._look)
        return False

    def leave(self, connection: Handshaker) -> bool:
        """It is over, or will not begin; nothing happens if it is not here. Returns whether a step of it waited, which
        is not worked on any more.
        """
        waited = (self._first if connection.goes_first else self._steps).discard(connection)
        self._give_place_back(connection)
        return waited

    def _give_place_back(self, connection: Handshaker) -> None:
        address = connection.address
        if connection not in self._begun:
            line = self._waiting.get(address)
            if line is not None and connection in line:
                del line[connection]
                if not line:
                    del self._waiting[address]
            return
        del self._begun[connection]
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self._let_in()

    def _has_place(self, address: str) -> bool:
        return len(self._begun) < self._begun_max and self._by_address.get(address, 0) < self._per_address_max

    def _take_place(self, connection: Handshaker) -> None:
        self._begun[connection] = None
        self._by_address[connection.address] = self._by_address.get(connection.address, 0) + 1

    def _let_in(self) -> None:
        """One of each address in turn, so that none keeps the others out."""
        while len(self._begun) < self._begun_max:
            # Few addresses can have all the places that one may have, so few are passed over.
            address = next((each for each in self._waiting if self._has_place(each)), None)
            if address is None:
                return
            line = self._waiting[address]
            connection, _ = line.popitem(last=False)
            if line:
                self._waiting.move_to_end(address)
            else:
                del self._waiting[address]
            self._take_place(connection)
            connection.place_free()

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        # As many as others wait for their places: for any place, or for one of their own address.
        if len(self._begun) >= self._begun_max:
            self._send_away(list(self._begun), sum(map(len, self._waiting.values())))
        else:
            for address, line in list(self._waiting.items()):
                if not self._has_place(address):
                    self._send_away([each for each in self._begun if each.address == address], len(line))
        self._let_in()
        if self._waiting and self._timer is None:
            self._timer = self._timers.call_after(_LOOK_MS, self._look)

    def _send_away(self, connections: list[Handshaker], count: int) -> None:
        """The quietest of these, at most so many."""
        latest = self._loop.time() - QUIET_SECONDS
        quiet = [each for each in connections if each.quiet_since <= latest]
        quiet.sort(key=lambda each: each.quiet_since)
        for connection in quiet[:count]:
            connection.evict()

    # Steps.

    def work(self, connection: Handshaker) -> None:
        """Has a step done; then `step_done` is called, unless it has left before the step's turn."""
        (self._first if connection.goes_first else self._steps).add(connection)
        self._work_on()

    def _work_on(self) -> None:
        while self._working < AT_ONCE and (self._first or self._steps):
            line = self._first or self._steps
            connection = line.pop()
            try:
                future = self._offload(OffloadKind.CPU, connection.do_step)
            except OffloadFullError:
                line.put_back(connection)
                if self._retry is None:
                    self._retry = self._timers.call_after(_FULL_PAUSE_MS, self._try_again)
                return
            except HostClosedError as error:
                connection.step_done(error)
                continue
            self._working += 1
            future.add_done_callback(lambda done, connection=connection: self._done(connection, done))  # type: ignore[misc]

    def _try_again(self) -> None:
        self._retry = None
        self._work_on()

    def _done(self, connection: Handshaker, future: asyncio.Future[None]) -> None:
        self._working -= 1
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        try:
            connection.step_done(error)
        finally:
            self._work_on()


def one_step(secured: ssl.SSLObject) -> bool:
    """Goes as far as the bytes that have come allow; True when the handshake is complete."""
    import ssl

    try:
        secured.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
