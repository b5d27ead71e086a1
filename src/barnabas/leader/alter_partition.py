"""Asks the controller for changes of ISRs: many that wait in one request, one request at a time (KIP-497)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.timers import Timers
from barnabas.leader.ports import AlterPartitionSender
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition

RETRY_MS: Final = 50
CHANGES_PER_REQUEST: Final = 500
"""A follower that stands still leaves the ISRs of all its partitions at once: neither broker is to be held by that."""
VERSION: Final = 3
"""The latest; 2 is that of Apache Kafka 3.3 and 3.4, 0 that of 2.7."""
OLDEST_VERSION: Final = 0
_VERSION_WITHOUT_TOPIC_IDS: Final = 1
_VERSION_WITH_BROKER_EPOCHS: Final = 3


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


class IsrChanges(Protocol):
    """The changes of one broker that are under way, however they are made."""

    def submit(self, change: IsrChange, on_answer: OnAnswer) -> None:
        """Asks for a change; `on_answer` is called once, later, unless this is closed before."""
        ...

    async def close(self) -> None:
        """Gives up what waits, unanswered."""
        ...


class AlterPartitionManager:
    """The changes of one broker that wait for the controller; at most one of each partition.

    A change waits until it is answered. Its leader may have lost interest by then; that is the leader's to see. Changes
    are as many as the partitions that this broker leads.
    """

    def __init__(
        self,
        broker_id: int,
        sender: AlterPartitionSender,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        broker_epoch: Callable[[], int],
        logger: logging.Logger,
    ) -> None:
        self._broker_id = broker_id
        self._sender = sender
        self._loop = loop
        self._timers = timers
        self._broker_epoch = broker_epoch
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
                if not await self._ask_safely():
                    await self._timers.sleep(RETRY_MS)
        finally:
            self._task = None

    async def _ask_safely(self) -> bool:
        """As `_ask`. What waits must not be forgotten, whatever an answer looks like."""
        try:
            return await self._ask()
        except Exception:
            self._logger.exception("Asking the controller for changes of ISRs failed")
            return False

    async def _ask(self) -> bool:
        """Sends what waits, the oldest first, and gives out the answers; False where it is to be tried again later."""
        changes = [change for change, _ in islice(self._waiting.values(), CHANGES_PER_REQUEST)]
        broker_epoch = self._broker_epoch()
        # Topics are named by their ids where all of them have one.
        have_ids = all(change.topic_id != ZERO_UUID for change in changes)
        try:
            response, version = await self._sender.send_in_version(
                ApiKey.ALTER_PARTITION,
                OLDEST_VERSION,
                VERSION if have_ids else _VERSION_WITHOUT_TOPIC_IDS,
                lambda version: _request(self._broker_id, broker_epoch, changes, version),
            )
        except Exception as error:  # noqa: BLE001 - whatever it was, the change is wanted still
            self._logger.warning("Asking the controller for %d changes of ISRs failed: %s", len(changes), error)
            return False
        if response.error_code:
            self._logger.warning(
                "The controller answers AlterPartition of broker epoch %d with %s; asking again",
                *(broker_epoch, ErrorCode.for_code(response.error_code).name),
            )
            return False
        answers = _answers(response, version, changes)
        may_go_on = True
        for change in changes:
            answer = answers.get(change.partition)
            if answer is None:
                self._logger.warning("The controller did not answer the change of the ISR of %s", change.partition)
                may_go_on = False  # it waits for the next request
                continue
            _, on_answer = self._waiting.pop(change.partition)
            try:
                on_answer(answer)
            except Exception:
                self._logger.exception("Taking over the controller's answer for %s failed", change.partition)
            # What was asked again at once was refused for a reason that may pass.
            may_go_on = may_go_on and change.partition not in self._waiting
        return may_go_on


def _request(broker_id: int, own_epoch: int, changes: Sequence[IsrChange], version: int) -> AlterPartitionRequest:
    topics: dict[str, AlterPartitionRequest.TopicData] = {}
    for change in changes:
        name = change.partition.topic
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = AlterPartitionRequest.TopicData(topic_name=name, topic_id=change.topic_id)
        partition = AlterPartitionRequest.PartitionData(
            partition_index=change.partition.partition,
            leader_epoch=change.leader_epoch,
            partition_epoch=change.partition_epoch,
        )
        if version >= _VERSION_WITH_BROKER_EPOCHS:
            # Without them the controller would take in a follower that has died since, and lost what it had.
            partition.new_isr_with_epochs = [
                AlterPartitionRequest.BrokerState(
                    broker_id=member, broker_epoch=own_epoch if member == broker_id else epoch
                )
                for member, epoch in change.isr.items()
            ]
        else:
            partition.new_isr = list(change.isr)
        topic.partitions.append(partition)
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=own_epoch, topics=list(topics.values()))


def _answers(
    response: AlterPartitionResponse, version: int, changes: Iterable[IsrChange]
) -> dict[TopicPartition, IsrAnswer]:
    names = {bytes(change.topic_id): change.partition.topic for change in changes}
    answers: dict[TopicPartition, IsrAnswer] = {}
    for topic in response.topics:
        name = names.get(bytes(topic.topic_id)) if version > _VERSION_WITHOUT_TOPIC_IDS else topic.topic_name
        if name is None:
            continue
        for partition in topic.partitions:
            answers[TopicPartition(name, partition.partition_index)] = IsrAnswer(
                error=ErrorCode.for_code(partition.error_code),
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                isr=tuple(partition.isr),
            )
    return answers
