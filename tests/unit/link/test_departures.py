"""`barnabas.link.departures`: on a loop that is stepped by hand, and on both real ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

from barnabas.kernel.timers import Timers
from barnabas.link.connection import Connection, LinkContext
from barnabas.link.departures import CLOSED_PER_TURN, Departures
from barnabas.link.limits import LinkLimits

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Steps:
    """A loop of which each turn is run by the test."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


class Transport:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_who_goes_with_few_others_goes_at_once_and_the_rest_some_in_each_turn() -> None:
    loop = Steps()
    departures = Departures(cast("Any", loop))
    going = [Transport() for _ in range(2 * CLOSED_PER_TURN + 30)]
    at_once = [departures.close_now(transport) for transport in going]
    assert at_once == [True] * CLOSED_PER_TURN + [False] * (CLOSED_PER_TURN + 30)
    closed = []
    while loop.due:
        loop.turn()
        closed.append(sum(transport.closed for transport in going))
    assert closed == [CLOSED_PER_TURN, CLOSED_PER_TURN + 30, CLOSED_PER_TURN + 30]
    assert [transport.closed for transport in going] == [0] * CLOSED_PER_TURN + [1] * (CLOSED_PER_TURN + 30)


def test_what_is_closed_later_counts_in_that_turn() -> None:
    loop = Steps()
    departures = Departures(cast("Any", loop))
    for _ in range(CLOSED_PER_TURN + 100):
        departures.close_now(Transport())
    loop.turn()
    assert [departures.close_now(Transport()) for _ in range(CLOSED_PER_TURN)].count(True) == CLOSED_PER_TURN - 100
    loop.turn()
    loop.turn()
    loop.turn()
    assert not loop.due
    assert departures.close_now(Transport())


def test_connections_whose_peers_have_all_gone_are_all_closed(run: Run) -> None:
    count = 3
    closed: list[Connection] = []

    class Served(Connection):
        def _opened(self) -> None:
            return

        def _lost(self, _error: Exception | None) -> None:
            closed.append(self)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        context = LinkContext.of(loop, timers, LinkLimits(), logging.getLogger("departures"))
        departures = context.departures
        departures._left = 0  # a turn that has closed its share, and does not end yet
        server = await loop.create_server(lambda: Served(context), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(count)]
        for writer in writers:
            writer.close()
        async with asyncio.timeout(60):
            while len(departures._waiting) < count:
                await asyncio.sleep(0.001)
            assert not closed
            loop.call_soon(departures._next_turn)
            while len(closed) < count:
                await asyncio.sleep(0.001)
        server.close()
        timers.close()

    run(main())
