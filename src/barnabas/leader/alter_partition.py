"""Asks the controller for changes of ISRs: many that wait in one request, one request at a time (KIP-497)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from barnabas.kernel.ids import ZERO_UUID
from barnabas.kernel.timers import Timers
from barnabas.leader.isr_changes import IsrAnswer, IsrChange, IsrChangeQueue
from barnabas.leader.ports import AlterPartitionSender
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.topics import TopicPartition

RETRY_MS: Final = 50
VERSION: Final = 3
"""The latest; 2 is that of Apache Kafka 3.3 and 3.4, 0 that of 2.7."""
OLDEST_VERSION: Final = 0
_VERSION_WITHOUT_TOPIC_IDS: Final = 1
_VERSION_WITH_BROKER_EPOCHS: Final = 3


class DefaultAlterPartitionManager:
    """The changes of one broker that wait for the controller; `AlterPartitionManager`."""

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
        self._broker_epoch = broker_epoch
        self._logger = logger
        self._queue = IsrChangeQueue(self._ask, RETRY_MS, loop=loop, timers=timers, logger=logger)
        self.submit = self._queue.submit
        self.close = self._queue.close

    @property
    def waiting(self) -> int:
        """How many changes are not answered."""
        return self._queue.waiting

    async def _ask(self, changes: Sequence[IsrChange]) -> dict[TopicPartition, IsrAnswer]:
        """`AskForChanges`, in one request."""
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
            return {}
        if response.error_code:
            self._logger.warning(
                "The controller answers AlterPartition of broker epoch %d with %s; asking again",
                *(broker_epoch, ErrorCode.for_code(response.error_code).name),
            )
            return {}
        answers = _answers(response, version, changes)
        for change in changes:
            if change.partition not in answers:
                self._logger.warning("The controller did not answer the change of the ISR of %s", change.partition)
        return answers


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
