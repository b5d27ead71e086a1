"""Truncations: what is cut off, when, and what meanwhile can be done and read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.producers.producer_snapshots import write_snapshot
from barnabas.log.segments.segment import Segment
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.log.log_broker import LogBroker, records, refusal, send

WithBroker = Callable[..., Any]


def filled(broker: LogBroker, count: int) -> PartitionLog:
    """A log with so many records, each a batch of the same producer."""
    log = broker.log()
    for number in range(count):
        send(log, number)
    return log


def test_nothing_is_appended_while_a_truncation_goes_on(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = filled(broker, 10)
        truncation = asyncio.ensure_future(log.truncate_to(4))
        await asyncio.sleep(0)
        assert (log.is_truncating, log.append_end_offset) == (True, 4)
        assert refusal(lambda: send(log, 4)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        truncation.cancel()
        while log.is_truncating:
            await asyncio.sleep(0.001)
        assert send(log, 4).first_offset == 4
        assert send(log, 1).is_duplicate
        assert not await log.truncate_to(5)

    with_broker(main)


@pytest.mark.parametrize("offset", [15, 2])
def test_nothing_is_appended_before_a_truncation_is_durable(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """A loss of power must not bring back what was cut off, behind or between what came after it."""
    events: list[tuple[str, object, int]] = []
    fdatasync, fsync_directory = RealFiles.fdatasync, RealFiles.fsync_directory

    def sync_data(descriptor: int) -> None:
        status = os.fstat(descriptor)
        fdatasync(descriptor)
        events.append(("data", status.st_ino, status.st_size))

    def sync_directory(files: RealFiles, path: str) -> None:
        fsync_directory(files, path)
        events.append(("directory", path, len([name for name in os.listdir(path) if name.endswith(".log")])))

    async def main(broker: LogBroker) -> None:
        log = filled(broker, 20)
        await broker.written(log)
        await log.flush()
        monkeypatch.setattr(RealFiles, "fdatasync", staticmethod(sync_data))
        monkeypatch.setattr(RealFiles, "fsync_directory", sync_directory)
        truncation = asyncio.ensure_future(log.truncate_to(offset))
        begun = False
        while not truncation.done():
            if log.is_truncating:
                refusal(lambda: send(log, offset))
                begun = True
            await asyncio.sleep(0)
        assert begun
        active = log.segments.active
        assert ("data", os.stat(active.path).st_ino, active.size_bytes) in events
        assert ("directory", log.directory, log.segment_count) in events
        await truncation

    with_broker(main, config=LogConfig(segment_bytes=600))


def after(look: Callable[[], object], work: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any) -> Any:
        look()
        return work(*arguments)

    return both


@pytest.mark.parametrize("cut", [PartitionLog.truncate_to, PartitionLog.truncate_fully_and_start_at])
def test_what_was_synced_is_cut_off_only_when_the_recovery_point_on_the_disk_has_gone_back(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, cut: Callable[..., Any]
) -> None:
    """A recovery trusts what lies below it, and a loss of power may undo some of the removals and not others."""
    checkpointed: list[int] = []

    async def main(broker: LogBroker) -> None:
        log = filled(broker, 20)

        def see() -> None:
            checkpointed.append(log.log_directory.read_recovery_points()[log.partition])

        await broker.written(log)
        await log.flush()
        await broker.manager.checkpoint_recovery_points()
        see()
        assert checkpointed == [20]
        assert log.segment_count > 2
        for removal in (Segment.truncate_to, Segment.mark_deleted):
            monkeypatch.setattr(Segment, removal.__name__, after(see, removal))
        write_recovery_points = LogDirectory.write_recovery_points

        async def write_twice(directory: LogDirectory, offsets: dict[TopicPartition, int]) -> None:
            """Neither a sync nor a checkpoint of somebody else may bring it up again meanwhile."""
            await write_recovery_points(directory, offsets)
            await log.flush()
            await write_recovery_points(directory, {log.partition: log.recovery_point})

        with monkeypatch.context() as patch:
            patch.setattr(LogDirectory, "write_recovery_points", write_twice)
            await cut(log, 8)
        assert len(checkpointed) > 2
        assert max(checkpointed[1:]) <= (8 if cut is PartitionLog.truncate_to else 0)
        send(log, 8)
        await log.flush()
        assert log.recovery_point == log.log_end_offset == 9

    with_broker(main, config=LogConfig(segment_bytes=600))


@pytest.mark.parametrize("cut", [PartitionLog.truncate_to, PartitionLog.truncate_fully_and_start_at])
def test_a_truncation_that_is_not_due_any_more_changes_nothing(
    with_broker: WithBroker, cut: Callable[..., Any]
) -> None:
    """As when the replica has become the leader while the recovery point was being written."""

    async def main(broker: LogBroker) -> None:
        log = filled(broker, 20)
        await log.flush()
        is_due = [True]
        truncation = asyncio.ensure_future(cut(log, 8, is_still_due=lambda: is_due[0]))
        await asyncio.sleep(0)
        is_due[0] = False
        await truncation
        assert (log.log_start_offset, log.log_end_offset, log.is_truncating) == (0, 20, False)
        assert send(log, 20).first_offset == 20
        await log.flush()
        assert log.recovery_point == 21

    with_broker(main, config=LogConfig(segment_bytes=600))


def test_a_truncation_that_another_overtakes_lets_nothing_in(with_broker: WithBroker) -> None:
    """As when a follower gets a new leader while it cuts its log off for the one before."""

    async def main(broker: LogBroker) -> None:
        log = filled(broker, 10)
        first = asyncio.ensure_future(log.truncate_to(8))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(log.truncate_to(4))
        await asyncio.sleep(0)
        assert log.append_end_offset == 4
        while log.is_truncating:
            assert refusal(lambda: send(log, 4)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        assert second.done()
        await first
        assert not send(log, 4).is_duplicate
        await asyncio.sleep(0.01)
        assert send(log, 5).first_offset == 5

    with_broker(main)


def test_a_log_that_begins_anew_has_its_high_watermark_there_at_once(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = filled(broker, 10)
        await broker.written(log)
        log.increase_high_watermark(7)
        truncation = asyncio.ensure_future(log.truncate_fully_and_start_at(20))
        await asyncio.sleep(0)
        assert (log.log_start_offset, log.last_stable_offset, log.high_watermark) == (20, 20, 20)
        while log.is_truncating:
            await asyncio.sleep(0)
        send(log, 0)
        await truncation
        await broker.written(log)
        assert (log.high_watermark, log.log_end_offset) == (20, 21), "what was appended meanwhile is not committed"

    with_broker(main)


def test_who_waits_for_a_sync_learns_that_the_records_are_cut_off(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        log.append_as_leader(records(b"kept"), 0)
        await broker.written(log)
        log.append_as_leader(records(b"cut off"), 0)
        waiting = asyncio.ensure_future(broker.written(log))
        for _ in range(2):
            await asyncio.sleep(0)
        assert log.written.is_syncing
        await log.truncate_to(1)
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_broker(main, config=LogConfig(flush_messages=1))


def snapshots_of(log: PartitionLog) -> list[int]:
    """The offsets of the producer snapshots in the directory."""
    return sorted(int(name.split(".")[0]) for name in os.listdir(log.directory) if name.endswith(".snapshot"))


def producers_of(log: PartitionLog) -> dict[int, int]:
    """The last sequence of each."""
    return {entry.producer_id: entry.last_sequence for entry in log.producers}


async def write_ten(broker: LogBroker) -> None:
    """Ten batches of one producer."""
    log = broker.log()
    for number in range(10):
        send(log, number, timestamp_ms=broker.host.clock.time_ms())
    await broker.written(log)
    log.increase_high_watermark(3)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "crashed"])
def test_a_snapshot_of_what_was_cut_off_tells_nobody_of_producers_that_are_not_there(
    with_broker: WithBroker, is_clean: bool
) -> None:
    """Another leader's records come to the same offsets; a snapshot in the middle of a segment does not go with it."""

    async def cut_off(broker: LogBroker) -> None:
        log = broker.log()
        assert snapshots_of(log) == [10]
        await log.truncate_to(4)
        assert snapshots_of(log) == []
        for number in range(8):
            send(log, number, producer_id=8, timestamp_ms=broker.host.clock.time_ms())
        await log.truncate_to(11)
        assert producers_of(log) == {7: 3, 8: 6}
        assert not send(log, 4).is_duplicate
        await log.truncate_to(10)
        await broker.written(log)
        await broker.manager.checkpoint_recovery_points()

    async def look(broker: LogBroker) -> None:
        log = broker.log()
        assert (log.log_end_offset, producers_of(log)) == (10, {7: 3, 8: 5})

    with_broker(write_ten)
    with_broker(cut_off, look, is_clean=is_clean)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "crashed"])
