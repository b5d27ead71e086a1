"""Topics that nobody created and that are asked for: by Metadata, and by coordinators for their internal topics.

On the controller they are made at once; any other broker asks the controller, and has the client ask again meanwhile.
Source: Kafka's AutoTopicCreationManager in ZooKeeper mode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.api.administration.ports import ControllerChannel, ControllerStatus
from barnabas.api.administration.topic_creation import NewTopic, TopicCreator
from barnabas.config.settings import setting
from barnabas.controller.topic_assignment import check_topic_name
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC

IN_FLIGHT_MAX: Final = 10_000
"""Topics that are asked of the controller at a time; more are answered as if they were, and asked for again."""
_VERSION: Final = 7


@dataclass(frozen=True, slots=True)
class AutoCreationSettings:
    """How topics are made that nobody described."""

    partition_count: int = setting("num.partitions", int)
    replication_factor: int = setting("default.replication.factor", int)
    offsets_partition_count: int = setting("offsets.topic.num.partitions", int)
    offsets_replication_factor: int = setting("offsets.topic.replication.factor", int)
    offsets_segment_bytes: int = setting("offsets.topic.segment.bytes", int)
    transaction_partition_count: int = setting("transaction.state.log.num.partitions", int)
    transaction_replication_factor: int = setting("transaction.state.log.replication.factor", int)
    transaction_min_isr: int = setting("transaction.state.log.min.isr", int)
    transaction_segment_bytes: int = setting("transaction.state.log.segment.bytes", int)
    request_timeout_ms: int = setting("request.timeout.ms", int)


class AutoTopicCreation:
    """Makes topics by their names (port `TopicCreation`)."""

    def __init__(
        self,
        host: Host,
        controller: ControllerStatus,
        creator: TopicCreator,
        channel: ControllerChannel,
        settings: AutoCreationSettings,
        logger: logging.Logger,
    ) -> None:
        self._loop = host.loop
        self._controller = controller
        self._creator = creator
        self._channel = channel
        self._settings = settings
        self._logger = logger
        self._in_flight: dict[str, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def create_topics(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        """Makes the topics, or has them made; returns what clients are to be told of each, which is never NONE.

        LEADER_NOT_AVAILABLE for a topic that was made here, UNKNOWN_TOPIC_OR_PARTITION for one that somebody makes;
        INVALID_TOPIC_EXCEPTION, INVALID_REPLICATION_FACTOR and the like for one that cannot be.
        """
        answers: dict[str, ErrorCode] = {}
        wanted: list[NewTopic] = []
        for name in dict.fromkeys(names):
            try:
                check_topic_name(name)
            except KafkaError as error:
                answers[name] = error.code
                continue
            if name in self._in_flight or len(self._in_flight) >= IN_FLIGHT_MAX:
                answers[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                self._in_flight[name] = None
                wanted.append(self._new_topic(name))
        if not wanted:
            return answers
        if self._controller.is_active:
            return answers | await self._create_here(wanted)
        task = self._loop.create_task(self._ask_controller(wanted), name="auto-topic-creation")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return answers | {topic.name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in wanted}

    async def stop(self) -> None:
        """Gives up what the controller has not answered yet."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _create_here(self, wanted: Sequence[NewTopic]) -> dict[str, ErrorCode]:
        try:
            outcomes = await self._creator.create(wanted)
        finally:
            self._ended(wanted)
        return {
            name: outcome.code
            if isinstance(outcome, KafkaError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS
            else ErrorCode.LEADER_NOT_AVAILABLE
            for name, outcome in outcomes.items()
        }

    async def _ask_controller(self, wanted: Sequence[NewTopic]) -> None:
        timeout_ms = self._settings.request_timeout_ms
        request = CreateTopicsRequest(topics=[_asked(topic) for topic in wanted], timeout_ms=timeout_ms)
        shown = ", ".join(topic.name for topic in wanted)
        self._logger.info("Asking the controller to create the topics %s", shown)
        try:
            response = await self._channel.send(request, _VERSION, timeout_ms)
        except (OSError, KafkaError) as error:
            self._logger.warning("The controller was not reached to create the topics %s: %s", shown, error)
        except Exception:
            self._logger.exception("Asking the controller to create the topics %s failed", shown)
        else:
            self._log(response)
        finally:
            self._ended(wanted)

    def _log(self, response: object) -> None:
        if isinstance(response, CreateTopicsResponse):
            for topic in response.topics:
                if topic.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                    error = ErrorCode.for_code(topic.error_code)
                    self._logger.warning(
                        "The controller did not create topic %s: %s %s",
                        topic.name,
                        error.name,
                        topic.error_message or error.message,
                    )

    def _ended(self, topics: Sequence[NewTopic]) -> None:
        for topic in topics:
            self._in_flight.pop(topic.name, None)

    def _new_topic(self, name: str) -> NewTopic:
        settings = self._settings
        if name == OFFSETS_TOPIC:
            configs = {
                "cleanup.policy": "compact",
                "segment.bytes": str(settings.offsets_segment_bytes),
                "compression.type": "producer",
            }
            sizes = (settings.offsets_partition_count, settings.offsets_replication_factor)
            return NewTopic(name, *sizes, configs=configs)
        if name == TRANSACTION_TOPIC:
            configs = {
                "unclean.leader.election.enable": "false",
                "compression.type": "uncompressed",
                "cleanup.policy": "compact",
                "min.insync.replicas": str(settings.transaction_min_isr),
                "segment.bytes": str(settings.transaction_segment_bytes),
            }
            sizes = (settings.transaction_partition_count, settings.transaction_replication_factor)
            return NewTopic(name, *sizes, configs=configs)
        return NewTopic(name, settings.partition_count, settings.replication_factor)


def _asked(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )
