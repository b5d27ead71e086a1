"""Checkpoints that are gathered in many turns, while their logs change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.manager import offset_checkpoints
from barnabas.log.partition.partition_log import PartitionLog
from tests.unit.log.log_broker import FLIGHTS, LogBroker, records

WithBroker = Callable[..., Any]
LOGS = 6


@pytest.fixture(autouse=True)
def one_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_checkpoints, "GATHERED_PER_TURN", 1)


async def filled(broker: LogBroker, number: int, count: int = 4) -> PartitionLog:
    log = broker.log(FLIGHTS._replace(partition=number))
    for _ in range(count):
        log.append_as_leader(records(b"value"), 0)
    await log.flush()
    log.update_high_watermark(log.log_end_offset)
    return log


def test_many_logs_are_gathered_in_many_turns(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(broker: LogBroker) -> None:
        for number in range(LOGS):
            await filled(broker, number)
        seen: list[dict[Any, int]] = []

        async def write(_: LogDirectory, offsets: dict[Any, int]) -> None:
            seen.append(offsets)

        monkeypatch.setattr(LogDirectory, "write_recovery_points", write)
        run = asyncio.create_task(broker.manager.checkpoint_recovery_points())
        turns = 0
        while not run.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 2 * LOGS  # where they are compacted is gathered before
        assert seen == [{log.partition: 4 for log in broker.manager.logs.values()}]
        monkeypatch.undo()

    with_broker(main)


@pytest.mark.parametrize("turns", range(0, 3 * LOGS, 2))
def test_a_log_is_cut_off_made_anew_or_deleted_at_whatever_turn_of_a_checkpoint(
    with_broker: WithBroker, turns: int
) -> None:
    """When that has returned, no file says what was true before, although a checkpoint was gathered meanwhile."""

    async def main(broker: LogBroker) -> None:
        logs = [await filled(broker, number) for number in range(LOGS)]
        for log in logs:
            log.delete_records_to(3)
        directory = logs[0].log_directory
        choose = random.Random(turns)
        cut, deleted, remade = choose.sample(logs, 3)
        manager = broker.manager
        checkpoints = [
            asyncio.create_task(work())
            for work in (manager.checkpoint_recovery_points, manager.checkpoint_log_start_offsets)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.gather(
            cut.truncate_to(1), manager.delete_log(deleted.partition), manager.delete_log(remade.partition)
        )
        points, starts = directory.read_recovery_points(), directory.read_log_start_offsets()
        assert points.get(cut.partition, 0) <= 1
        assert starts.get(cut.partition, 0) <= 1
        assert not {deleted.partition, remade.partition} & (points.keys() | starts.keys())
        await filled(broker, remade.partition.partition, count=2)
        await asyncio.gather(*checkpoints)
        points, starts = directory.read_recovery_points(), directory.read_log_start_offsets()
        assert points.get(remade.partition, 0) <= 2
        assert remade.partition not in starts
        untouched = {log.partition for log in logs} - {cut.partition, deleted.partition, remade.partition}
        assert {partition: starts[partition] for partition in untouched} == dict.fromkeys(untouched, 3)

    with_broker(main)


def test_a_start_that_a_truncation_has_moved_back_is_not_the_former_one_after_a_crash(with_broker: WithBroker) -> None:
    """As of a follower whose new leader, elected uncleanly, has less and starts earlier."""

    async def main(broker: LogBroker) -> None:
        log = await filled(broker, 0, count=9)
        log.delete_records_to(6)
        await broker.manager.checkpoint_log_start_offsets()
        await log.truncate_to(4)
        await filled(broker, 0, count=5)
        assert (log.log_start_offset, log.log_end_offset) == (4, 9)

    async def after(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_start_offset, log.log_end_offset) == (4, 9)

    with_broker(main, after, is_clean=False)


def test_a_truncation_amid_another_waits_for_the_start_that_the_other_has_moved_back(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(broker: LogBroker) -> None:
        log = await filled(broker, 0, count=9)
        log.delete_records_to(6)
        await broker.manager.checkpoint_log_start_offsets()
        answers, write_now = asyncio.Event(), LogDirectory.write_log_start_offsets

        async def write(directory: LogDirectory, offsets: dict[Any, int]) -> None:
            await answers.wait()
            await write_now(directory, offsets)

        monkeypatch.setattr(LogDirectory, "write_log_start_offsets", write)
        first = asyncio.create_task(log.truncate_to(4))
        while not log.is_truncating:
            await asyncio.sleep(0)
        second = asyncio.create_task(log.truncate_fully_and_start_at(4))
        await asyncio.wait([first, second], timeout=0.5)
        ended_early = second.done()
        answers.set()
        await asyncio.gather(first, second)
        assert not ended_early, "what is appended then may be gone after a crash"
        assert log.log_directory.read_log_start_offsets().get(FLIGHTS, 0) <= 4
        monkeypatch.undo()

    with_broker(main)


def test_a_start_after_a_crash_in_a_deletion_forgets_what_the_deleted_log_has_left(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(broker: LogBroker) -> None:
        log = await filled(broker, 0)
        log.delete_records_to(3)
        await broker.manager.checkpoint_log_start_offsets()
        await broker.manager.checkpoint_recovery_points()
        await broker.manager.delete_logs([log.partition])  # and the broker is killed before it tells the checkpoints

    async def between(broker: LogBroker) -> None:
        assert not broker.manager.logs
        await filled(broker, 0)

    async def after(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_start_offset, log.log_end_offset) == (0, 4)

    with_broker(main, between, after, is_clean=False)


def test_a_deletion_amid_the_checkpoints_of_others_is_in_its_own(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has asked twice for a deletion: two runs, one behind the other. Meanwhile the log is made anew,
    and deleted as well."""

    async def main(broker: LogBroker) -> None:
        manager = broker.manager
        deleted = {(await filled(broker, 0)).partition}
        await manager.checkpoint_recovery_points()
        writes: list[asyncio.Event] = []
        write_now = LogDirectory.write_recovery_points

        async def write(directory: LogDirectory, offsets: dict[Any, int]) -> None:
            writes.append(asyncio.Event())
            await writes[-1].wait()
            await write_now(directory, offsets)

        monkeypatch.setattr(LogDirectory, "write_recovery_points", write)

        async def begun(count: int) -> None:
            async with asyncio.timeout(60):
                while len(writes) < count:
                    await asyncio.sleep(0)

        await manager.delete_logs(deleted)
        asked = asyncio.create_task(manager.checkpoint_deletions(deleted))
        await begun(1)
        again = asyncio.create_task(manager.checkpoint_deletions(deleted))
        await filled(broker, 0)
        writes[0].set()
        await asked
        await begun(2)
        await manager.delete_logs(deleted)
        writes[1].set()
        await again
        last = asyncio.create_task(manager.checkpoint_deletions(deleted))
        await begun(3)
        writes[2].set()
        await last
        assert not manager.directories[0].read_recovery_points()
        monkeypatch.undo()

    with_broker(main)


