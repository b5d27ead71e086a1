"""Floods at the servers of HTTP of a simulated cluster, its brokers' and the console's, and who asks them beside that.

A flood comes from one machine, with more connections than there are places: such that say nothing, a byte now and then,
garbage, half a request, or a whole one whose answer they do not read. Who asks, from an address of his own or from the
flood's, is answered within seconds, unless who is to answer falls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from barnabas.console.serve import serve
from barnabas.kernel.timers import Timers
from barnabas.link.errors import AuthenticationFailedError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedMachine

CONSOLE: Final = 0
"""In place of a broker's id."""
CONSOLE_PORT: Final = 9_200
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
COVERAGE: Final = (
    "flood: cut off",
    "flood: scraped amid one",
    "flood: health amid one",
    "flood: page of the console amid one",
)


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


class _Target(NamedTuple):
    """A server of HTTP, by the id of its broker, or `CONSOLE`."""

    target_id: int
    machine: SimulatedMachine
    port: int
    paths: tuple[str, ...]


class HttpFlood:
    """Those of one run."""

    def __init__(
        self,
        users: Users,
        brokers: Mapping[int, SimulatedMachine],
        port: int,
        console: SimulatedMachine,
        running: Callable[[], list[int]],
        pauses: Callable[[], int],
    ) -> None:
        """`port` is that of the brokers' metrics; `running` gives the ids of the brokers that serve, `pauses` how often
        a machine was paused.
        """
        self.counts: Counter[str] = Counter()
        self._running = running
        self._pauses = pauses
        self._users = users
        self._targets = {
            CONSOLE: _Target(CONSOLE, console, CONSOLE_PORT, ("",)),
            **{each: _Target(each, machine, port, ("metrics", "livez")) for each, machine in brokers.items()},
        }
        self._console_starts = 0
        self._console_is_ready = False
        self._flooded: Counter[int] = Counter()

    async def show_console(self, host: Host, bootstrap_servers: tuple[str, ...], logger: logging.Logger) -> None:
        """Runs a console, until the users are to stop; one that was not let in by the brokers is started again."""
        timers = Timers(host.loop)
        while self._users.goes_on():
            access = self._users.access(host)
            serving = host.loop.create_task(
                serve(
                    *(host, bootstrap_servers, "0.0.0.0", CONSOLE_PORT, logger),  # noqa: S104 - a simulated machine
                    names=(host.name,),
                    login=access.login,
                    tls=access.tls,
                    on_ready=self._show,
                ),
                name="console",
            )
            try:
                while self._users.goes_on() and not serving.done():
                    await timers.sleep(100)
            finally:
                self._console_is_ready = False
                serving.cancel()
                outcome = (await asyncio.gather(serving, return_exceptions=True))[0]
            if isinstance(outcome, Exception) and not isinstance(outcome, AuthenticationFailedError):
                raise outcome

    def _show(self, _url: str) -> None:
        self._console_is_ready = True
        self._console_starts += 1

    def targets(self) -> list[int]:
        """The ids of those that serve now."""
        brokers = [each for each in self._running() if self._targets[each].machine.running]
        return [*brokers, CONSOLE] if self._console_is_ready else brokers

    async def flood(self, host: Host, target_id: int, seconds: float, happened: Callable[[], object]) -> None:
        """Comes, holds what it has for so long, and goes."""
        timers, before = Timers(host.loop), self.counts["flood: cut off"]
        made: list[_Flooder] = []
        ways, target = host.random.choice((_SILENT, _MIXED)), self._targets[target_id]

        async def come() -> None:
            way = host.random.choice(ways)
            try:
                _, protocol = await host.loop.create_connection(
                    lambda: _Flooder(self, host, way), target.machine.name, target.port
                )
            except OSError:
                return
            made.append(protocol)

        ends_at = host.loop.time() + seconds
        self._flooded[target_id] += 1
        try:
            for _ in range(FLOOD // _WAVE):
                await asyncio.gather(*(come() for _ in range(_WAVE)))
                await timers.sleep(_WAVE_PAUSE_MS)
            while self._users.goes_on() and host.loop.time() < ends_at:
                await timers.sleep(100)
            if self.counts["flood: cut off"] > before:
                happened()
        finally:
            self._flooded[target_id] -= 1
            for each in made:
                each.end()

    def lost(self, way: str) -> None:
        """One of a flood has lost its connection."""
        self.counts["flood: cut off"] += way in _HOLDING

    async def scrape(self, host: Host) -> None:
        """Asks for health, metrics and the console's first page, here and there, until the users are to stop."""
        timers = Timers(host.loop)
        while self._users.goes_on():
            await timers.sleep(host.random.expovariate(1 / _SCRAPE_PAUSE_MS))
            candidates = self.targets()
            candidates = [each for each in candidates if self._flooded[each]] or candidates
            if candidates:
                await self._scrape(host, self._targets[host.random.choice(candidates)])

    async def _scrape(self, host: Host, target: _Target) -> None:
        target_id, machine, path = target.target_id, target.machine, host.random.choice(target.paths)
        before, is_flooded, began_at = self._life_of(target), self._flooded[target_id], host.loop.time()
        request = f"GET /{path} HTTP/1.0\r\nHost: {machine.name}:{target.port}\r\n\r\n".encode()
        received = b"nothing"
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                transport, scrape = await host.loop.create_connection(
                    lambda: _Scrape(host.loop, request), machine.name, target.port
                )
                try:
                    await scrape.ended
                finally:
                    received = bytes(scrape.received)
                    transport.abort()
        except (OSError, TimeoutError):
            pass
        if b" 200 OK" in received[:16] and b"\r\n\r\n" in received:
            what = {"metrics": "scraped", "livez": "health"}.get(path, "page of the console")
            self.counts[f"flood: {what} amid one"] += bool(is_flooded)
        elif before == self._life_of(target):
            seconds, when = host.loop.time() - began_at, "amid a flood" if is_flooded else "though nobody floods it"
            self._users.history.mistaken.append(
                f"at {self._users.now():.3f} s: {machine.name} answers /{path} in {seconds:.3f} s with"
                f" {received[:60]!r}, {when}"
            )

    def _life_of(self, target: _Target) -> tuple[object, ...]:
        """Another one when it has fallen, or was held up, meanwhile."""
        if target.target_id == CONSOLE:
            return self._console_starts, self._console_is_ready
        return (*target.machine.processes, self._pauses())
