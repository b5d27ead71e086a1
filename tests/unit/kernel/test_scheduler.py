"""`barnabas.kernel.scheduler`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.timers import Timers
from tests.unit.kernel.virtual_loop import VirtualLoop, run_virtually

LOGGER = logging.getLogger("tests.scheduler")


class Stage:
    """A scheduler, its timers, and the moments at which something ran, in milliseconds since the start."""

    def __init__(self) -> None:
        self.loop = cast("VirtualLoop", asyncio.get_running_loop())
        self.timers = Timers(self.loop)
        self.scheduler = Scheduler(self.loop, self.timers, LOGGER)
        self.started = self.loop.time()
        self.runs: list[int] = []

    def now_ms(self) -> int:
        return round((self.loop.time() - self.started) * 1000)

    def run(self) -> None:
        self.runs.append(self.now_ms())

    def running_for(self, duration_ms: int) -> Callable[[], Awaitable[None]]:
        def function() -> Awaitable[None]:
            self.run()
            return self.timers.sleep(duration_ms)

        return function


def test_runs_after_the_delay_at_the_period_until_cancelled() -> None:
    async def scenario() -> None:
        stage = Stage()
        task = stage.scheduler.schedule("kafka-log-retention", stage.run, delay_ms=30, period_ms=100)
        await stage.timers.sleep(350)
        assert stage.runs == [30, 130, 230, 330]
        assert (task.runs, task.failures, task.skipped) == (4, 0, 0)
        task.cancel()
        assert task.done
        assert not stage.scheduler.tasks
        await stage.timers.sleep(500)
        assert len(stage.runs) == 4

    run_virtually(scenario())


def test_runs_once_without_a_period_and_frees_the_name() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.scheduler.schedule("kafka-delete-logs", stage.running_for(20), delay_ms=10)
        await stage.timers.sleep(15)
        assert list(stage.scheduler.tasks) == ["kafka-delete-logs"]
        await stage.timers.sleep(100)
        assert stage.runs == [10]
        assert not stage.scheduler.tasks
        stage.scheduler.schedule("kafka-delete-logs", stage.run)
        await stage.timers.sleep(10)
        assert len(stage.runs) == 2

    run_virtually(scenario())


def test_never_runs_a_task_twice_at_once_and_keeps_its_rate() -> None:
    async def scenario() -> None:
        stage = Stage()
        task = stage.scheduler.schedule("isr-expiration", stage.running_for(250), period_ms=100)
        await stage.timers.sleep(50)
        assert task.running
        await stage.timers.sleep(900)
        assert stage.runs == [0, 300, 600, 900]
        assert (task.runs, task.skipped, task.last_duration_ms) == (3, 6, 250)
        assert await stage.scheduler.stop(1000) == []

    run_virtually(scenario())


def test_runs_that_a_busy_loop_missed_are_not_made_up_for() -> None:
    async def scenario() -> None:
        stage = Stage()

        def busy_the_first_time() -> None:
            stage.run()
            if len(stage.runs) == 1:
                stage.loop.time_passes(0.350)

        stage.scheduler.schedule("busy", busy_the_first_time, period_ms=100)
        await stage.timers.sleep(650)
        assert stage.runs == [0, 400, 500, 600]
        await stage.scheduler.stop(0)

    run_virtually(scenario())


def test_a_failed_run_is_logged_and_counted_and_the_task_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        stage = Stage()

        async def fails_later() -> None:
            await stage.timers.sleep(5)
            raise OSError("disk is gone")

        plain = stage.scheduler.schedule("plain", {}.popitem, period_ms=100)
        later = stage.scheduler.schedule("later", fails_later, period_ms=100)
        await stage.timers.sleep(250)
        assert (plain.runs, plain.failures) == (3, 3)
        assert (later.runs, later.failures, later.last_duration_ms) == (3, 3, 5)
        await stage.scheduler.stop(0)

    with caplog.at_level(logging.ERROR):
        run_virtually(scenario())
    assert sorted({record.getMessage() for record in caplog.records}) == [
        "Uncaught exception in scheduled task 'later'",
        "Uncaught exception in scheduled task 'plain'",
    ]
    assert "disk is gone" in caplog.text


def test_a_run_that_awaits_something_cancelled_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        stage = Stage()

        async def awaits_cancelled() -> None:
            future = stage.loop.create_future()
            future.cancel()
            await future

        task = stage.scheduler.schedule("unlucky", awaits_cancelled, period_ms=10)
        await stage.timers.sleep(15)
        assert (task.runs, task.failures) == (2, 2)
        await stage.scheduler.stop(0)

    run_virtually(scenario())
    assert "'unlucky'" in caplog.text


def test_a_task_may_cancel_itself() -> None:
    async def scenario() -> None:
        stage = Stage()

        def once() -> None:
            stage.run()
            task.cancel()

        task = stage.scheduler.schedule("once", once, period_ms=10)
        await stage.timers.sleep(100)
        assert len(stage.runs) == 1
        assert not stage.scheduler.tasks

    run_virtually(scenario())


def test_stop_waits_for_runs_on_their_way_and_starts_no_more() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.scheduler.schedule("flusher", stage.running_for(200), period_ms=50)
        stage.scheduler.schedule("retention", stage.run, delay_ms=100)
        await stage.timers.sleep(20)
        assert await stage.scheduler.stop(1000) == []
        assert stage.now_ms() == 200
        await stage.timers.sleep(500)
        assert stage.runs == [0]
        with pytest.raises(RuntimeError, match="has stopped"):
            stage.scheduler.schedule("too late", stage.run)

    run_virtually(scenario())


def test_stop_cancels_what_does_not_end_in_time() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.scheduler.schedule("endless", stage.running_for(3_600_000))
        stage.scheduler.schedule("short", stage.running_for(50))
        await stage.timers.sleep(20)
        assert await stage.scheduler.stop(100) == ["endless"]
        assert stage.now_ms() == 120
        assert not stage.scheduler.tasks

    run_virtually(scenario())


def test_stop_does_not_wait_for_the_task_that_stops() -> None:
    async def scenario() -> None:
        stage = Stage()
        stopped: list[list[str]] = []

        async def stop() -> None:
            stopped.append(await stage.scheduler.stop(60_000))

        stage.scheduler.schedule("stopper", stop)
        await stage.timers.sleep(50)
        assert stopped == [[]]
        assert not stage.scheduler.tasks

    run_virtually(scenario())


def test_stop_reports_a_run_that_cannot_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        stage = Stage()
        gate = asyncio.Event()

        async def stubborn() -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

        stage.scheduler.schedule("stubborn", stubborn)
        await stage.timers.sleep(1)
        assert await stage.scheduler.stop(10) == ["stubborn"]
        gate.set()

    with caplog.at_level(logging.ERROR):
        run_virtually(scenario())
    assert "'stubborn' does not end" in caplog.text


def test_refuses_a_name_in_use_and_a_period_that_is_not_positive() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.scheduler.schedule("isr-expiration", stage.run, delay_ms=10)
        with pytest.raises(ValueError, match="'isr-expiration' is scheduled already"):
            stage.scheduler.schedule("isr-expiration", stage.run)
        with pytest.raises(ValueError, match="must be positive"):
            stage.scheduler.schedule("other", stage.run, period_ms=0)
        assert list(stage.scheduler.tasks) == ["isr-expiration"]
        await stage.scheduler.stop(0)

    run_virtually(scenario())
