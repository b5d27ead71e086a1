"""The cleaner of a whole log manager, with a real child process."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.metrics import Gauge
from barnabas.kernel.paced_work import finish
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.cleaner.compaction import DISK_FAILED, Compaction, compact
from barnabas.log.cleaner.plan import SegmentFacts
from barnabas.log.manager import log_cleaner
from barnabas.log.manager.log_cleaner import LogCleaner
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.segment import SegmentConfig
from tests.unit.log.log_batches import TroubledFiles
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_settings, records

CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=1000, min_cleanable_dirty_ratio=0.1)
SETTINGS = log_settings(cleaner_enable=False)
WithBroker = Callable[..., Any]


async def fill(broker: LogBroker) -> PartitionLog:
    log = broker.log()
    for number in range(50):
        log.append_as_leader(records(b"%d" % number * 20), 0)
    await broker.written(log)
    await log.flush()
    return log


async def until(is_true: Callable[[], object]) -> None:
    """Returns when it is; a child process may take seconds to start on a busy machine."""
    async with asyncio.timeout(60):
        while not is_true():
            await asyncio.sleep(0.01)


def cleaner_of(broker: LogBroker) -> LogCleaner:
    return LogCleaner(broker.manager, broker.host, logging.getLogger("cleaner"))


def test_compacts_in_a_child_and_remembers_how_far_over_a_stop(with_broker: WithBroker) -> None:
    async def first(broker: LogBroker) -> None:
        log = await fill(broker)
        assert not await cleaner_of(broker).clean_filthiest(), "nothing is committed"
        log.update_high_watermark(log.log_end_offset)
        plan = log.read(0, 100, ReadIsolation.LOG_END, has_minimum=True).plan
        assert await cleaner_of(broker).clean_filthiest()
        assert plan is not None
        assert not plan.is_readable, "a reader in the middle must find out"
        assert not await cleaner_of(broker).clean_filthiest(), "what is compacted is left alone"
        assert log.first_dirty_offset == log.segments.active.base_offset
        left = [record.offset for segment in log.segments for batch in segment.batches() for record in batch.records()]
        assert left == [log.first_dirty_offset - 1, *range(log.first_dirty_offset, 50)]

    async def second(broker: LogBroker) -> None:
        log = broker.log()
        assert log.first_dirty_offset == log.segments.active.base_offset
        assert log.log_end_offset == 50
        await log.truncate_to(10)
        assert log.first_dirty_offset <= 10

    with_broker(first, second, config=CONFIG, settings=SETTINGS)


def test_a_log_that_cannot_be_read_is_left_alone_from_then_on(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = await fill(broker)
        log.update_high_watermark(log.log_end_offset)
        size_bytes = log.size_bytes
        with open(log.segments.first.path, "r+b") as file:
            file.seek(70)
            file.write(b"\xff\xff\xff")
        cleaner = cleaner_of(broker)
        assert await cleaner.clean_filthiest()
        assert not await cleaner.clean_filthiest()
        assert (log.size_bytes, log.first_dirty_offset) == (size_bytes, 0)

    with_broker(main, config=CONFIG, settings=SETTINGS)


class Ended:
    """A child process that has ended."""

    process_id = 1

    def __init__(self, status: int) -> None:
        self._status = status

    async def wait(self) -> int:
        return self._status

    def signal(self, number: int) -> None:
        raise AssertionError(number)


def ending_with(broker: LogBroker, status: int) -> LogCleaner:
    async def spawn(entry: str, argument: bytes) -> Ended:
        assert entry
        assert argument
        return Ended(status)

    return LogCleaner(broker.manager, replace(broker.host, spawn=spawn), logging.getLogger("cleaner"))


def test_an_error_of_the_disk_takes_the_log_directory_offline(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = await fill(broker)
        log.update_high_watermark(log.log_end_offset)
        await ending_with(broker, DISK_FAILED + errno.ENOSPC).clean_filthiest()
        await yield_to_loop()
        assert broker.offline
        assert os.strerror(errno.ENOSPC) in str(log.log_directory.error)

    with_broker(main, config=CONFIG, settings=SETTINGS)


def test_the_child_reports_an_error_of_the_disk(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fails = lambda: True
    work = Compaction(
        directory=str(tmp_path),
        segments=(SegmentFacts(0, 0, 0, 1, 0),),
        first_dirty_offset=0,
        end_offset=1,
        aborted=(),
        producers={},
        config=SegmentConfig(),
        now_ms=0,
        delete_retention_ms=0,
        entries_max=1,
        slots=1,
    )
    assert finish(compact(files, b"".join(work.encode())), float, lambda _: None) == DISK_FAILED + errno.ENOENT


def test_a_log_whose_child_is_killed_waits_for_the_next_round_and_not_for_ever(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = await fill(broker)
        log.update_high_watermark(log.log_end_offset)
        cleaner = ending_with(broker, -9)
        rounds = 0
        while not cleaner.uncleanable:
            rounds += 1
            assert await cleaner.clean_filthiest()
            assert not await cleaner.clean_filthiest(), "the next round"
            cleaner.begin_round()
        assert rounds == 5
        assert not broker.offline

    with_broker(main, config=CONFIG, settings=SETTINGS)


def test_what_is_uncleanable_is_seen(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody has thought of costs the log that it is of, and not the cleaner."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("an error that nobody has thought of")

    async def main(broker: LogBroker) -> None:
        log = await fill(broker)
        log.update_high_watermark(log.log_end_offset)
        with monkeypatch.context() as patch:
            patch.setattr(log_cleaner, "cleanable_range", fail)
            await until(lambda: gauge(broker, "uncleanable-partitions-count"))
        assert gauge(broker, "uncleanable-bytes") == log.size_bytes - log.segments.active.size_bytes
        assert 0 <= gauge(broker, "time-since-last-run-ms") < 60_000
        assert any("nobody has thought of" in line or "is uncleanable" in line for line in broker.lines)
        other = broker.log(FLIGHTS._replace(partition=1))
        for number in range(50):
            other.append_as_leader(records(b"%d" % number * 20), 0)
        await broker.written(other)
        await other.flush()
        other.update_high_watermark(50)
        await until(lambda: other.first_dirty_offset)
        assert not log.first_dirty_offset

    with_broker(main, config=CONFIG, settings=replace(SETTINGS, cleaner_enable=True, cleaner_backoff_ms=20))


def gauge(broker: LogBroker, name: str) -> float:
    (found,) = [each for found_name, each in broker.metrics if found_name.name == name]
    assert isinstance(found, Gauge)
    return found.read()


def test_what_has_changed_since_it_was_looked_at_is_looked_at_again(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader's end may be cut off while other logs are looked at; what comes in its place is not committed."""
    look = LogCleaner._filthiest

    async def main(broker: LogBroker) -> None:
        log = await fill(broker)
        log.update_high_watermark(log.log_end_offset)

        async def looks_and_is_late(cleaner: LogCleaner) -> Any:
            found = await look(cleaner)
            monkeypatch.setattr(LogCleaner, "_filthiest", look)
            await log.truncate_to(10)
            for number in range(40):
                log.append_as_leader(records(b"%d" % number * 20), 1)
            await broker.written(log)
            await log.flush()
            return found

        monkeypatch.setattr(LogCleaner, "_filthiest", looks_and_is_late)
        cleaner = cleaner_of(broker)
        while await cleaner.clean_filthiest():
            pass
        assert log.high_watermark == 10
        assert log.first_dirty_offset <= 10
        left = [record.offset for segment in log.segments for batch in segment.batches() for record in batch.records()]
        assert left[-40:] == list(range(10, 50))

    with_broker(main, config=CONFIG, settings=SETTINGS)


