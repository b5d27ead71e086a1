"""Writes changes of ISRs to the partitions' znodes, as leaders do below inter.broker.protocol.version 2.7, where the
controller cannot be asked for them.

A write depends on the version of the znode that the leader knows, so that it is refused once a controller, or another
leader, has written. The controller learns of changes afterwards, from `/isr_change_notification`. Source: Kafka's
ZkAlterPartitionManager, its times among it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, Final

from barnabas.coordination.errors import BadVersionError, CoordinationError, NoNodeError
from barnabas.coordination.layout import notifications
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import PartitionState, partition_state_path
from barnabas.coordination.operations import Create, SetData, ZnodeData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.timers import Timers
from barnabas.leader.alter_partition import CHANGES_PER_REQUEST, IsrAnswer, IsrChange, OnAnswer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition

RETRY_MS: Final = 1_000
ANNOUNCEMENT_CHECK_MS: Final = 2_500
ANNOUNCEMENT_LINGER_MS: Final = 5_000
"""Changes that follow one another are announced together, when none has come for so long,"""
ANNOUNCEMENT_DELAY_MAX_MS: Final = 60_000
"""or so long after the last announcement."""
PARTITIONS_PER_ANNOUNCEMENT: Final = 2_000
"""A znode has at most 1 MiB, and the name of a topic up to 249 bytes."""


class ZkAlterPartitionManager:
    """The changes of one broker that are not written yet; at most one of each partition. It stands where
    `AlterPartitionManager` does, with the same promises.

    Invariant: a change is answered NONE only if the znode holds it, in the version that the answer has; and as not made
    never, because a write whose answer was lost may still come. What is in doubt is answered so that the leader waits
    for its controller.
    """

    def __init__(
        self,
        broker_id: int,
        store: Store,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        logger: logging.Logger,
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._loop = loop
        self._timers = timers
        self._logger = logger
        self._waiting: dict[TopicPartition, tuple[IsrChange, OnAnswer]] = {}
        self._unannounced: dict[TopicPartition, None] = {}
        self._changed_at = self._announced_at = float("-inf")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many changes are not answered."""
        return len(self._waiting)

    def submit(self, change: IsrChange, on_answer: OnAnswer) -> None:
        """As `AlterPartitionManager.submit`."""
        if self._is_closed:
            return
        if change.partition in self._waiting:
            self._loop.call_soon(on_answer, IsrAnswer(ErrorCode.OPERATION_NOT_ATTEMPTED))
            return
        self._waiting[change.partition] = (change, on_answer)
        self._start("alter-partition", self._write_all)

    async def close(self) -> None:
        """Gives up what waits, unanswered and unannounced: a controller that has this broker's leaderships moved reads
        what is in the znodes.
        """
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `work`, unless it runs. It must end in the turn in which it has seen that nothing is left to do."""

        async def run() -> None:
            try:
                await work()
            finally:
                del self._tasks[name]

        if name not in self._tasks:
            self._tasks[name] = self._loop.create_task(run(), name=name)

    # Writing.

    async def _write_all(self) -> None:
        while self._waiting:
            changes = [change for change, _ in islice(self._waiting.values(), CHANGES_PER_REQUEST)]
            try:
                may_go_on = await self._write(changes)
            except Exception:
                # What waits must not be forgotten, whatever an answer looks like.
                self._logger.exception("Writing %d changes of ISRs failed", len(changes))
                may_go_on = False
            if not may_go_on:
                await self._timers.sleep(RETRY_MS)

    async def _write(self, changes: Sequence[IsrChange]) -> bool:
        """Writes them in a pipeline and gives out the answers; False where some are to be tried again later."""
        outcomes = await self._store.submit(
            [
                SetData(partition_state_path(*change.partition), self._state(change).encode(), change.partition_epoch)
                for change in changes
            ]
        )
        doubtful = [
            change for change, outcome in zip(changes, outcomes, strict=True) if isinstance(outcome, BadVersionError)
        ]
        found: dict[TopicPartition, Any] = {}
        if doubtful:
            data = await self._store.get_many([partition_state_path(*change.partition) for change in doubtful])
            found = dict(zip([change.partition for change in doubtful], data, strict=True))
        may_go_on = True
        for change, outcome in zip(changes, outcomes, strict=True):
            answer = self._answer(change, found.get(change.partition, outcome))
            if answer is None:
                may_go_on = False
                continue
            if answer.error is ErrorCode.NONE:
                self._changed(change.partition)
            _, on_answer = self._waiting.pop(change.partition)
            try:
                on_answer(answer)
            except Exception:
                self._logger.exception("Taking over the new ISR of %s failed", change.partition)
            may_go_on = may_go_on and change.partition not in self._waiting
        return may_go_on

    def _state(self, change: IsrChange) -> PartitionState:
        return PartitionState(self._broker_id, change.leader_epoch, tuple(change.isr), change.controller_epoch)

    def _answer(self, change: IsrChange, outcome: Any) -> IsrAnswer | None:
        """What became of a change, by the outcome of its write, or by what the znode holds where that was refused for
        its version; None if it is to be written again."""
        isr = tuple(change.isr)
        match outcome:
            case ZnodeData() if _holds(outcome, wanted := self._state(change)):
                # Written by an earlier attempt, whose answer was lost.
                return IsrAnswer(ErrorCode.NONE, wanted.leader_epoch, outcome.stat.version, isr)
            case ZnodeData():
                return IsrAnswer(ErrorCode.INVALID_UPDATE_VERSION)
            case NoNodeError():
                return IsrAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            case Exception():
                self._logger.warning(
                    "The ISR %s of %s was not written; trying again: %s", list(isr), change.partition, outcome
                )
                return None
        return IsrAnswer(ErrorCode.NONE, change.leader_epoch, outcome.version, isr)

    # Announcing.

    def _changed(self, partition: TopicPartition) -> None:
        self._unannounced[partition] = None
        self._changed_at = self._loop.time()
        self._start("isr-change-propagation", self._announce_all)

    async def _announce_all(self) -> None:
        while self._unannounced:
            await self._timers.sleep(ANNOUNCEMENT_CHECK_MS)
            now = self._loop.time()
            if (now - self._changed_at) * 1000 > ANNOUNCEMENT_LINGER_MS or (
                now - self._announced_at
            ) * 1000 > ANNOUNCEMENT_DELAY_MAX_MS:
                await self._announce()

    async def _announce(self) -> None:
        """Announces all there is, in pieces; what fails is announced after the next pause, at the latest."""
        while partitions := tuple(islice(self._unannounced, PARTITIONS_PER_ANNOUNCEMENT)):
            payload = notifications.IsrChange(partitions).encode()
            create = Create(notifications.isr_change_path(), payload, mode=CreateMode.PERSISTENT_SEQUENTIAL)
            # Before the answer: what changes meanwhile is announced once more.
            for partition in partitions:
                del self._unannounced[partition]
            try:
                await self._store.perform(create)
            except CoordinationError as error:
                self._logger.warning("Announcing changes of %d ISRs failed: %s", len(partitions), error)
                self._unannounced = {**dict.fromkeys(partitions), **self._unannounced}
                return
            self._announced_at = self._loop.time()


def _holds(found: ZnodeData, wanted: PartitionState) -> bool:
    try:
        state = PartitionState.decode(found.data, "the state of a partition")
    except LayoutError:
        return False
    return (state.leader, state.leader_epoch, state.isr) == (wanted.leader, wanted.leader_epoch, wanted.isr)
