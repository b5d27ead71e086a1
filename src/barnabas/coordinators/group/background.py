"""Work in steps that nobody waits for: what a request began, and answers when it is done."""

from __future__ import annotations

import asyncio
import logging

from barnabas.kernel.steps import StepRunner, Steps


class BackgroundSteps:
    """Runs steps, and knows which are under way. What fails is logged."""

    def __init__(self, loop: asyncio.AbstractEventLoop, steps: StepRunner, logger: logging.Logger) -> None:
        self._loop = loop
        self._steps = steps
        self._logger = logger
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, steps: Steps[None], name: str) -> None:
        """Does the first step now, and others in later turns."""
        try:
            next(steps)
        except StopIteration:
            return
        task = self._loop.create_task(self._steps.run(steps), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    async def stop(self) -> None:
        """Waits for all that is under way; to be called when no group is here any more, so that it ends."""
        while self._tasks:
            # From Python 3.12 on, gather would return at once while a task's callback, which takes it out, is to come.
            await asyncio.wait(set(self._tasks))

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("%s failed", task.get_name(), exc_info=error)
