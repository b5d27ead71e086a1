"""Replicas go from one log directory to another, as AlterReplicaLogDirs, the controller and disks have it."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.tick import Tick
from barnabas.leader.alter_partition import DefaultAlterPartitionManager
from barnabas.leader.partition import Partition
from barnabas.log.manager.log_manager import LogManager
from barnabas.log.partition.log_config import LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.testing.simulation import Simulation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.leader.memory_log import TOPIC_ID
from tests.unit.leader.partition_setting import leader_and_isr
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

ONE, TWO, THREE = "/data/one", "/data/two", "/data/three"


class Setting:
    """Broker 1, which has its log directories on a simulated disk and is told what to do."""

    def __init__(self, broker: LogBroker) -> None:
        host = broker.host
        logs = Logs("test", host.clock, logging.NullHandler())
        unused: Any = SimpleNamespace()
        self.broker = broker
        self.logs: LogManager = broker.manager
        self.manager = ReplicaManager(
            1,
            host,
            timers=broker.timers,
            scheduler=broker.scheduler,
            tick=Tick(host.loop),
            metrics=MetricsRegistry(host.loop.time),
            logs=logs,
            settings=ReplicaSettings(),
            log_manager=broker.manager,
            log_config=lambda _: broker.config,
            metadata_cache=MetadataCache(1, logs.logger("state.change.logger")),
            inter_broker_listener_name="BROKERS",
            isr_changes=DefaultAlterPartitionManager(
                1,
                unused,
                loop=host.loop,
                timers=broker.timers,
                broker_epoch=lambda: 5,
                logger=logs.logger("kafka.server.DefaultAlterPartitionManager"),
            ),
            connections=unused,
            broker_epoch=lambda: 5,
        )
        broker.manager.on_directory_offline = self.manager.log_directory_failed
        self.manager.start()

    def lead(self, leader_epoch: int = 0, topic_id: Uuid = TOPIC_ID) -> Partition:
        topic = LeaderAndIsrRequest.LeaderAndIsrTopicState(
            topic_name=FLIGHTS.topic,
            topic_id=topic_id,
            partition_states=[leader_and_isr(1, leader_epoch, (1,), replicas=(1,))],
        )
        answer = self.manager.become_leader_or_follower(
            LeaderAndIsrRequest(controller_id=1, controller_epoch=1, topic_states=[topic]), 7
        )
        assert [each.error_code for topic in answer.topics for each in topic.partition_errors] == [0]
        return self.manager.get_partition(FLIGHTS)

    async def stop_replica(self, *, delete: bool) -> None:
        state = StopReplicaRequest.StopReplicaPartitionState(
            partition_index=0, leader_epoch=-1, delete_partition=delete
        )
        topic = StopReplicaRequest.StopReplicaTopicState(topic_name=FLIGHTS.topic, partition_states=[state])
        await self.manager.stop_replicas(StopReplicaRequest(controller_id=1, controller_epoch=1, topic_states=[topic]))

    async def move(self, path: str, partition: TopicPartition = FLIGHTS) -> ErrorCode:
        outcomes = await self.manager.alter_log_directories({partition: path})
        return outcomes[partition]

    @property
    def log(self) -> PartitionLog:
        log = self.manager.get_partition(FLIGHTS).log
        assert log is not None
        return log

    def append(self, count: int = 1) -> None:
        partition = self.manager.get_partition(FLIGHTS)
        for _ in range(count):
            partition.append(records(b"value"), required_acks=1, produce_version=9)

    async def until(self, is_true: Callable[[], object]) -> None:
        for _ in range(2_000):
            if is_true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not within 20 s: {self.broker.lines[-5:]}")

    async def moved_to(self, path: str) -> None:
        await self.until(lambda: self.log.log_directory.path == path)


@asynccontextmanager
async def setting_on(host: Host, *paths: str, writes: str) -> AsyncIterator[Setting]:
    settings = LogSettings(directory_patience_ms=0, directory_writes=writes)
    async with log_broker(host, *paths, settings=settings) as broker:
        setting = Setting(broker)
        yield setting
        await setting.manager.stop()


def in_lives(*lives: Callable[[Setting], Coroutine[Any, Any, None]], paths: tuple[str, ...] = (ONE, TWO)) -> None:
    """With writes on the loop, and then by the queue of each directory."""
    for writes in ("loop", "offload"):

        async def main(host: Host, writes: str = writes) -> None:
            for life in lives:
                async with setting_on(host, *paths, writes=writes) as setting:
                    await life(setting)

        with Simulation(1) as simulation:
            simulation.run_on(simulation.machine("broker"), main)


def test_a_replica_moves_and_is_found_there_after_a_restart() -> None:
    async def first(setting: Setting) -> None:
        partition = setting.lead()
        assert setting.log.log_directory.path == ONE
        setting.append(5)
        assert await setting.move(TWO) is ErrorCode.NONE
        setting.append()
        await setting.moved_to(TWO)
        setting.append()
        await setting.log.wait_written()
        assert partition.log is setting.logs.get_log(FLIGHTS)
        assert (partition.log_end_offset, partition.high_watermark) == (7, 7)
        assert await setting.move(TWO) is ErrorCode.NONE
        assert not setting.logs.future_logs

    async def second(setting: Setting) -> None:
        partition = setting.lead(1)
        assert setting.log.log_directory.path == TWO
        assert (partition.log_end_offset, partition.high_watermark) == (7, 7)

    in_lives(first, second)


def test_refuses_with_kafkas_errors() -> None:
    async def life(setting: Setting) -> None:
        long_topic = TopicPartition("t" * 215, 0)
        assert await setting.move(TWO, long_topic) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await setting.move("/elsewhere") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await setting.move(TWO) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        setting.lead()
        setting.logs.directories[2].fail(OSError(errno.EIO, "broken"))
        assert await setting.move(THREE) is ErrorCode.KAFKA_STORAGE_ERROR
        # A copy of an earlier move may be in the directory that is offline.
        other = TWO if setting.log.log_directory.path == ONE else ONE
        assert await setting.move(other) is ErrorCode.KAFKA_STORAGE_ERROR
        assert not setting.logs.future_logs
        setting.log.log_directory.fail(OSError(errno.EIO, "broken"))
        await setting.until(lambda: FLIGHTS in setting.manager.offline_partitions)
        assert await setting.move(other) is ErrorCode.KAFKA_STORAGE_ERROR

    in_lives(life, paths=(ONE, TWO, THREE))


def test_a_partition_that_is_not_here_yet_is_made_where_it_was_wanted() -> None:
    async def life(setting: Setting) -> None:
        state = UpdateMetadataRequest.UpdateMetadataPartitionState(
            partition_index=0, leader=2, leader_epoch=0, isr=[2], replicas=[2], controller_epoch=1
        )
        topic = UpdateMetadataRequest.UpdateMetadataTopicState(
            topic_name=FLIGHTS.topic, topic_id=TOPIC_ID, partition_states=[state]
        )
        setting.manager.update_metadata(
            UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[topic])
        )
        assert await setting.move(TWO) is ErrorCode.REPLICA_NOT_AVAILABLE
        setting.lead()
        assert setting.log.log_directory.path == TWO

    in_lives(life)


def test_a_move_to_a_third_directory_or_back_ends_the_first() -> None:
    async def life(setting: Setting) -> None:
        setting.lead()
        setting.append(3)
        setting.manager.limit_log_moves(0)
        assert await setting.move(TWO) is ErrorCode.NONE
        assert setting.logs.future_logs[FLIGHTS].log_directory.path == TWO
        assert await setting.move(THREE) is ErrorCode.NONE
        assert setting.logs.future_logs[FLIGHTS].log_directory.path == THREE
        assert await setting.move(ONE) is ErrorCode.NONE
        assert not setting.logs.future_logs
        assert await setting.move(THREE) is ErrorCode.NONE
        setting.manager.limit_log_moves(2**63 - 1)
        await setting.moved_to(THREE)
        assert setting.log.log_end_offset == 3

    in_lives(life, paths=(ONE, TWO, THREE))


def test_a_move_goes_on_after_a_restart() -> None:
    async def first(setting: Setting) -> None:
        setting.lead()
        setting.append(3)
        setting.manager.limit_log_moves(0)
        assert await setting.move(TWO) is ErrorCode.NONE

    async def second(setting: Setting) -> None:
        assert FLIGHTS in setting.logs.future_logs
        setting.lead(1)
        await setting.moved_to(TWO)
        assert setting.log.log_end_offset == 3

    in_lives(first, second)


def test_a_copy_of_a_former_topic_of_the_name_is_deleted() -> None:
    async def first(setting: Setting) -> None:
        setting.lead()
        setting.append(3)
        setting.manager.limit_log_moves(0)
        await setting.move(TWO)
        future = setting.logs.future_logs[FLIGHTS]
        future._state.topic_id = Uuid(b"o" * 16)
        setting.manager._moves.stop((FLIGHTS,))
        setting.lead(1)
        await setting.until(lambda: not setting.logs.future_logs)
        assert setting.log.log_directory.path == ONE

    in_lives(first)


@pytest.mark.parametrize("delete", [False, True])
def test_a_replica_that_is_stopped_moves_no_more(delete: bool) -> None:
    async def life(setting: Setting) -> None:
        setting.lead()
        setting.append(3)
        setting.manager.limit_log_moves(0)
        await setting.move(TWO)
        await setting.stop_replica(delete=delete)
        setting.manager.limit_log_moves(2**63 - 1)
        await asyncio.sleep(1)
        assert (FLIGHTS in setting.logs.future_logs) is not delete
        assert not len(setting.manager._copier)
        if not delete:
            setting.lead(1)
            await setting.moved_to(TWO)

    in_lives(life)


@pytest.mark.parametrize("failing", [ONE, TWO])
def test_a_directory_fails_on_either_side(failing: str) -> None:
    async def life(setting: Setting) -> None:
        partition = setting.lead()
        setting.append(3)
        setting.manager.limit_log_moves(0)
        await setting.move(TWO)
        next(each for each in setting.logs.directories if each.path == failing).fail(OSError(errno.EIO, "broken"))
        await setting.until(lambda: not len(setting.manager._copier))
        if failing == ONE:
            assert partition.is_offline
            assert FLIGHTS in setting.manager.offline_partitions
        else:
            setting.append()
            await setting.log.wait_written()
            assert partition.log_end_offset == 4
            assert not setting.logs.future_logs

    in_lives(life)
