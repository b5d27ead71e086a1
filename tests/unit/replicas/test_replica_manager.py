"""A replica manager with logs in memory, told what to do as a controller tells it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from barnabas.kernel.ids import ZERO_UUID
from barnabas.leader.remote_replica import FetchClock
from barnabas.replicas import replica_metrics
from barnabas.serving.delete_records import DeleteOutcome, Outcomes, RecordDeletions
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import UpdateMetadataRequest
from tests.unit.leader.memory_log import TOPIC_ID
from tests.unit.leader.partition_setting import leader_and_isr
from tests.unit.replicas.replica_setting import (
    NAME,
    OTHER_ID,
    Setting,
    in_setting,
)


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


def test_a_follower_whose_broker_is_alive_again_is_looked_at_though_it_may_name_nothing() -> None:
    async def test(setting: Setting) -> None:
        setting.tell(leader_and_isr(1, 0, (1,), replicas=(1, 2)))
        follower = setting.manager.get_partition(NAME).in_sync.by_id[2]
        follower.fetched(0, 0, 0, 0.0, FetchClock())
        setting.tell_of_brokers(1, 3)
        assert not len(setting.manager._expansion_retries)
        setting.tell_of_brokers(1, 2, 3)
        assert len(setting.manager._expansion_retries) == 1

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
        assert pending == [200, 400, 600, 800, 1000]  # and the last ones in the turn in which it ends
        assert all(each.in_sync.state.proposed == (1,) for each in setting.manager.partitions.values())

    in_setting(test)


def test_finds_partitions_or_says_why_not() -> None:
    async def test(setting: Setting) -> None:
        with pytest.raises(KafkaError) as raised:
            setting.manager.get_partition(NAME)
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_setting(test)
