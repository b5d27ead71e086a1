"""`barnabas.kernel.event_queue`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.event_queue import EventQueue, EventQueueClosedError, EventQueueFullError
from barnabas.kernel.timers import Timers
from tests.unit.kernel.virtual_loop import run_virtually

LOGGER = logging.getLogger("tests.event_queue")


def queue_of(
    process: Callable[[Any], object],
    *,
    levels: int = 1,
    capacity: int | None = None,
    kind: Callable[[Any], str] = lambda _: "event",
) -> EventQueue[Any]:
    return EventQueue(
        "controller-event-thread",
        asyncio.get_running_loop(),
        process,
        logger=LOGGER,
        kind=kind,
        levels=levels,
        capacity=capacity,
    )


PUT = st.tuples(st.just("put"), st.integers(0, 2))
CLEAR = st.tuples(st.just("clear"), st.just(0))
CLEAR_AND_PUT = st.tuples(st.just("clear and put"), st.just(0))


@settings(deadline=None)
@given(st.lists(st.one_of(PUT, PUT, PUT, PUT, CLEAR, CLEAR_AND_PUT), max_size=40))
def test_processes_the_most_urgent_first_and_equals_in_order(steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        processed: list[int] = []
        queue = queue_of(processed.append, levels=3)
        waiting: list[tuple[int, int]] = []
        for number, (step, level) in enumerate(steps):
            in_turn = [event for _, event in sorted(waiting)]
            if step == "put":
                queue.put(number, level)
                waiting.append((level, number))
            elif step == "clear":
                assert queue.clear() == in_turn
                waiting = []
            else:
                assert queue.clear_and_put(number) == in_turn
                waiting = [(0, number)]
            assert len(queue) == len(waiting)
        queue.start()
        await queue.idle()
        assert processed == [event for _, event in sorted(waiting)]
        assert await queue.close(1000) == []

    run_virtually(scenario())


def test_processes_one_event_at_a_time_to_its_end(run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    async def scenario() -> None:
        begun: list[str] = []
        gates = {name: asyncio.Event() for name in ("first", "second")}

        async def process(event: str) -> None:
            begun.append(event)
            await gates[event].wait()
            begun.append(f"{event} ended")

        queue = queue_of(process)
        queue.start()
        queue.put("first")
        queue.put("second")
        gates["second"].set()
        while not begun:
            await asyncio.sleep(0)
        assert (queue.processing, len(queue)) == ("first", 1)
        gates["first"].set()
        await queue.idle()
        assert begun == ["first", "first ended", "second", "second ended"]
        assert queue.processing is None
        await queue.close(1000)

    run(scenario())


def test_an_event_put_by_the_processing_of_another_is_processed_too() -> None:
    async def scenario() -> None:
        processed: list[int] = []

        def process(event: int) -> None:
            processed.append(event)
            if event < 5:
                queue.put(event + 1)

        queue = queue_of(process)
        queue.start()
        queue.put(0)
        await queue.idle()
        assert processed == list(range(6))
        await queue.close(1000)

    run_virtually(scenario())


def test_gives_the_loop_a_turn_between_events() -> None:
    async def scenario() -> None:
        processed: list[int] = []
        queue = queue_of(processed.append)
        queue.start()
        for number in range(1000):
            queue.put(number)
        seen = 0
        while len(queue) > 500:
            await asyncio.sleep(0)
            seen += 1
        assert seen >= 400
        await queue.idle()
        assert processed == list(range(1000))
        await queue.close(1000)

    run_virtually(scenario())


def test_measures_time_in_the_queue_and_in_processing_by_kind() -> None:
    async def scenario() -> None:
        timers = Timers(asyncio.get_running_loop())

        def process(event: tuple[str, int]) -> Awaitable[None]:
            return timers.sleep(event[1])

        queue = queue_of(process, kind=lambda event: event[0])
        queue.start()
        queue.put(("election", 20))
        queue.put(("deletion", 5))
        queue.put(("election", 30))
        await queue.idle()
        waits = queue.queue_time_ms.snapshot()
        assert (waits.count, waits.minimum, waits.maximum, waits.total) == (3, 0, 25, 45)
        elections = queue.timings["election"].durations_ms.snapshot()
        assert (queue.timings["election"].meter.count, elections.total, elections.maximum) == (2, 50, 30)
        assert queue.timing("deletion").durations_ms.snapshot().maximum == 5
        await queue.close(1000)

    run_virtually(scenario())


def test_tells_how_long_the_oldest_event_waits() -> None:
    async def scenario() -> None:
        timers = Timers(asyncio.get_running_loop())
        queue = queue_of(lambda _event: timers.sleep(40), levels=2)
        assert queue.oldest_age_ms == 0
        queue.put("late", 1)
        await timers.sleep(30)
        queue.put("urgent", 0)
        assert queue.oldest_age_ms == 30
        queue.start()
        await timers.sleep(20)
        assert (queue.processing, queue.oldest_age_ms) == ("urgent", 50)
        await queue.idle()
        assert queue.oldest_age_ms == 0
        await queue.close(1000)

    run_virtually(scenario())


def test_logs_an_event_that_fails_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        processed: list[str] = []

        async def process(event: str) -> None:
            if event == "bad":
                raise ValueError("of no use")
            processed.append(event)

        queue = queue_of(process)
        queue.start()
        queue.put("bad")
        queue.put("good")
        with caplog.at_level(logging.ERROR):
            await queue.idle()
        assert processed == ["good"]
        assert ["'bad'" in record.getMessage() for record in caplog.records] == [True]
        await queue.close(1000)

    run_virtually(scenario())


def test_an_event_that_awaits_something_cancelled_does_not_end_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        processed: list[str] = []

        async def process(event: str) -> None:
            if event == "unlucky":
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            processed.append(event)

        queue = queue_of(process)
        queue.start()
        queue.put("unlucky")
        queue.put("good")
        await queue.idle()
        assert processed == ["good"]
        await queue.close(1000)

    run_virtually(scenario())
    assert "'unlucky'" in caplog.text


def test_pushes_back_when_full_and_counts_only_what_waits() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        queue = queue_of(lambda _: gate.wait(), capacity=2)
        queue.start()
        queue.put("in processing")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert queue.processing == "in processing"
        queue.put("one")
        queue.put("two")
        with pytest.raises(EventQueueFullError, match="2 events wait"):
            queue.put("three")
        assert queue.clear_and_put("expire") == ["one", "two"]
        gate.set()
        await queue.idle()
        await queue.close(1000)

    run_virtually(scenario())


def test_close_returns_what_waits_and_lets_the_event_in_processing_end() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        ended: list[str] = []

        async def process(event: str) -> None:
            await gate.wait()
            ended.append(event)

        queue = queue_of(process)
        queue.start()
        queue.put("first")
        queue.put("second")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        closing = asyncio.create_task(queue.close(1000))
        await asyncio.sleep(0)
        with pytest.raises(EventQueueClosedError):
            queue.put("third")
        with pytest.raises(EventQueueClosedError):
            queue.clear_and_put("third")
        gate.set()
        assert await closing == ["second"]
        assert ended == ["first"]

    run_virtually(scenario())


def test_close_cancels_an_event_that_does_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        cancelled: list[str] = []

        async def process(event: str) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(event)
                raise

        queue = queue_of(process)
        queue.start()
        queue.put("endless")
        waiter = asyncio.create_task(queue.idle())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await queue.close(300) == []
        assert cancelled == ["endless"]
        assert loop.time() - started == pytest.approx(0.3)
        await waiter

    with caplog.at_level(logging.WARNING):
        run_virtually(scenario())
    assert "'endless'" in caplog.text


def test_close_before_start_and_of_an_idle_queue() -> None:
    async def scenario() -> None:
        never_started = queue_of(print)
        never_started.put("event")
        assert await never_started.close(1000) == ["event"]
        idle = queue_of(print)
        idle.start()
        await asyncio.sleep(0)
        assert await idle.close(1000) == []
        with pytest.raises(RuntimeError, match="started already"):
            idle.start()

    run_virtually(scenario())


def test_waiting_for_a_queue_that_does_not_run_is_refused() -> None:
    async def scenario() -> None:
        queue = queue_of(print)
        queue.put("event")
        with pytest.raises(RuntimeError, match="not running"):
            await queue.idle()
        assert queue.clear() == ["event"]

    run_virtually(scenario())


@pytest.mark.parametrize(("levels", "capacity"), [(0, None), (1, 0)])
def test_refuses_a_queue_without_room(levels: int, capacity: int | None) -> None:
    async def scenario() -> None:
        with pytest.raises(ValueError, match="needs a level and room"):
            queue_of(print, levels=levels, capacity=capacity)

    run_virtually(scenario())
