"""A replica manager with logs in memory, told what to do as a controller tells it: what its tests share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

from barnabas.cluster.image import Node
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.ids import Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import Gauge, MetricName, MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.leader.alter_partition import DefaultAlterPartitionManager
from barnabas.leader.partition import Partition
from barnabas.log.partition.log_config import LogConfig
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.wire.codec import encode
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest, LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.kernel.virtual_loop import run_virtually
from tests.unit.leader.memory_log import TOPIC_ID, MemoryLog

NAME = TopicPartition("flights", 0)
NOT_TOLD = TopicPartition("not told yet", 1)
GONE = TopicPartition("deleted in an earlier life", 0)
OTHER_ID = Uuid(b"o" * 16)


class PlayedDirectory:
    """A log directory whose checkpoint is a dict, and whose disk may hang."""

    def __init__(self, path: str, high_watermarks: dict[TopicPartition, int]) -> None:
        self.path = path
        self.is_offline = False
        self.checkpoint = high_watermarks
        self.answers = asyncio.Event()
        self.answers.set()

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        return self.checkpoint

    async def write_high_watermarks(self, offsets: dict[TopicPartition, int]) -> None:
        await self.answers.wait()
        self.checkpoint = dict(offsets)


class PlayedLogManager:
    """Logs in memory, in one directory, and a directory without logs."""

    def __init__(self) -> None:
        self.directory = PlayedDirectory("/logs", {NAME: 2, NOT_TOLD: 7, GONE: 9})
        self.other = PlayedDirectory("/other", {})
        self.directories = self.live_directories = (self.other, self.directory)
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.deleted: set[TopicPartition] = set()
        self.future_logs: dict[TopicPartition, MemoryLog] = {}
        self.write_queue = SimpleNamespace(needs_wait=lambda _log: False)
        self.refuses: ErrorCode | None = None

    def add(self, partition: TopicPartition, values: Iterable[object] = ()) -> MemoryLog:
        log = self.logs[partition] = MemoryLog(partition)
        log.log_directory = self.directory  # type: ignore[attr-defined]
        log.append_as_leader(values, 0)
        return log

    def get_log(self, partition: TopicPartition) -> MemoryLog | None:
        return self.logs.get(partition)

    def get_or_create_log(self, partition: TopicPartition, **_options: Any) -> MemoryLog:
        if self.refuses is not None:
            raise KafkaError(self.refuses)
        return self.logs.get(partition) or self.add(partition)

    async def delete_logs(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            del self.logs[partition]
            self.deleted.add(partition)

    def told_of_in(self, deleted: set[TopicPartition]) -> list[PlayedDirectory]:
        return [self.directory] if deleted & self.deleted else []

    async def checkpoint_deletions(self, deleted: set[TopicPartition]) -> None:
        await self.directory.answers.wait()
        self.deleted -= deleted


class PlayedConnections:
    """Connections to leaders that keep what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Node, FetchRequest]] = []

    def connect(self, node: Node, _client_id: str) -> Any:
        def start(message: FetchRequest, *_arguments: object) -> None:
            self.sent.append((node, message))

        async def ready(_timeout_ms: float) -> None:
            """Each is there."""

        return SimpleNamespace(start=start, ready=ready, close=lambda: None)

    async def send_in_version(self, *_arguments: object) -> Any:
        await asyncio.Event().wait()


