"""Writes changes of ISRs to the partitions' znodes, as leaders do below inter.broker.protocol.version 2.7, where the
controller cannot be asked for them.

A write depends on the version of the znode that the leader knows, so that it is refused once a controller, or another
leader, has written. The controller learns of changes afterwards, from `/isr_change_notification`. Source: Kafka's
ZkAlterPartitionManager, its times among it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
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
from barnabas.leader.isr_changes import IsrAnswer, IsrChange, IsrChangeQueue
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
    """The changes of one broker that are not written yet. It stands where `DefaultAlterPartitionManager` does, with
    the same promises.

    Invariant: a change is answered NONE only if the znode holds it, in the version that the answer has; and as not made
    never, because a write whose answer was lost may still come. What is in doubt is answered so that the leader waits
    for its controller, which is told to look where it may not know of it (Kafka's leader announces nothing then, and
    waits for the next leader epoch).
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
        self._queue = IsrChangeQueue(self._write, RETRY_MS, loop=loop, timers=timers, logger=logger)
        self.submit = self._queue.submit
        self._unannounced: dict[TopicPartition, None] = {}
        self._changed_at = self._announced_at = float("-inf")
        self._announcing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many changes are not answered."""
        return self._queue.waiting

    async def close(self) -> None:
        """Gives up what waits, unanswered and unannounced: a controller that has this broker's leaderships moved reads
        what is in the znodes.
        """
        await self._queue.close()
        task, self._announcing = self._announcing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # Writing.

    async def _write(self, changes: Sequence[IsrChange]) -> dict[TopicPartition, IsrAnswer]:
        """`AskForChanges`: writes them in a pipeline."""
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
        answers: dict[TopicPartition, IsrAnswer] = {}
        for change, outcome in zip(changes, outcomes, strict=True):
            outcome = found.get(change.partition, outcome)
            answer = self._answer(change, outcome)
            if answer is None:
                continue
            if answer.error is ErrorCode.NONE or _is_unheard_of(change, outcome):
                self._changed(change.partition)
            answers[change.partition] = answer
        return answers

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
        if self._announcing is None:
            self._announcing = self._loop.create_task(self._announce_all(), name="isr-change-propagation")

    async def _announce_all(self) -> None:
        """Ends in the turn in which it has seen that nothing is left to announce."""
        try:
            while self._unannounced:
                await self._timers.sleep(ANNOUNCEMENT_CHECK_MS)
                now = self._loop.time()
                if (now - self._changed_at) * 1000 > ANNOUNCEMENT_LINGER_MS or (
                    now - self._announced_at
                ) * 1000 > ANNOUNCEMENT_DELAY_MAX_MS:
                    await self._announce()
        finally:
            self._announcing = None

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


def _is_unheard_of(change: IsrChange, outcome: object) -> bool:
    """Whether the state is not as a controller or this leader has left it: gone, spoiled, or written by somebody else,
    in an epoch that is no later one. A controller's own write has a later one, and it tells of that itself.
    """
    match outcome:
        case NoNodeError():
            return True
        case ZnodeData():
            try:
                state = PartitionState.decode(outcome.data, "the state of a partition")
            except LayoutError:
                return True
            return state.leader_epoch <= change.leader_epoch
    return False


def _holds(found: ZnodeData, wanted: PartitionState) -> bool:
    try:
        state = PartitionState.decode(found.data, "the state of a partition")
    except LayoutError:
        return False
    return (state.leader, state.leader_epoch, state.isr) == (wanted.leader, wanted.leader_epoch, wanted.isr)