def test_a_deletion_looks_at_no_other_log_and_leaves_what_is_told_of_them(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(broker: LogBroker) -> None:
        logs = [await filled(broker, number) for number in range(LOGS)]
        for log in logs[: LOGS // 2]:
            log.delete_records_to(3)
        manager, directory = broker.manager, the_directory(broker)
        await manager.checkpoint_log_start_offsets()
        await manager.checkpoint_recovery_points()
        points, starts = directory.read_recovery_points(), directory.read_log_start_offsets()

        async def gather(_: object) -> dict[Any, int]:
            raise AssertionError("all logs are looked at for the sake of one")

        monkeypatch.setattr(offset_checkpoints._Checkpoint, "_gather", gather)
        for log in (logs[0], logs[-1]):
            await manager.delete_log(log.partition)
            points.pop(log.partition)
            starts.pop(log.partition, None)
            assert directory.read_recovery_points() == points
            assert directory.read_log_start_offsets() == starts
        monkeypatch.undo()

    with_broker(main)


def test_what_is_told_of_a_log_made_anew_outlives_that_its_former_one_is_forgotten(with_broker: WithBroker) -> None:
    """The deletion is told to the checkpoints after the new log was."""

    async def main(broker: LogBroker) -> None:
        manager = broker.manager
        await filled(broker, 1)
        log = await filled(broker, 0)
        log.delete_records_to(3)
        await manager.checkpoint_log_start_offsets()
        await manager.delete_logs([log.partition])
        remade = await filled(broker, 0)
        remade.delete_records_to(2)
        await manager.checkpoint_log_start_offsets()
        await manager.checkpoint_recovery_points()
        await manager.checkpoint_deletions({FLIGHTS})
        directory = the_directory(broker)
        assert directory.read_log_start_offsets() == {FLIGHTS: 2}
        assert directory.read_recovery_points()[FLIGHTS] == 4
        assert not manager.told_of_in({FLIGHTS})

    with_broker(main)


def the_directory(broker: LogBroker) -> LogDirectory:
    (directory,) = broker.manager.directories
    return directory
