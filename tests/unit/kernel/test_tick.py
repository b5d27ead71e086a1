"""`barnabas.kernel.tick`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.kernel.tick import DATA_BYTES_PER_TICK, ROUNDS_PER_TICK, Tick
from barnabas.kernel.turns import yield_to_loop

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Recorded:
    """A connection that notes what the tick asks of it."""

    def __init__(self, name: str, events: list[str], handled_bytes: int = 0) -> None:
        self._name = name
        self._events = events
        self._handled_bytes = handled_bytes

    def deliver(self) -> int:
        self._events.append(f"deliver {self._name}")
        return self._handled_bytes

    def flush(self) -> None:
        self._events.append(f"flush {self._name}")


def test_handles_then_calls_then_sends(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        tick = Tick(asyncio.get_running_loop())
        tick.will_send(Recorded("a", events))
        tick.before_send(lambda: events.append("before"))
        tick.wait_turn(Recorded("b", events))
        assert not events
        await yield_to_loop()
        assert events == ["deliver b", "before", "flush a"]

    run(scenario())


def test_what_calls_bring_about_is_called_before_sending_too(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        tick = Tick(asyncio.get_running_loop())

        def first() -> None:
            events.append("first")
            tick.before_send(lambda: events.append("second"))

        tick.before_send(first)
        tick.will_send(Recorded("a", events))
        await yield_to_loop()
        assert events == ["first", "second", "flush a"]

    run(scenario())


def test_calls_that_never_end_do_not_keep_anything_from_being_sent(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        tick = Tick(asyncio.get_running_loop())

        def again() -> None:
            events.append("again")
            if len(events) < 2 * ROUNDS_PER_TICK:
                tick.before_send(again)

        tick.before_send(again)
        tick.will_send(Recorded("a", events))
        await yield_to_loop()
        assert events == ["again"] * ROUNDS_PER_TICK + ["flush a"]
        await yield_to_loop()
        assert len(events) == 2 * ROUNDS_PER_TICK

    run(scenario())


def test_while_held_data_waits_and_everything_else_goes_on(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        tick = Tick(asyncio.get_running_loop())
        tick.hold()
        tick.wait_turn(Recorded("a", events))
        tick.will_send(Recorded("b", events))
        await yield_to_loop()
        await yield_to_loop()
        assert events == ["flush b"]
        tick.go_on()
        await yield_to_loop()
        assert events == ["flush b", "deliver a"]

    run(scenario())


def test_much_data_takes_several_ticks(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        loop = asyncio.get_running_loop()
        tick = Tick(loop)
        for name in "abc":
            tick.wait_turn(Recorded(name, events, DATA_BYTES_PER_TICK // 2))
        loop.call_soon(events.append, "control")
        await yield_to_loop()
        await yield_to_loop()
        assert events == ["deliver a", "deliver b", "control", "deliver c"]

    run(scenario())


def test_a_call_that_fails_keeps_nothing_from_being_sent(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        loop = asyncio.get_running_loop()
        reported: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: reported.append(context))
        tick = Tick(loop)
        tick.before_send(lambda: 1 // 0)
        tick.will_send(Recorded("a", events))
        await yield_to_loop()
        assert events == ["flush a"]
        assert isinstance(reported[0]["exception"], ZeroDivisionError)

    run(scenario())


def test_a_connection_comes_alone_while_no_other_is_busy(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        tick = Tick(asyncio.get_running_loop())
        one, other = Recorded("one", events), Recorded("other", events)
        assert [tick.is_sole_ready(each) for each in (one, one, other, one, one)] == [False, True, False, False, True]
        tick.wait_turn(other)
        assert not tick.is_sole_ready(one)
        await yield_to_loop()
        assert tick.is_sole_ready(one)
        tick.hold()
        assert not tick.is_sole_ready(one)

    run(scenario())


def test_the_tick_of_a_connection_that_comes_alone_ends_at_once(run: Run) -> None:
    async def scenario() -> None:
        events: list[str] = []
        tick = Tick(asyncio.get_running_loop())
        one = Recorded("one", events)
        tick.begin()
        assert not tick.is_sole_ready(one)
        tick.will_send(one)
        tick.before_send(lambda: events.append("before"))
        assert not events
        tick.finish()
        assert events == ["before", "flush one"]
        await yield_to_loop()
        tick.begin()
        tick.finish()
        assert tick.is_sole_ready(one)
        tick.will_send(one)  # the next tick is scheduled as ever
        await yield_to_loop()
        assert events == ["before", "flush one", "flush one"]

    run(scenario())
