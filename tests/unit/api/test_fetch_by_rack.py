"""Fetches of consumers that say where they are (KIP-392), and what followers must know for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from barnabas.wire.errors import ErrorCode
from tests.unit.api.data_broker import DataBroker
from tests.unit.api.fetching import Run, Session, asked, fetch_request, only, scenario, settled, values

REPLICAS = (1, 2, 3)
NEAR = "rack-2"
NOBODY = -1


async def replicated(broker: DataBroker) -> None:
    """This broker leads; both followers have all three records."""
    broker.lead("flights", isr=REPLICAS, replicas=REPLICAS)
    await settled()
    for value in (b"one", b"two", b"three"):
        await broker.produce("flights", value)
    for follower_id in (2, 3):
        named = asked(0, 3, log_start_offset=0, current_leader_epoch=0, last_fetched_epoch=0)
        await broker.connect().call(fetch_request(17, "flights", named, replica_id=follower_id), 17)


@pytest.mark.parametrize("version", [11, 12, 17])
def test_a_leader_names_a_replica_in_the_consumers_rack_at_once(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        await replicated(broker)
        caller = broker.connect()
        for _ in range(3):  # by the general path, and by the fast one
            request = fetch_request(version, "flights", asked(0, 1), rack_id=NEAR, max_wait_ms=600_000)
            data = only(await caller.call(request, version))
            assert (data.preferred_read_replica, data.error_code) == (2, 0)
            assert (data.high_watermark, data.log_start_offset, bytes(data.records or b"")) == (3, 0, b"")
        for rack in ("", "rack-1", "rack-9"):
            request = fetch_request(version, "flights", asked(0, 1), rack_id=rack)
            data = only(await broker.connect().call(request, version))
            assert (data.preferred_read_replica, values(data)) == (NOBODY, [b"two", b"three"])

    scenario(run, tmp_path, body, is_rack_aware=True)


def test_names_nobody_without_a_selector_and_to_followers(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await replicated(broker)
        for replica_id in (-1, 3):
            request = fetch_request(17, "flights", asked(0, 1), rack_id=NEAR, replica_id=replica_id)
            data = only(await broker.connect().call(request, 17))
            if replica_id == 3 or not broker.is_rack_aware:
                assert (data.preferred_read_replica, values(data)) == (NOBODY, [b"two", b"three"])

    scenario(run, tmp_path, body, is_rack_aware=True)
    scenario(run, tmp_path / "without", body)


def test_a_session_is_told_of_the_replica_and_forgets_the_partition(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await replicated(broker)
        session = Session(broker.connect(), 17)
        found = await session.fetch(asked(0, 3), rack_id=NEAR, max_wait_ms=600_000)
        assert found[0].preferred_read_replica == 2
        found = await session.fetch(rack_id=NEAR, max_wait_ms=600_000)
        assert found[0].preferred_read_replica == 2, "it is said until the consumer goes"
        assert await session.fetch(forgotten=[0], rack_id=NEAR) == {}

    scenario(run, tmp_path, body, is_rack_aware=True)


def test_a_follower_gives_a_consumer_what_is_committed_as_far_as_it_knows(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await replicated(broker)
        broker.lead("flights", leader=2, leader_epoch=1, isr=REPLICAS, replicas=REPLICAS)
        await settled()
        partition = broker.replicas.get_partition(next(iter(broker.replicas.partitions)))
        assert partition.log is not None
        assert (partition.high_watermark, partition.log_end_offset) == (3, 3)

        async def fetched(offset: int, epoch: int = 1, version: int = 17) -> tuple[int, int]:
            request = fetch_request(version, "flights", asked(0, offset, current_leader_epoch=epoch), rack_id=NEAR)
            data = only(await broker.connect().call(request, version))
            assert data.preferred_read_replica == NOBODY, "only a leader knows"
            return data.error_code, len(values(data))

        assert await fetched(0) == (ErrorCode.NONE, 3)
        assert await fetched(3) == (ErrorCode.NONE, 0)
        assert await fetched(4) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
        assert await fetched(0, epoch=0) == (ErrorCode.FENCED_LEADER_EPOCH, 0)
        assert await fetched(0, epoch=2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, 0)
        assert await fetched(0, version=10) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)

    scenario(run, tmp_path, body, is_rack_aware=True)


@pytest.mark.parametrize("is_rack_aware", [True, False])
def test_a_waiting_follower_that_is_read_from_learns_of_the_high_watermark_soon(
    run: Run, tmp_path: Path, is_rack_aware: bool
) -> None:
    async def body(broker: DataBroker) -> None:
        await replicated(broker)
        named = {"log_start_offset": 0, "current_leader_epoch": 0, "last_fetched_epoch": 0}
        sessions = {follower: Session(broker.connect(), 17, follower) for follower in (2, 3)}
        for session in sessions.values():
            await session.fetch(asked(0, 3, **named))
        for offset in range(4, 12):  # the first by the general path, later ones by the fast one
            await broker.produce("flights", b"more")
            first = await sessions[2].fetch(asked(0, offset - 1, **named), max_wait_ms=600_000)
            assert len(values(first[0])) == 1
            # The one has fetched it all and waits; then the other has, too, and the high watermark moves.
            waiting = asyncio.ensure_future(sessions[2].fetch(asked(0, offset, **named), max_wait_ms=600_000))
            while not broker.replicas.fetch_purgatory.delayed:
                await asyncio.sleep(0)
            await sessions[3].fetch(asked(0, offset, **named))
            if is_rack_aware:
                found = await waiting
                assert found[0].high_watermark == offset
            else:
                await asyncio.sleep(0.1)  # for what comes a little later than at once, and is not to come
                assert not waiting.done()
                waiting.cancel()
                break

    scenario(run, tmp_path, body, is_rack_aware=is_rack_aware)


def test_nothing_is_read_for_a_follower_that_went_before_it_was_told(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await replicated(broker)
        named = {"log_start_offset": 0, "current_leader_epoch": 0, "last_fetched_epoch": 0}
        caller = broker.connect()
        sessions = {2: Session(caller, 17, 2), 3: Session(broker.connect(), 17, 3)}
        for session in sessions.values():
            await session.fetch(asked(0, 3, **named))
        await broker.produce("flights", b"more")
        await sessions[2].fetch(asked(0, 3, **named), max_wait_ms=600_000)
        waiting = asyncio.ensure_future(sessions[2].fetch(asked(0, 4, **named), max_wait_ms=600_000))
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        await sessions[3].fetch(asked(0, 4, **named))
        await settled()
        reads = broker.topic_metrics.of("flights").fetch_requests.count
        waiting.cancel()
        caller.transport.close()
        await asyncio.sleep(0.03)
        assert broker.topic_metrics.of("flights").fetch_requests.count == reads

    scenario(run, tmp_path, body, is_rack_aware=True)
