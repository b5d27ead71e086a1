"""What a log does besides: work that nobody waits for at once, and disk work off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from barnabas.kernel.host import OffloadKind
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState

Result = TypeVar("Result")


class BackgroundWork:
    """That of one log; who closes the log waits for it."""

    __slots__ = ("_services", "_state", "_tasks")

    def __init__(self, services: LogServices, state: LogState) -> None:
        self._services = services
        self._state = state
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Runs it in the background. An OSError that it ends with takes the log directory offline."""
        task = self._services.host.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, OSError):
            self._state.storage_failed(error)

    async def offload_disk(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Runs disk work of this log off the loop, one after another."""
        state = self._state
        return await self._services.offload(
            OffloadKind.DISK, function, *arguments, directory=state.log_directory, order=state.directory
        )

    def tasks(self) -> tuple[asyncio.Task[Any], ...]:
        """What goes on now."""
        return tuple(self._tasks)

    async def finish(self) -> None:
        """Waits until nothing goes on any more, however it ends."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        """Ends all of it, as a crash does."""
        for task in list(self._tasks):
            task.cancel()
