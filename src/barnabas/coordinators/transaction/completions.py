"""The last records of transactions: appended when all markers are written, and again where the log refuses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from barnabas.coordinators.shard import Shard
from barnabas.coordinators.transaction.transactions import Transactions
from barnabas.kernel.steps import StepRunner, Steps
from barnabas.kernel.timers import Timer, Timers

_APPENDS_PER_STEP: Final = 32
_RETRY_MS: Final = 500


class Completions:
    """Transactions whose markers are all written, by shard. Of a shard whose log refuses one the others wait, too."""

    def __init__(
        self,
        complete: Callable[[Shard[Transactions], str], bool],
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        steps: StepRunner,
        logger: logging.Logger,
    ) -> None:
        """`complete` appends the record, and says whether the log took it."""
        self._complete = complete
        self._loop = loop
        self._timers = timers
        self._steps = steps
        self._logger = logger
        self._due: dict[Shard[Transactions], dict[str, None]] = {}
        self._refused: dict[Shard[Transactions], dict[str, None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._is_stopped = False

    @property
    def refused(self) -> int:
        """Transactions that wait because their log has refused a record, and will be tried again."""
        return sum(map(len, self._refused.values()))

    def add(self, shard: Shard[Transactions], transactional_id: str) -> None:
        """The record is appended in a later turn."""
        if shard in self._refused:
            self._refused[shard][transactional_id] = None
            return
        self._due.setdefault(shard, {})[transactional_id] = None
        self._run()

    async def stop(self) -> None:
        """Appends nothing more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _run(self) -> None:
        if self._running is None and not self._is_stopped:
            self._running = self._loop.create_task(self._complete_due(), name="complete-transactions")

    async def _complete_due(self) -> None:
        try:
            while self._due:
                await self._steps.run(self._complete_in_steps())
        finally:
            self._running = None

    def _complete_in_steps(self) -> Steps[None]:
        left = _APPENDS_PER_STEP
        while self._due:
            shard, due = next(iter(self._due.items()))
            while due and shard.is_active:
                transactional_id = next(iter(due))
                if not self._try(shard, transactional_id):
                    self._wait(shard, due)
                    break
                due.pop(transactional_id, None)
                left -= 1
                if not left:
                    yield
                    left = _APPENDS_PER_STEP
            del self._due[shard]

    def _try(self, shard: Shard[Transactions], transactional_id: str) -> bool:
        try:
            return self._complete(shard, transactional_id)
        except Exception:
            self._logger.exception("Completing the transaction of %s failed", transactional_id)
            return True

    def _wait(self, shard: Shard[Transactions], due: dict[str, None]) -> None:
        self._refused[shard] = due
        if self._timer is None and not self._is_stopped:
            self._timer = self._timers.call_after(_RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._timer = None
        for shard, refused in self._refused.items():
            if shard.is_active:
                self._due[shard] = refused
        self._refused = {}
        self._run()
