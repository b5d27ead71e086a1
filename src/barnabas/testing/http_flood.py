"""Floods at the servers of HTTP that simulated brokers have, and one who scrapes beside them.

A flood comes from one machine, with more connections than there are places: such that say nothing, a byte now and then,
garbage, half a request, or a whole one whose answer they do not read. Who scrapes, from an address of his own or from
the flood's, is answered within seconds, unless his broker falls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

from barnabas.kernel.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedMachine

ANSWER_SECONDS_MAX: Final = 5.0
FLOOD: Final = 400
"""More than the 256 that may only have come."""
_WAVE: Final = 40
_WAVE_PAUSE_MS: Final = 20.0
_SCRAPE_PAUSE_MS: Final = 600.0
_HEAD: Final = b"GET /metrics HTTP/1.0\r\n\r\n"
_GARBAGE: Final = b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"
_SILENT: Final = ("silent",)
_MIXED: Final = ("silent", "slow", "half", "half", "garbage", "whole")
_HOLDING: Final = frozenset(("silent", "slow", "half"))
"""Those that keep a place until somebody takes it."""
COVERAGE: Final = ("flood: cut off", "flood: scraped amid one", "flood: health amid one")


class _Flooder(asyncio.Protocol):
    def __init__(self, flood: HttpFlood, host: Host, way: str) -> None:
        self._flood = flood
        self._host = host
        self._way = way
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast("asyncio.Transport", transport)
        match self._way:
            case "slow":
                self._say(0)
            case "garbage":
                made.write(_GARBAGE)
            case "half":
                made.write(_HEAD[: self._host.random.randrange(1, len(_HEAD))])
            case "whole":
                made.pause_reading()
                made.write(_HEAD)
            case _:
                pass

    def connection_lost(self, _error: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._flood.lost(self._way)

    def _say(self, at: int) -> None:
        if self._transport is not None and at < len(_HEAD):
            self._transport.write(_HEAD[at : at + 1])
            self._host.loop.call_later(0.3, self._say, at + 1)

    def end(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class _Scrape(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes) -> None:
        self._request = request
        self.received = bytearray()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class HttpFlood:
    """Those of one run."""

    def __init__(
        self,
        users: Users,
        brokers: Mapping[int, SimulatedMachine],
        port: int,
        running: Callable[[], list[int]],
        pauses: Callable[[], int],
    ) -> None:
        """`running` gives the ids of the brokers that serve, `pauses` how often a machine was paused."""
        self.counts: Counter[str] = Counter()
        self._running = running
        self._pauses = pauses
        self._users = users
        self._brokers = dict(brokers)
        self._port = port
        self._flooded: Counter[int] = Counter()

    async def flood(self, host: Host, broker_id: int, seconds: float, happened: Callable[[], object]) -> None:
        """Comes, holds what it has for so long, and goes."""
        timers, before = Timers(host.loop), self.counts["flood: cut off"]
        made: list[_Flooder] = []
        ways = host.random.choice((_SILENT, _MIXED))

        async def come() -> None:
            way = host.random.choice(ways)
            try:
                _, protocol = await host.loop.create_connection(
                    lambda: _Flooder(self, host, way), self._brokers[broker_id].name, self._port
                )
            except OSError:
                return
            made.append(protocol)

        ends_at = host.loop.time() + seconds
        self._flooded[broker_id] += 1
        try:
            for _ in range(FLOOD // _WAVE):
                await asyncio.gather(*(come() for _ in range(_WAVE)))
                await timers.sleep(_WAVE_PAUSE_MS)
            while self._users.goes_on() and host.loop.time() < ends_at:
                await timers.sleep(100)
            if self.counts["flood: cut off"] > before:
                happened()
        finally:
            self._flooded[broker_id] -= 1
            for each in made:
                each.end()

    def lost(self, way: str) -> None:
        """One of a flood has lost its connection."""
        self.counts["flood: cut off"] += way in _HOLDING

    async def scrape(self, host: Host) -> None:
        """Asks for health and metrics of one broker after another, until the users are to stop."""
        timers = Timers(host.loop)
        while self._users.goes_on():
            await timers.sleep(host.random.expovariate(1 / _SCRAPE_PAUSE_MS))
            flooded = [each for each in self._running() if self._flooded[each]]
            candidates = [each for each in flooded or self._running() if self._brokers[each].running]
            if candidates:
                await self._scrape(host, host.random.choice(candidates))

    async def _scrape(self, host: Host, broker_id: int) -> None:
        path = host.random.choice(("metrics", "livez"))
        processes = list(self._brokers[broker_id].processes)
        pauses, is_flooded = self._pauses(), self._flooded[broker_id]
        request = f"GET /{path} HTTP/1.0\r\n\r\n".encode()
        name, began_at = self._brokers[broker_id].name, host.loop.time()
        received = b"nothing"
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                transport, scrape = await host.loop.create_connection(
                    lambda: _Scrape(host.loop, request), name, self._port
                )
                try:
                    await scrape.ended
                finally:
                    received = bytes(scrape.received)
                    transport.abort()
        except (OSError, TimeoutError):
            pass
        is_answered = received.startswith(b"HTTP/1.0 200") and b"\r\n\r\n" in received
        if is_answered:
            what = "scraped" if path == "metrics" else "health"
            self.counts[f"flood: {what} amid one"] += bool(is_flooded)
        elif processes == self._brokers[broker_id].processes and pauses == self._pauses():
            seconds, when = host.loop.time() - began_at, "amid a flood" if is_flooded else "though nobody floods it"
            self._users.history.mistaken.append(
                f"at {self._users.now():.3f} s: broker {broker_id} answers /{path} in {seconds:.3f} s with"
                f" {received[:60]!r}, {when}"
            )
