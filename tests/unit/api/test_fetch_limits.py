"""`barnabas.api.fetch`: how much is given, how long a fetch waits for it, and what a client is told of transactions; by
the general path and by the fast one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.api.fetch_fast_path import FetchFastPath
from barnabas.serving.fetch import DelayedFetches
from barnabas.serving.fetch_sessions import FEW_PARTITIONS
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.messages import FetchResponse
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.topics import TopicPartition
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import DataBroker, batch
from tests.unit.api.fetching import Run, Session, asked, fetch_request, only, scenario, values
from tests.unit.log.verified import verified

VERSIONS = (11, 12, 17)
"""12 has the general path only."""
FLIGHTS = TopicPartition("flights", 0)
ONE = len(batch(bytes(1000)))


@pytest.fixture(name="taken_fast")
def _taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the fast path took each request that it was shown."""
    taken: list[bool] = []
    take = FetchFastPath.take

    def counted(path: FetchFastPath, *arguments: Any) -> bool:
        taken.append(take(path, *arguments))
        return taken[-1]

    monkeypatch.setattr(FetchFastPath, "take", counted)
    return taken


async def counts(caller: Caller, version: int, **options: Any) -> list[int]:
    """How many records come of each partition."""
    request = fetch_request(version, "flights", asked(0), asked(1), session_epoch=-1, **options)
    response: FetchResponse = await caller.call(request, version)
    return [len(values(data)) for data in response.responses[0].partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_response_is_larger_than_the_broker_allows(
    run: Run, tmp_path: Path, version: int, taken_fast: list[bool]
) -> None:
    """`fetch.max.bytes` of the broker, whatever the client would take."""

    async def body(broker: DataBroker) -> None:
        for number in range(2):
            broker.lead("flights", number)
            for _ in range(3):
                await broker.produce("flights", bytes(1000), number=number)
        caller = broker.connect()
        for _ in range(2):
            assert await counts(caller, version, max_bytes=1 << 30) == [3, 1]
            assert await counts(caller, version, max_bytes=2 * ONE) == [2, 0]
        assert any(taken_fast) == (version != 12)

    scenario(run, tmp_path, body, fetch_bytes_max=4 * ONE)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_does_not_wait_for_more_than_the_broker_allows(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(2):
            broker.lead("flights", number)
            for _ in range(3):
                await broker.produce("flights", bytes(1000), number=number)
        caller = broker.connect()
        limits = {"max_wait_ms": 600_000, "min_bytes": 1 << 20, "max_bytes": 1 << 30}
        for _ in range(2):
            assert await counts(caller, version, **limits) == [3, 1]

    scenario(run, tmp_path, body, fetch_bytes_max=4 * ONE)


Waiter = Callable[[DataBroker], Session]
READERS: dict[str, Waiter] = {
    "client 11": lambda broker: Session(broker.connect(), 11),
    "client 12": lambda broker: Session(broker.connect(), 12),
    "client 17": lambda broker: Session(broker.connect(), 17),
    "follower": lambda broker: Session(broker.connect(), 17, replica_id=2),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("epoch", [-1, 0])
@pytest.mark.parametrize("more", [0, 1])
def test_a_parked_fetch_waits_for_all_the_bytes_that_it_wants(
    run: Run, tmp_path: Path, reader: str, more: int, epoch: int, taken_fast: list[bool]
) -> None:
    """`fetch.min.bytes`: not one too few, no batch is counted twice, and the last byte ends the wait."""

    async def body(broker: DataBroker) -> None:
        for number in range(2):
            broker.lead("flights", number, isr=(1,), replicas=(1, 2))
        session = READERS[reader](broker)
        await session.fetch(asked(0, current_leader_epoch=epoch), asked(1, current_leader_epoch=epoch))
        assert await session.fetch() == {}
        limits: dict[str, Any] = {"max_wait_ms": 600_000, "min_bytes": 4 * ONE + more}
        session.caller.send(session.request(**limits), session.version)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        for number in (0, 0, 1):
            await broker.produce("flights", bytes(1000), number=number)
            assert session.caller.received() == []
        await broker.produce("flights", bytes(1000), number=1)
        if more:
            for _ in range(10):
                await asyncio.sleep(0)
            assert session.caller.received() == []
            await broker.produce("flights", b"", number=1)
        (response,) = await session.caller.responses(1)
        assert {number: len(values(data)) for number, data in session.take(response).items()} == {0: 2, 1: 2 + more}
        assert any(taken_fast) == (reader != "client 12")

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("more", [0, 1])
def test_a_fetch_of_very_many_partitions_waits_for_all_the_bytes_that_it_wants(
    run: Run, tmp_path: Path, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read and parked in steps, and counts what comes as a small one does."""
    seen: list[str] = []
    wait = DelayedFetches.wait

    async def watched(fetches: DelayedFetches, parameters: Any, scope: Any, in_steps: Any, when_lost: Any) -> None:
        async def all_steps(steps: Any) -> None:
            await in_steps(steps)
            seen.append("waits")

        await wait(fetches, parameters, scope, all_steps, when_lost)
        seen.append("has enough")

    monkeypatch.setattr(DelayedFetches, "wait", watched)

    async def body(broker: DataBroker) -> None:
        wanted = [asked(number) for number in range(FEW_PARTITIONS + 1)]
        first, last = 0, len(wanted) - 1
        for number in range(len(wanted)):
            broker.lead("flights", number)
        caller = broker.connect()
        limits: dict[str, Any] = {"max_wait_ms": 600_000, "min_bytes": 2 * ONE + more}
        caller.send(fetch_request(17, "flights", *wanted, session_epoch=-1, **limits), 17)
        while not seen:
            await asyncio.sleep(0)
        await broker.produce("flights", bytes(1000), number=last)
        if more:
            await broker.produce("flights", bytes(1000), number=first)
        for _ in range(10):
            await asyncio.sleep(0)
        assert seen == ["waits"]
        await broker.produce("flights", b"" if more else bytes(1000), number=first)
        (response,) = await caller.responses(1)
        counted = {data.partition_index: len(values(data)) for data in response.responses[0].partitions}
        assert {number: count for number, count in counted.items() if count} == {first: 1 + more, last: 1}

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_committed_reader_is_told_of_aborted_transactions(
    run: Run, tmp_path: Path, version: int, in_session: bool, waits: bool, taken_fast: list[bool]
) -> None:
    """Without that it would take aborted records for committed ones, whichever path its request takes."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        partition = broker.replicas.get_partition(FLIGHTS)

        def abort(producer_id: int) -> None:
            fields: dict[str, Any] = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": 0,
                "is_transactional": True,
            }
            with verified(partition.leader_log().producers, producer_id):
                partition.append(bytearray(batch(b"in doubt", **fields)), required_acks=1, produce_version=9)
            marker = EndTransactionMarker(ControlRecordType.ABORT, 1)
            partition.append(
                bytearray(end_transaction_batch(marker, timestamp_ms=1, producer_id=producer_id, producer_epoch=0)),
                required_acks=1,
                produce_version=None,
                origin=AppendOrigin.COORDINATOR,
            )

        await broker.produce("flights", b"zero")
        session = Session(broker.connect(), version)
        isolation: dict[str, Any] = {"isolation_level": 1}
        if not in_session:
            isolation["session_epoch"] = -1

        def request(offset: int, **options: Any) -> Any:
            fields = {"session_id": session.session_id, "session_epoch": session.epoch} | isolation | options
            return fetch_request(version, "flights", asked(offset=offset), **fields)

        for offset in (0, 1):  # what comes next is as usual
            response = await session.caller.call(request(offset), version)
            session.take(response)
        was_taken = len(taken_fast)
        if waits:
            session.caller.send(request(1, max_wait_ms=600_000), version)
            while not broker.replicas.fetch_purgatory.delayed:
                await asyncio.sleep(0)
            abort(7)
            await broker.written()
            (response,) = await session.caller.responses(1)
        else:
            abort(7)
            await broker.written()
            response = await session.caller.call(request(1), version)
        told = only(response).aborted_transactions
        assert told is not None
        assert [(each.producer_id, each.first_offset) for each in told] == [(7, 1)]
        assert values(only(response))[0] == b"in doubt"
        assert any(taken_fast[was_taken:]) == (version != 12)

    scenario(run, tmp_path, body)
