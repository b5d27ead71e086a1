"""Fetches of followers some replicas of which are throttled (KIP-73), with real logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.api.data_broker import DataBroker
from tests.unit.api.fetching import Run, Session, asked, scenario, settled, values

BEHIND, IN_SYNC = 3, 2
VALUE = bytes(1000)


async def throttled(broker: DataBroker, bytes_per_second: int) -> None:
    """Both partitions have a follower in sync and one that is behind; the first partition is throttled, and the bound
    is exceeded."""
    for number in range(2):
        broker.lead("flights", number, isr=(1, IN_SYNC), replicas=(1, IN_SYNC, BEHIND))
    await settled()
    for _ in range(3):
        for number in range(2):
            await broker.produce("flights", VALUE, number=number)
    broker.leader_quota.throttle("flights", ["0:1"], 1)
    broker.leader_quota.limit(bytes_per_second)
    broker.leader_quota.record(bytes_per_second + bytes_per_second // 2 + 1)


@pytest.mark.parametrize("version", [12, 17])
def test_gives_a_follower_that_is_behind_only_what_is_not_throttled(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        await throttled(broker, 1)
        for follower_id, expected in ((BEHIND, [0, 3]), (IN_SYNC, [3, 3])):
            session = Session(broker.connect(), version, follower_id)
            found = await session.fetch(asked(0, log_start_offset=0), asked(1, log_start_offset=0))
            assert [len(values(found[number])) for number in range(2)] == expected
            assert found[0].error_code == 0
        consumer = Session(broker.connect(), version)
        assert (await consumer.fetch(asked(0)))[0].error_code == 0

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [12, 17])
def test_what_is_held_back_waits_for_the_quota_and_comes_then(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await throttled(broker, 100_000)  # for one and a half seconds
        session = Session(broker.connect(), version, BEHIND)
        (found,) = (await session.fetch(asked(0, log_start_offset=0), max_wait_ms=600_000)).values()
        assert len(values(found)) == 3
        assert loop.time() - began > 0.5
        assert broker.leader_quota.topics
        await settled()
        assert broker.leader_quota.byte_rate > 0

    scenario(run, tmp_path, body)


def test_a_parked_fetch_gets_what_is_not_throttled_at_once(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await throttled(broker, 1)
        session = Session(broker.connect(), 17, BEHIND)
        first = await session.fetch(asked(0, log_start_offset=0), asked(1, 3, log_start_offset=0))
        assert [len(values(first[number])) for number in range(2)] == [0, 0]
        for offset in range(3, 8):
            waiting = asyncio.ensure_future(session.fetch(asked(1, offset, log_start_offset=0), max_wait_ms=600_000))
            while not broker.replicas.fetch_purgatory.delayed:
                await asyncio.sleep(0)
            await broker.produce("flights", VALUE, number=0)
            await settled()
            assert not waiting.done(), "what is produced to the throttled partition is no news"
            await broker.produce("flights", VALUE, number=1)
            found = await waiting
            assert len(values(found[1])) == 1
            assert 0 not in found or not found[0].records
        broker.leader_quota.throttle("flights", [], 1)
        found = await session.fetch(asked(1, 8, log_start_offset=0), max_wait_ms=600_000)
        assert len(values(found[0])) == 8

    scenario(run, tmp_path, body)


def test_a_parked_fetch_wakes_when_the_throttle_is_taken_away(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await throttled(broker, 1)
        session = Session(broker.connect(), 17, BEHIND)
        await session.fetch(asked(0, log_start_offset=0))
        waiting = asyncio.ensure_future(session.fetch(max_wait_ms=600_000))
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        broker.leader_quota.throttle("flights", [], 1)
        assert len(values((await waiting)[0])) == 3

    scenario(run, tmp_path, body)


def test_all_that_throttled_replicas_are_given_counts_in_sync_or_not(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(2):
            broker.lead("flights", number, isr=(1, IN_SYNC), replicas=(1, IN_SYNC, BEHIND))
            await broker.produce("flights", VALUE, number=number)
        broker.leader_quota.throttle("flights", ["0:1"], 1)
        recorded: list[int] = []
        broker.leader_quota.record = recorded.append  # type: ignore[method-assign, assignment]
        for follower_id in (IN_SYNC, BEHIND):
            session = Session(broker.connect(), 17, follower_id)
            found = await session.fetch(asked(0, log_start_offset=0), asked(1, log_start_offset=0))
            await settled()
            assert recorded.pop() == len(found[0].records or b"") > 0
            assert not recorded

    scenario(run, tmp_path, body)