def test_the_task_runs_by_itself_unless_it_is_switched_off(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> int:
        log = await fill(broker)
        log.update_high_watermark(log.log_end_offset)
        await until(lambda: log.first_dirty_offset)
        return log.first_dirty_offset

    settings = replace(SETTINGS, cleaner_backoff_ms=20)
    assert with_broker(main, config=CONFIG, settings=replace(settings, cleaner_enable=True))


def test_switched_off_it_does_nothing(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = await fill(broker)
        log.update_high_watermark(log.log_end_offset)
        await asyncio.sleep(0.3)
        assert log.first_dirty_offset == 0

    with_broker(main, config=CONFIG, settings=replace(SETTINGS, cleaner_backoff_ms=20))


class Awaited:
    """A child process that runs until it is told to end."""

    def __init__(self, process_id: int) -> None:
        self.process_id = process_id
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def signal(self, number: int) -> None:
        if not self.ended.done():
            self.ended.set_result(-number)


class Children:
    """Those that were started, and what for."""

    def __init__(self) -> None:
        self.all: list[Awaited] = []
        self.work: list[Compaction] = []
        self._more = asyncio.Event()

    async def spawn(self, entry: str, argument: bytes) -> Awaited:
        assert entry
        self.work.append(Compaction.decode(argument))
        self.all.append(Awaited(len(self.all)))
        self._more.set()
        return self.all[-1]

    async def wait_for(self, count: int) -> None:
        while len(self.all) < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 60)


async def fill_many(broker: LogBroker, count: int) -> list[PartitionLog]:
    logs = [broker.log(FLIGHTS._replace(partition=number)) for number in range(count)]
    for log in logs:
        for number in range(50):
            log.append_as_leader(records(b"%d" % number * 20), 0)
        await broker.written(log)
        await log.flush()
        log.update_high_watermark(log.log_end_offset)
    return logs


def test_so_many_at_a_time_as_there_are_threads_and_each_of_another_log(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        logs = await fill_many(broker, 4)
        settings = replace(
            SETTINGS,
            cleaner_threads=3,
            cleaner_backoff_ms=1,
            cleaner_io_max_bytes_per_second=3000.0,
            cleaner_io_buffer_size=600_000,
            cleaner_dedupe_buffer_size=3 * 24 * 1000,
        )
        broker.manager.settings = settings
        children = Children()
        cleaner = LogCleaner(broker.manager, replace(broker.host, spawn=children.spawn), logging.getLogger("cleaner"))
        cleaner.start()
        await children.wait_for(3)
        assert len({work.directory for work in children.work}) == 3
        assert {(work.bytes_per_second, work.chunk_bytes, work.slots) for work in children.work} == {
            (1000.0, 100_000, 1000)
        }
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(children.all) == 3
        # Other settings: what is under way begins anew, with them, and it counts as no failure.
        broker.manager.settings = replace(settings, cleaner_threads=2, cleaner_io_max_bytes_per_second=3000.0)
        cleaner.reconfigure(settings)
        await children.wait_for(5)
        assert [child.ended.done() for child in children.all] == [True, True, True, False, False]
        assert {work.bytes_per_second for work in children.work[3:]} == {1500.0}
        cleaner.reconfigure(broker.manager.settings)
        assert not children.all[-1].ended.done(), "nothing has changed"
        assert len({work.directory for work in children.work[3:]}) == 2
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(children.all) == 5
        assert not cleaner.uncleanable
        cleaner.cancel()
        assert all(child.ended.done() for child in children.all)
        assert len({log.directory for log in logs}) == 4

    with_broker(main, config=CONFIG, settings=SETTINGS)


def test_the_child_of_a_deleted_log_ends_at_once(with_broker: WithBroker) -> None:
    """It finds files by their names, and those of a log made anew may have the same ones."""

    async def main(broker: LogBroker) -> None:
        await fill_many(broker, 2)
        manager, children = broker.manager, Children()
        cleaner = LogCleaner(manager, replace(broker.host, spawn=children.spawn), logging.getLogger("cleaner"))
        manager._tasks.cleaner = cleaner
        cleaner.start()
        await children.wait_for(1)
        (deleted,) = [log for log in manager.logs.values() if log.directory == children.work[0].directory]
        await manager.delete_log(deleted.partition)
        assert children.all[0].ended.done()
        await children.wait_for(2)
        (left,) = manager.logs.values()
        assert children.work[1].directory == left.directory
        assert not cleaner.uncleanable

    with_broker(main, config=CONFIG, settings=replace(SETTINGS, cleaner_backoff_ms=1))


def test_a_log_is_overdue_by_the_first_timestamp_of_a_segment(with_broker: WithBroker) -> None:
    """A record waits no longer for those behind it in its segment, also where a start has read nothing of it."""
    day_ms = 24 * 3600 * 1000
    config = replace(CONFIG, min_cleanable_dirty_ratio=1.0, segment_ms=10 * day_ms, segment_bytes=10_000)

    async def first(broker: LogBroker) -> None:
        log = broker.log()
        now_ms = broker.host.clock.time_ms()
        for number in range(300):
            log.append_as_leader(records(b"%d" % number, timestamp_ms=now_ms - day_ms // (number + 1)), 0)
        await broker.written(log)
        await log.flush()
        log.update_high_watermark(log.log_end_offset)
        await broker.manager.checkpoint_recovery_points()

    async def second(broker: LogBroker) -> None:
        log = broker.log()
        log.update_high_watermark(log.log_end_offset)
        assert log.segment_count > 1
        cleaner = cleaner_of(broker)
        log.reconfigure(replace(config, max_compaction_lag_ms=2 * day_ms))
        assert not await cleaner.clean_filthiest()
        log.reconfigure(replace(config, max_compaction_lag_ms=day_ms // 2))
        assert await cleaner.clean_filthiest()
        assert log.first_dirty_offset == log.segments.active.base_offset

    with_broker(first, second, config=config, settings=SETTINGS)