def test_a_log_that_begins_anew_further_on_knows_none_of_its_former_producers(
    with_broker: WithBroker, is_clean: bool
) -> None:
    """A follower that was away for too long: its snapshots lie below where it goes on, and came back with a restart."""

    async def begin_anew(broker: LogBroker) -> None:
        log = broker.log()
        assert snapshots_of(log) == [10]
        await log.truncate_fully_and_start_at(20)
        assert (snapshots_of(log), producers_of(log)) == ([], {})

    async def look(broker: LogBroker) -> None:
        log = broker.log()
        assert (log.log_start_offset, log.log_end_offset, producers_of(log)) == (20, 20, {})
        assert snapshots_of(log) == []

    with_broker(write_ten)
    with_broker(begin_anew, look, is_clean=is_clean)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "crashed"])
def test_a_snapshot_from_below_the_first_segment_is_not_used(with_broker: WithBroker, is_clean: bool) -> None:
    """Between the two batches are missing, with which its producers may have gone on."""

    async def begin_anew(broker: LogBroker) -> None:
        log = broker.log()
        for number in range(10):
            send(log, number, timestamp_ms=broker.host.clock.time_ms())
        former = log.producers.snapshot()
        await log.truncate_fully_and_start_at(20)
        write_snapshot(broker.host.files, log.directory, 10, former)

    async def look(broker: LogBroker) -> None:
        log = broker.log()
        assert (log.log_start_offset, producers_of(log), snapshots_of(log)) == (20, {}, [])
        assert send(log, 17).first_offset == 20

    with_broker(begin_anew, look, is_clean=is_clean)
