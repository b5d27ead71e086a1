"""The cleaner of a whole log manager, with a real child process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from barnabas.log.manager.log_cleaner import LogCleaner
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from tests.unit.log.log_broker import LogBroker, records

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
