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
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.segment import SegmentConfig
from tests.unit.log.log_batches import TroubledFiles
from tests.unit.log.log_broker import FLIGHTS, LogBroker, records

CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=1000, min_cleanable_dirty_ratio=0.1)
SETTINGS = LogSettings(cleaner_enable=False)
WithBroker = Callable[..., Any]


async def fill(broker: LogBroker) -> PartitionLog:
    log = broker.log()
    for number in range(50):
        log.append_as_leader(records(b"%d" % number * 20), 0)
    await broker.written(log)
    await log.flush()
    return log


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
            for _ in range(300):
                await asyncio.sleep(0.01)
                if gauge(broker, "uncleanable-partitions-count"):
                    break
        assert gauge(broker, "uncleanable-bytes") == log.size_bytes - log.segments.active.size_bytes
        assert 0 <= gauge(broker, "time-since-last-run-ms") < 60_000
        assert any("nobody has thought of" in line or "is uncleanable" in line for line in broker.lines)
        other = broker.log(FLIGHTS._replace(partition=1))
        for number in range(50):
            other.append_as_leader(records(b"%d" % number * 20), 0)
        await broker.written(other)
        await other.flush()
        other.update_high_watermark(50)
        for _ in range(500):
            await asyncio.sleep(0.01)
            if other.first_dirty_offset:
                break
        assert other.first_dirty_offset
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
        for _ in range(300):
            await asyncio.sleep(0.01)
            if log.first_dirty_offset:
                break
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
