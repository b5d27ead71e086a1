"""Replicas that are deleted: what of them is gone when that is answered, and what is spared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from barnabas.wire.topics import TopicPartition
from tests.unit.leader.partition_setting import leader_and_isr
from tests.unit.replicas.replica_setting import (
    GONE,
    NAME,
    NOT_TOLD,
    OTHER_ID,
    Setting,
    deletion_of,
    in_setting,
)


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
