"""Tasks with names, periodic or once, as a broker has for retention, flushing, ISR expiration and the like."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable, Mapping

    from barnabas.kernel.timers import Timer, Timers

CANCEL_SECONDS = 1.0


class ScheduledTask:
    """One named task; `Scheduler.schedule` makes it. Its plain integers are gauges.

    Runs start at a fixed rate from the first one. Runs that a busy loop or an unfinished run prevented are not made up
    for.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[], object],
        period_ms: float | None,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        logger: logging.Logger,
        forget: Callable[[ScheduledTask], None],
    ) -> None:
        self.name = name
        self.period_ms = period_ms
        self.runs = 0
        """Runs that have ended, failed ones included."""
        self.failures = 0
        self.skipped = 0
        """Runs that did not start because the one before had not ended."""
        self.last_duration_ms = 0
        self._function = function
        self._loop = loop
        self._timers = timers
        self._logger = logger
        self._forget = forget
        self._timer: Timer | None = None
        self._due = 0.0
        self._run: asyncio.Task[None] | None = None
        self._on_loop = False

    @property
    def running(self) -> bool:
        """True from the start of a run to its end."""
        return self._on_loop or self._run is not None

    @property
    def current_run(self) -> asyncio.Task[None] | None:
        """The task of the loop that the run of a coroutine function is."""
        return self._run

    @property
    def done(self) -> bool:
        """True when no run is under way and none is to come."""
        return not self.running and (self._timer is None or not self._timer.active)

    def start(self, delay_ms: float) -> None:
        """Starts the first run after `delay_ms`."""
        self._arm(self._loop.time() + delay_ms / 1000)

    def cancel(self) -> None:
        """Starts no further run. One that is under way goes on; the name is free again when it has ended."""
        self.period_ms = None
        if self._timer is not None:
            self._timer.cancel()
        self._forget_if_done()

    def _arm(self, due: float) -> None:
        self._due = due
        self._timer = self._timers.call_at(due, self._start_run)

    def _start_run(self) -> None:
        if self._run is not None:
            self.skipped += 1
        else:
            self._on_loop = True
            try:
                self._call(self._loop.time())
            finally:
                self._on_loop = False
        if self.period_ms is not None:
            period = self.period_ms / 1000
            missed = max(0, int((self._loop.time() - self._due) / period))
            self._arm(self._due + (missed + 1) * period)
        self._forget_if_done()

    def _call(self, started: float) -> None:
        try:
            result = self._function()
        except Exception as error:  # noqa: BLE001 - a failed run must not end the task
            self._failed(error)
        else:
            if inspect.isawaitable(result):
                self._run = self._loop.create_task(self._await(result, started), name=self.name)
                return
        self._ended(started)

    async def _await(self, result: Awaitable[object], started: float) -> None:
        try:
            await result
        except asyncio.CancelledError as error:
            if self._run is not None and self._run.cancelling():
                raise
            self._failed(error)  # what the run awaited was cancelled by its owner
        except Exception as error:  # noqa: BLE001 - a failed run must not end the task
            self._failed(error)
        finally:
            self._run = None
            self._ended(started)
            self._forget_if_done()

    def _ended(self, started: float) -> None:
        self.runs += 1
        self.last_duration_ms = round((self._loop.time() - started) * 1000)

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        self._logger.error("Uncaught exception in scheduled task '%s'", self.name, exc_info=error)

    def _forget_if_done(self) -> None:
        if self.done:
            self._forget(self)


class Scheduler:
    """Runs functions and coroutine functions by name, never two runs of one task at once.

    A run that fails is logged and counted, and the task goes on. What is no coroutine function runs on the loop and
    must be short. Names are as many as the program has tasks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers, logger: logging.Logger) -> None:
        self._loop = loop
        self._timers = timers
        self._logger = logger
        self._tasks: dict[str, ScheduledTask] = {}
        self._stopped = False

    @property
    def tasks(self) -> Mapping[str, ScheduledTask]:
        """The tasks that run or have runs to come, by name."""
        return self._tasks

    def schedule(
        self, name: str, function: Callable[[], object], *, delay_ms: float = 0, period_ms: float | None = None
    ) -> ScheduledTask:
        """Calls the function after the delay, then at the period's rate; only once when there is no period.

        Awaits what the function returns when that can be awaited. Raises ValueError for a name that is in use and for a
        period that is not positive, RuntimeError once stopped.
        """
        if self._stopped:
            raise RuntimeError(f"the scheduler has stopped: task '{name}' cannot be scheduled")
        if name in self._tasks:
            raise ValueError(f"a task named '{name}' is scheduled already: cancel it first")
        if period_ms is not None and period_ms <= 0:
            raise ValueError(f"the period of task '{name}' must be positive, not {period_ms} ms")
        task = ScheduledTask(
            name,
            function,
            period_ms,
            loop=self._loop,
            timers=self._timers,
            logger=self._logger,
            forget=self._forget,
        )
        self._tasks[name] = task
        task.start(delay_ms)
        return task

    async def stop(self, limit_ms: float) -> list[str]:
        """Starts no more runs, waits for those under way, cancels the rest after the limit, and returns their names."""
        self._stopped = True
        for task in list(self._tasks.values()):
            task.cancel()
        late = await self._wait_for_runs(limit_ms / 1000)
        for task in late:
            if task.current_run is not None:
                task.current_run.cancel()
        for task in await self._wait_for_runs(CANCEL_SECONDS):
            self._logger.error("Scheduled task '%s' does not end when it is cancelled", task.name)
        return [task.name for task in late]

    async def _wait_for_runs(self, limit_seconds: float) -> list[ScheduledTask]:
        runs = [task.current_run for task in self._tasks.values() if task.current_run is not None]
        # A task of the scheduler may itself stop it, and must not wait for itself.
        runs = [run for run in runs if run is not asyncio.current_task(self._loop)]
        if runs:
            await asyncio.wait(runs, timeout=limit_seconds)
        return [task for task in self._tasks.values() if task.current_run in runs]

    def _forget(self, task: ScheduledTask) -> None:
        if self._tasks.get(task.name) is task:
            del self._tasks[task.name]
