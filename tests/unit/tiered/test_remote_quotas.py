"""What is copied and fetched at most (KIP-956)."""

from __future__ import annotations

import asyncio
import math

import pytest

from barnabas.tiered.remote_quotas import ThrottleTimes
from tests.unit.tiered import test_remote_log_manager
from tests.unit.tiered.test_remote_log_manager import Run, fill, tier
from tests.unit.tiered.test_remote_reads import remote_fetch
from tests.unit.tiered.tiered_broker import TieredBroker

run = test_remote_log_manager.run


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def test_copies_keep_to_their_bound_and_each_begins_when_the_rate_is_below(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 200)
        segments = list(tiered.log.segments)[:-1]
        total = sum(segment.size_bytes for segment in segments)
        bound = total // 20
        tiered.quotas.copy.limit(bound)
        began = now_ms()
        await tiered.manager.copy_once()
        assert len(tiered.cache.segments()) == len(segments)
        largest = max(segment.size_bytes for segment in segments)
        least = (total - 2 * largest) / bound - 1
        assert least * 1000 <= now_ms() - began <= 23_000
        assert 0 < tiered.quotas.copy.times.mean_ms() <= tiered.quotas.copy.times.largest_ms()
        assert tiered.quotas.copy.byte_rate > 0
        assert tiered.quotas.fetch.byte_rate == 0

    run(body)


def test_a_copy_that_waits_keeps_neither_retention_nor_another_bound_waiting(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        tiered.quotas.copy.limit(1)
        copies = asyncio.create_task(tiered.manager.copy_once())
        while not tiered.log.remote_end_offset:
            await tiered.broker.timers.sleep(10)
        began = now_ms()
        tiered.reconfigure(retention_bytes=6_000)
        await tiered.manager.expire_once()
        assert tiered.log.log_start_offset == tiered.log.remote_end_offset > 0
        assert now_ms() - began < 900
        assert len(tiered.cache.segments()) == 0, "the first was copied, and is deleted"
        tiered.quotas.copy.limit(1 << 40)
        await copies
        assert now_ms() - began < 2_500
        assert tiered.log.remote_end_offset == tiered.log.segments.active.base_offset

    run(body)


def test_a_copy_that_waits_is_not_begun_by_who_leads_no_more(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        tiered.quotas.copy.limit(1)
        copies = asyncio.create_task(tiered.manager.copy_once())
        while not tiered.log.remote_end_offset:
            await tiered.broker.timers.sleep(10)
        tiered.partition.is_leader = False
        tiered.quotas.copy.limit(1 << 40)
        await copies
        assert len(tiered.cache.segments()) == 1

    run(body)


def test_fetches_wait_for_their_bound_and_come_back(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        await tier(tiered)
        tiered.quotas.fetch.limit(500)
        found = await tiered.reads.read(remote_fetch(tiered, 0, 1_000))
        assert len(found.data) > 500
        began = now_ms()
        assert (await tiered.reads.read(remote_fetch(tiered, 0, 1_000))).data == b""
        assert now_ms() - began == pytest.approx(tiered.settings.fetch_wait_max_ms, abs=50), "and not at once"
        assert tiered.reads._pending == 0, "it takes no place from others meanwhile"
        while not (await tiered.reads.read(remote_fetch(tiered, 0, 1_000))).data:
            assert now_ms() - began < 12_000
        assert now_ms() - began > 700
        tiered.quotas.fetch.limit(1 << 40)
        assert (await tiered.reads.read(remote_fetch(tiered, 0, 1_000))).data
        assert tiered.quotas.fetch.times.largest_ms() > 0

    run(body)


def test_times_of_the_last_minute_count() -> None:
    now = 0.0
    times = ThrottleTimes(lambda: now)
    assert math.isnan(times.mean_ms())
    assert math.isnan(times.largest_ms())
    times.record(1)
    now = 30
    times.record(3)
    assert (times.mean_ms(), times.largest_ms()) == (2_000, 3_000)
    now = 61
    assert (times.mean_ms(), times.largest_ms()) == (3_000, 3_000)
    now = 91
    assert math.isnan(times.mean_ms())