class Setting:
    """Broker 1 of three."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(time_ms=lambda: int(loop.time() * 1000))
        host: Any = SimpleNamespace(loop=loop, clock=clock)
        timers = Timers(loop)
        self.metrics = MetricsRegistry(loop.time)
        logs = Logs("test", clock, logging.NullHandler())
        self.log_manager = PlayedLogManager()
        self.connections = PlayedConnections()
        self.led: list[Partition] = []
        self.followed: list[Partition] = []
        self.stopped: list[tuple[TopicPartition, int, bool]] = []
        self.scheduler = Scheduler(loop, timers, logs.logger("scheduler"))
        self.manager = ReplicaManager(
            1,
            host,
            timers=timers,
            scheduler=self.scheduler,
            tick=Tick(loop),
            metrics=self.metrics,
            logs=logs,
            settings=ReplicaSettings(),
            log_manager=self.log_manager,  # type: ignore[arg-type]
            log_config=lambda _topic: LogConfig(),
            metadata_cache=MetadataCache(1, logs.logger("state.change.logger")),
            inter_broker_listener_name="BROKERS",
            isr_changes=DefaultAlterPartitionManager(
                1,
                self.connections,
                loop=loop,
                timers=timers,
                broker_epoch=lambda: 5,
                logger=logs.logger("kafka.server.DefaultAlterPartitionManager"),
            ),
            connections=self.connections,
            broker_epoch=lambda: 5,
            on_leadership_change=self._leadership_changed,
            on_stop=self.stopped.extend,
        )
        for partition in (NAME, NOT_TOLD):
            self.log_manager.add(partition)
        self.manager.start()
        self.log_manager.logs.clear()  # each test says what there is
        self.tell_of_brokers(1, 2, 3)

    def tell_of_brokers(self, *broker_ids: int) -> None:
        self.manager.update_metadata(
            UpdateMetadataRequest(
                controller_id=1,
                controller_epoch=1,
                live_brokers=[
                    UpdateMetadataRequest.UpdateMetadataBroker(
                        id=broker_id,
                        endpoints=[
                            UpdateMetadataRequest.UpdateMetadataEndpoint(
                                port=9092, host=f"host-{broker_id}", listener="BROKERS", security_protocol=0
                            )
                        ],
                    )
                    for broker_id in broker_ids
                ],
            )
        )

    def _leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        self.led += led
        self.followed += followed

    def tell(
        self,
        *states: LeaderAndIsrRequest.LeaderAndIsrPartitionState,
        controller_epoch: int = 1,
        topic_id: Uuid = TOPIC_ID,
        version: int = 7,
    ) -> tuple[int, list[int]]:
        """The error of the request and those of its partitions."""
        topic = LeaderAndIsrRequest.LeaderAndIsrTopicState(
            topic_name=NAME.topic, topic_id=topic_id, partition_states=list(states)
        )
        request = LeaderAndIsrRequest(controller_id=1, controller_epoch=controller_epoch, topic_states=[topic])
        answer = self.manager.become_leader_or_follower(request, version)
        encode(answer, version)
        errors = [error.error_code for error in answer.partition_errors]
        return answer.error_code, errors + [
            error.error_code for each in answer.topics for error in each.partition_errors
        ]

    async def stop(self, leader_epoch: int, *, delete: bool, controller_epoch: int = 1) -> tuple[int, list[int]]:
        state = StopReplicaRequest.StopReplicaPartitionState(
            partition_index=0, leader_epoch=leader_epoch, delete_partition=delete
        )
        topic = StopReplicaRequest.StopReplicaTopicState(topic_name=NAME.topic, partition_states=[state])
        request = StopReplicaRequest(controller_id=1, controller_epoch=controller_epoch, topic_states=[topic])
        answer = await self.manager.stop_replicas(request)
        return answer.error_code, [error.error_code for error in answer.partition_errors]

    def gauge(self, name: str) -> float:
        gauge = self.metrics.get(MetricName("kafka.server", "ReplicaManager", name))
        assert isinstance(gauge, Gauge)
        return gauge.read()


def in_setting(test: Callable[[Setting], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        setting = Setting()
        await test(setting)
        await setting.manager.stop()
        await setting.scheduler.stop(1000)

    run_virtually(run())


def deletion_of(partitions: Iterable[int], topic_name: str = NAME.topic) -> StopReplicaRequest:
    states = [
        StopReplicaRequest.StopReplicaPartitionState(partition_index=number, leader_epoch=-2, delete_partition=True)
        for number in partitions
    ]
    topic = StopReplicaRequest.StopReplicaTopicState(topic_name=topic_name, partition_states=states)
    return StopReplicaRequest(controller_id=1, controller_epoch=1, topic_states=[topic])
