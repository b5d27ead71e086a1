"""A replica manager with logs in memory, told what to do as a controller tells it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.cluster.image import Node
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import Gauge, MetricName, MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.leader.alter_partition import DefaultAlterPartitionManager
from barnabas.leader.partition import Partition
from barnabas.log.partition.log_config import LogConfig
from barnabas.replicas import replica_metrics
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.serving.delete_records import DeleteOutcome, Outcomes, RecordDeletions
from barnabas.wire.codec import encode
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest, LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.kernel.virtual_loop import run_virtually
from tests.unit.leader.memory_log import TOPIC_ID, MemoryLog
from tests.unit.leader.partition_setting import leader_and_isr

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


def test_leads_and_follows() -> None:
    async def test(setting: Setting) -> None:
        setting.log_manager.add(NAME, "abc")
        following = leader_and_isr(2, 0, (1, 2, 3))
        following.partition_index = 1
        assert setting.tell(leader_and_isr(1, 0, (1, 2, 3)), following) == (0, [0, 0])
        partition = setting.manager.get_partition(NAME)
        assert (setting.led, [each.number for each in setting.followed]) == ([partition], [1])
        assert partition.high_watermark == 2  # of the checkpoint
        assert [setting.gauge(name) for name in ("LeaderCount", "PartitionCount", "UnderReplicatedPartitions")] == [
            1,
            2,
            0,
        ]
        await asyncio.sleep(0.1)
        ((node, request),) = setting.connections.sent
        assert (node.host, node.port) == ("host-2", 9092)
        assert [each.partition for each in request.topics[0].partitions] == [1]
        setting.tell(leader_and_isr(3, 1, (1, 3)))
        assert not partition.is_leader
        assert {fetcher.leader.broker_id for fetcher in setting.manager.fetchers.fetchers} == {2, 3}

    in_setting(test)


def test_a_topic_id_in_the_same_leader_epoch_is_taken_by_the_log_and_by_the_fetcher() -> None:
    async def test(setting: Setting) -> None:
        log = setting.log_manager.add(NAME)
        log.topic_id = None
        assert setting.tell(leader_and_isr(2, 5, (1, 2)), topic_id=ZERO_UUID) == (0, [0])
        (fetcher,) = setting.manager.fetchers.fetchers
        (fetched,) = fetcher.partitions
        assert fetched.topic_id == ZERO_UUID
        assert setting.tell(leader_and_isr(2, 5, (1, 2))) == (0, [0])
        assert (setting.manager.get_partition(NAME).topic_id, fetched.topic_id) == (TOPIC_ID, TOPIC_ID)
        assert list(fetcher.partitions) == [fetched]

    in_setting(test)


@pytest.mark.parametrize("version", [4, 7])
def test_judges_each_partition(version: int) -> None:
    async def test(setting: Setting) -> None:
        setting.tell(leader_and_isr(1, 5, (1,)))
        elsewhere = leader_and_isr(2, 0, (2,), replicas=(2, 3))
        elsewhere.partition_index = 1
        old = leader_and_isr(1, 4, (1,))
        assert setting.tell(old, elsewhere, version=version) == (
            0,
            [ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        )
        assert setting.tell(leader_and_isr(1, 5, (1,))) == (0, [ErrorCode.STALE_CONTROLLER_EPOCH])
        assert setting.tell(leader_and_isr(1, 6, (1,)), topic_id=OTHER_ID) == (0, [ErrorCode.INCONSISTENT_TOPIC_ID])
        assert setting.tell(leader_and_isr(1, 6, (1,)), controller_epoch=0) == (
            ErrorCode.STALE_CONTROLLER_EPOCH,
            [ErrorCode.STALE_CONTROLLER_EPOCH],
        )
        with pytest.raises(KafkaError, match="epoch 0"):
            setting.manager.update_metadata(UpdateMetadataRequest(controller_id=1, controller_epoch=0))

    in_setting(test)


def test_a_follower_whose_leader_is_not_alive_has_a_log_and_waits() -> None:
    async def test(setting: Setting) -> None:
        setting.tell(leader_and_isr(9, 0, (9,), replicas=(1, 9)))
        partition = setting.manager.get_partition(NAME)
        assert partition.log is not None
        assert not setting.followed
        assert setting.tell(leader_and_isr(2, 0, (2,))) == (0, [0])  # the same epoch is news still
        assert setting.followed == [partition]

    in_setting(test)


def test_a_failed_directory_takes_its_replicas_offline() -> None:
    async def test(setting: Setting) -> None:
        setting.tell(leader_and_isr(1, 0, (1,)))
        setting.manager.log_directory_failed(setting.log_manager.directory)  # type: ignore[arg-type]
        with pytest.raises(KafkaError, match="offline"):
            setting.manager.get_partition(NAME)
        assert setting.stopped == [(NAME, 0, False)], "coordinators must not go on with it"
        assert setting.gauge("OfflineReplicaCount") == 1
        assert setting.tell(leader_and_isr(1, 1, (1,))) == (0, [ErrorCode.KAFKA_STORAGE_ERROR])
        assert await setting.stop(-2, delete=True) == (0, [ErrorCode.KAFKA_STORAGE_ERROR])

    in_setting(test)


def test_the_gauges_of_many_replicas_that_go_offline_are_removed_in_later_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_metrics, "_REMOVED_PER_TURN", 2)

    async def test(setting: Setting) -> None:
        def gauges() -> int:
            return sum(name.type == "Partition" for name, _ in setting.metrics)

        for number in range(7):
            state = leader_and_isr(1, 0, (1,))
            state.partition_index = number
            setting.tell(state)
        a_gauge_count, left = gauges() // 7, []
        setting.manager.log_directory_failed(setting.log_manager.directory)  # type: ignore[arg-type]
        assert not setting.manager.partitions
        assert len(setting.manager.offline_partitions) == len(setting.stopped) == 7
        assert setting.gauge("OfflineReplicaCount") == 7
        while gauges():
            left.append(gauges() // a_gauge_count)
            await asyncio.sleep(0)
        assert left == [7, 5, 3, 1]

    in_setting(test)


@pytest.mark.parametrize("leader", [1, 2])
def test_a_log_that_cannot_be_made(leader: int) -> None:
    async def test(setting: Setting) -> None:
        setting.log_manager.refuses = ErrorCode.KAFKA_STORAGE_ERROR
        assert setting.tell(leader_and_isr(leader, 0, (leader,))) == (0, [ErrorCode.KAFKA_STORAGE_ERROR])
        assert setting.manager.offline_partitions == {NAME}
        assert setting.stopped == [(NAME, -1, False)], "coordinators hear of whatever is not here any more"
        assert not setting.led
        assert not setting.followed

    in_setting(test)


def test_stopping_and_its_epochs() -> None:
    async def test(setting: Setting) -> None:
        setting.tell(leader_and_isr(2, 5, (2,)))
        assert await setting.stop(4, delete=True) == (0, [ErrorCode.FENCED_LEADER_EPOCH])
        assert await setting.stop(5, delete=False) == (0, [0])
        assert setting.manager.fetchers.fetchers == ()
        assert setting.manager.find_partition(NAME) is not None
        assert await setting.stop(5, delete=True, controller_epoch=0) == (ErrorCode.STALE_CONTROLLER_EPOCH, [])
        assert await setting.stop(-2, delete=True) == (0, [0])
        assert setting.manager.find_partition(NAME) is None
        assert setting.log_manager.logs == {}
        assert setting.stopped == [(NAME, 5, False), (NAME, -2, True)]
        assert setting.gauge("PartitionCount") == 0

    in_setting(test)


@pytest.mark.parametrize("is_hosted", [True, False])
def test_a_request_from_before_the_deletion_brings_no_replica_back(is_hosted: bool) -> None:
    async def test(setting: Setting) -> None:
        if is_hosted:
            setting.tell(leader_and_isr(1, 5, (1,)))
        else:
            setting.log_manager.add(NAME)
        setting.log_manager.logs[NAME].topic_id = TOPIC_ID
        assert await setting.stop(-2, delete=True) == (0, [0])
        assert setting.tell(leader_and_isr(1, 5, (1,))) == (0, [ErrorCode.STALE_CONTROLLER_EPOCH])
        assert setting.tell(leader_and_isr(1, 6, (1,))) == (0, [ErrorCode.STALE_CONTROLLER_EPOCH])
        assert setting.log_manager.logs == {}
        assert setting.tell(leader_and_isr(1, 0, (1,)), topic_id=OTHER_ID) == (0, [0]), "a namesake"

    in_setting(test)


def test_a_replica_that_was_moved_away_comes_back_in_a_later_epoch() -> None:
    async def test(setting: Setting) -> None:
        setting.tell(leader_and_isr(1, 5, (1,)))
        setting.log_manager.logs[NAME].topic_id = TOPIC_ID
        assert await setting.stop(6, delete=True) == (0, [0])
        assert setting.tell(leader_and_isr(1, 6, (1,))) == (0, [ErrorCode.STALE_CONTROLLER_EPOCH])
        assert setting.tell(leader_and_isr(1, 7, (1,))) == (0, [0])

    in_setting(test)


def test_deletes_a_log_that_is_not_hosted() -> None:
    async def test(setting: Setting) -> None:
        setting.log_manager.add(NAME)
        assert await setting.stop(-2, delete=True) == (0, [0])
        assert setting.log_manager.logs == {}

    in_setting(test)


def test_a_slow_deletion_spares_a_namesake_that_was_made_since() -> None:
    """A controller that lost its connection asks again: the second request may be done, and the topic made anew, while
    the first is still at work."""

    async def test(setting: Setting) -> None:
        told = leader_and_isr(1, 5, (1,))
        told.partition_index = 100  # not among the first that are stopped
        last = TopicPartition(NAME.topic, 100)
        setting.tell(leader_and_isr(1, 5, (1,)), told)
        disk = asyncio.Event()
        delete_logs = setting.log_manager.delete_logs

        async def delete_slowly(partitions: Iterable[TopicPartition]) -> None:
            await delete_logs(partitions)
            await disk.wait()

        setting.log_manager.delete_logs = delete_slowly  # type: ignore[method-assign]
        slow = asyncio.ensure_future(setting.manager.stop_replicas(deletion_of(range(101))))
        await asyncio.sleep(1)
        setting.log_manager.delete_logs = delete_logs  # type: ignore[method-assign]
        await setting.manager.stop_replicas(deletion_of(range(101)))
        assert setting.log_manager.logs == {}
        told.leader_epoch = 0
        assert setting.tell(told, topic_id=OTHER_ID) == (0, [0])
        disk.set()
        answer = await slow
        assert {error.error_code for error in answer.partition_errors} == {0}
        assert setting.manager.get_partition(last).is_leader
        assert set(setting.log_manager.logs) == {last}

    in_setting(test)


def deletion_of(partitions: Iterable[int], topic_name: str = NAME.topic) -> StopReplicaRequest:
    states = [
        StopReplicaRequest.StopReplicaPartitionState(partition_index=number, leader_epoch=-2, delete_partition=True)
        for number in partitions
    ]
    topic = StopReplicaRequest.StopReplicaTopicState(topic_name=topic_name, partition_states=states)
    return StopReplicaRequest(controller_id=1, controller_epoch=1, topic_states=[topic])


def test_keeps_high_watermarks_across_restarts() -> None:
    async def test(setting: Setting) -> None:
        await asyncio.sleep(20)
        assert setting.log_manager.directory.checkpoint[GONE] == 9  # not touched before the first LeaderAndIsr
        setting.log_manager.add(NAME, "abc")
        setting.tell(leader_and_isr(1, 0, (1,)))
        await asyncio.sleep(6)
        assert setting.log_manager.directory.checkpoint == {NAME: 3, NOT_TOLD: 7}

    in_setting(test)


def test_the_high_watermark_of_a_deleted_replica_is_gone_when_that_is_answered() -> None:
    """After a crash, a topic made anew would take it for its own, and show what is not committed."""

    async def test(setting: Setting) -> None:
        told = leader_and_isr(1, 0, (1,))
        told.partition_index = NAME.partition + 1
        deleted = NAME._replace(partition=told.partition_index)
        setting.log_manager.add(deleted, "abc")
        setting.log_manager.add(NAME, "de")
        setting.tell(told, leader_and_isr(1, 0, (1,)))
        await asyncio.sleep(6)
        assert setting.log_manager.directory.checkpoint[deleted] == 3
        await setting.manager.stop_replicas(deletion_of([deleted.partition]))
        assert deleted not in setting.log_manager.directory.checkpoint
        assert setting.log_manager.directory.checkpoint[NAME] == 2

    in_setting(test)


def test_the_high_watermark_of_a_log_that_was_gone_at_the_start_is_for_no_other() -> None:
    async def test(setting: Setting) -> None:
        await setting.manager.checkpoint_high_watermarks()
        assert setting.log_manager.directory.checkpoint == {NAME: 2, NOT_TOLD: 7}

    in_setting(test)


def test_a_replica_that_is_deleted_first_of_all_leaves_no_high_watermark() -> None:
    """No LeaderAndIsr has come yet, and no run of the checkpoints; and when none is left, none is told of."""

    async def test(setting: Setting) -> None:
        for deleted, left in ((NAME, {NOT_TOLD: 7}), (NOT_TOLD, {})):
            setting.log_manager.add(deleted)
            await setting.manager.stop_replicas(deletion_of([deleted.partition], deleted.topic))
            assert setting.log_manager.directory.checkpoint == left

    in_setting(test)


def test_a_deletion_waits_for_no_directory_that_had_nothing_of_it() -> None:
    """One that hangs would hold up whatever else the controller has to say to this broker."""

    async def test(setting: Setting) -> None:
        other = setting.log_manager.other
        other.answers.clear()
        elsewhere, told = NAME._replace(partition=1), leader_and_isr(1, 0, (1,))
        told.partition_index = elsewhere.partition
        setting.log_manager.add(NAME, "abc")
        setting.log_manager.add(elsewhere, "abc").log_directory = other  # type: ignore[attr-defined]
        setting.tell(leader_and_isr(1, 0, (1,)), told)
        await asyncio.sleep(6)  # a run of all has begun
        async with asyncio.timeout(1):
            await setting.manager.stop_replicas(deletion_of([0]))
        assert NAME not in setting.log_manager.directory.checkpoint
        other.answers.set()

    in_setting(test)


def test_whoever_asks_for_a_deletion_again_waits_for_the_checkpoints_too() -> None:
    async def test(setting: Setting) -> None:
        directory = setting.log_manager.directory
        setting.log_manager.add(NAME, "abc")
        setting.tell(leader_and_isr(1, 0, (1,)))
        await setting.manager.checkpoint_high_watermarks()
        directory.answers.clear()
        asked = [asyncio.create_task(setting.manager.stop_replicas(deletion_of([0]))) for _ in range(2)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in asked)
        directory.answers.set()
        await asyncio.gather(*asked)
        assert NAME not in directory.checkpoint

    in_setting(test)


def test_a_deletion_of_records_waits_for_no_follower_that_the_controller_tells_to_be_dead() -> None:
    async def test(setting: Setting) -> None:
        setting.log_manager.add(NAME, "abc")
        setting.tell(leader_and_isr(1, 0, (1, 2, 3)))
        await asyncio.sleep(0)
        manager = setting.manager
        deletions = RecordDeletions(
            manager, manager.delete_records_purgatory, setting.metrics, logging.getLogger("tests.deletions")
        )
        done: list[Outcomes] = []
        deletions.delete({NAME: 2}, 30_000, done.append)
        await asyncio.sleep(1)
        setting.tell_of_brokers(1, 2)
        setting.tell_of_brokers(1, 2)
        assert done == []
        setting.tell_of_brokers(1)
        assert done == [{NAME: DeleteOutcome(ErrorCode.NONE, 2)}]

    in_setting(test)


def test_expires_followers_in_time() -> None:
    async def test(setting: Setting) -> None:
        setting.log_manager.add(NAME, "abc")
        setting.tell(leader_and_isr(1, 0, (1, 2, 3)))
        partition = setting.manager.get_partition(NAME)
        await asyncio.sleep(29)
        assert not partition.in_sync.state.is_pending
        await asyncio.sleep(17)
        assert partition.in_sync.state.proposed == (1,)

    in_setting(test)


def test_expires_followers_of_many_partitions_in_several_turns() -> None:
    async def test(setting: Setting) -> None:
        states = [leader_and_isr(1, 0, (1, 2, 3)) for _ in range(1200)]
        for number, state in enumerate(states):
            state.partition_index = number
        setting.tell(*states)
        await asyncio.sleep(44)
        pending: list[int] = []
        later = setting.manager._expire_followers()
        assert later is not None
        task = asyncio.ensure_future(later)
        while not task.done():
            count = sum(each.in_sync.state.is_pending for each in setting.manager.partitions.values())
            if count not in pending:
                pending.append(count)
            await asyncio.sleep(0)
        assert pending[:2] == [500, 1000]
        assert all(each.in_sync.state.proposed == (1,) for each in setting.manager.partitions.values())

    in_setting(test)


def test_finds_partitions_or_says_why_not() -> None:
    async def test(setting: Setting) -> None:
        with pytest.raises(KafkaError) as raised:
            setting.manager.get_partition(NAME)
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_setting(test)
