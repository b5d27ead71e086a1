"""Changes of ISRs that wait until they are answered, however they are made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from barnabas.kernel.ids import Uuid
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import yield_to_loop
from barnabas.wire.errors import ErrorCode
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition

CHANGES_PER_REQUEST: Final = 500
"""A follower that stands still leaves the ISRs of all its partitions at once: neither broker is to be held by that."""

_GIVEN_OUT_PER_TURN: Final = 100
"""Answers: each moves a high watermark, and wakes who waits for it, with a line in the log."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An ISR that the leader of a partition wants, in the epochs that it knows."""

    partition: TopicPartition
    topic_id: Uuid
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]
    """Each member with the broker epoch of the life in which it is in sync, -1 where none is known (KIP-903)."""
    controller_epoch: int = 0
    """That of the controller that told of the partition; for leaders that write ISRs themselves."""


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """What the controller says of one change; without error, the state that is in force."""

    error: ErrorCode
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH
    isr: tuple[int, ...] = ()


OnAnswer = Callable[[IsrAnswer], object]


class AlterPartitionManager(Protocol):
    """The changes of one broker that are under way, however they are made."""

    def submit(self, change: IsrChange, on_answer: OnAnswer) -> None:
        """Asks for a change; `on_answer` is called once, later, unless this is closed before."""
        ...

    async def close(self) -> None:
        """Gives up what waits, unanswered."""
        ...


AskForChanges = Callable[[Sequence[IsrChange]], Awaitable[Mapping[TopicPartition, IsrAnswer]]]
"""Asks for these changes, of different partitions. One that is not in the answers waits, and is asked for again."""


class IsrChangeQueue:
    """The changes of one broker that wait; at most one of each partition.

    A change waits until it is answered. Its leader may have lost interest by then; that is the leader's to see. Changes
    are as many as the partitions that this broker leads.
    """

    def __init__(
        self,
        ask: AskForChanges,
        retry_ms: int,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        logger: logging.Logger,
    ) -> None:
        """What was not answered is asked for again after `retry_ms`."""
        self._ask = ask
        self._retry_ms = retry_ms
        self._loop = loop
        self._timers = timers
        self._logger = logger
        self._waiting: dict[TopicPartition, tuple[IsrChange, OnAnswer]] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many changes are not answered."""
        return len(self._waiting)

    def submit(self, change: IsrChange, on_answer: OnAnswer) -> None:
        """Asks for a change; `on_answer` is called once, later, unless this is closed before.

        A change of a partition that already has one waiting is answered OPERATION_NOT_ATTEMPTED: the leader that asked
        for the first one has been replaced by itself in a new epoch, and asks again.
        """
        if self._is_closed:
            return
        if change.partition in self._waiting:
            self._loop.call_soon(on_answer, IsrAnswer(ErrorCode.OPERATION_NOT_ATTEMPTED))
            return
        self._waiting[change.partition] = (change, on_answer)
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="alter-partition")

    async def close(self) -> None:
        """Gives up what waits, unanswered."""
        self._is_closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                changes = [change for change, _ in islice(self._waiting.values(), CHANGES_PER_REQUEST)]
                try:
                    answers = await self._ask(changes)
                except Exception:
                    # What waits must not be forgotten, whatever an answer looks like.
                    self._logger.exception("Asking for %d changes of ISRs failed", len(changes))
                    answers = {}
                if not await self._give_out(changes, answers):
                    await self._timers.sleep(self._retry_ms)
        finally:
            self._task = None

    async def _give_out(self, changes: Sequence[IsrChange], answers: Mapping[TopicPartition, IsrAnswer]) -> bool:
        """Tells who asked, some in each turn; False where something is to be asked for again, which is to be later."""
        may_go_on = True
        for number, change in enumerate(changes):
            if number and not number % _GIVEN_OUT_PER_TURN:
                await yield_to_loop()
            answer = answers.get(change.partition)
            if answer is None:
                may_go_on = False
                continue
            _, on_answer = self._waiting.pop(change.partition)
            try:
                on_answer(answer)
            except Exception:
                self._logger.exception("Taking over the answer for the ISR of %s failed", change.partition)
            # What was asked for again at once was refused for a reason that may pass.
            may_go_on = may_go_on and change.partition not in self._waiting
        return may_go_on
