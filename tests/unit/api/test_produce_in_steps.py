"""Produce requests whose batches take longer to check than a turn of the loop may."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_host import RealClock
from barnabas.kernel.steps import StepRunner
from barnabas.leader.partition import Partition
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire import byte_work, record_validation
from barnabas.wire.compression import decompress
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import BROKER, DataBroker, batch, produce_request, produced
from tests.unit.api.test_produce import scenario, turns, two_partitions

Run = Callable[[Coroutine[Any, Any, Any]], Any]
NOW_MS = 1_700_000_000_000
COUNT = 40_000
ROOM = LogConfig(message_bytes_max=8 << 20)


def long_batch(codec: CompressionType = CompressionType.NONE, count: int = COUNT, **fields: Any) -> bytes:
    builder = RecordBatchBuilder(compression=Compression(codec), **fields)
    for _ in range(count):
        builder.append(NOW_MS, None, None)
    return bytes(builder.build())


def bomb(size_bytes: int) -> bytes:
    """A few thousand bytes."""
    builder = RecordBatchBuilder(compression=Compression(CompressionType.ZSTD))
    builder.append(NOW_MS, None, bytes(size_bytes))
    return bytes(builder.build())


def old_messages(count: int = COUNT) -> bytes:
    return write_messages(1, [Record(0, NOW_MS, None, b"")] * count, Compression())


LONG: dict[str, Callable[[], bytes]] = {
    "plain": long_batch,
    "compressed": partial(long_batch, CompressionType.LZ4),
    "inflates": partial(bomb, 30_000_000),
}
"""Made by the tests that send them: processes that only collect them have no use for them."""


def batches_of(partition: Partition) -> list[RecordBatch]:
    log = partition.log
    assert log is not None
    return [found for segment in log.segments for found in segment.batches() if isinstance(found, RecordBatch)]


async def answers(caller: Caller, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            await asyncio.sleep(0)
            found += caller.received()
    return [produced(response) for response in found]


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("knows_the_form", [False, True])
def test_appends_in_the_order_of_the_connection(run: Run, tmp_path: Path, kind: str, knows_the_form: bool) -> None:
    long = LONG[kind]()

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=ROOM)
        caller, other = broker.connect(), broker.connect()
        await other.call(produce_request("flights", batch(b"zero")), 9)  # the first write takes longer
        if knows_the_form:  # then the request would take the fast path
            await caller.call(produce_request("flights", batch(b"first")), 9)
        before = len(batches_of(partition))
        caller.send(produce_request("flights", batch(b"one")), 9)
        caller.send(produce_request("flights", long), 9)
        caller.send(produce_request("flights", batch(b"two")), 9)
        other.send(produce_request("flights", batch(b"meanwhile")), 9)
        assert (await answers(other, 1))[0].error_code == ErrorCode.NONE
        assert len(caller.received()) < 2, "the other client had to wait"
        await answers(caller, 0)
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while len(batches_of(partition)) < before + 4:
                await asyncio.sleep(0)
        sizes = [len(found.view) for found in batches_of(partition)][before:]
        assert sizes.index(len(batch(b"meanwhile"))) < sizes.index(len(long))
        sizes.remove(len(batch(b"meanwhile")))
        assert sizes == [len(batch(b"one")), len(long), len(batch(b"two"))]

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [2, 3, 9])
@pytest.mark.parametrize("acks", [1, -1])
def test_what_is_stored_is_what_one_turn_would_have_stored(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, acks: int
) -> None:
    config = dataclasses.replace(ROOM, message_timestamp_type="LogAppendTime", compression_type="gzip")

    async def body(broker: DataBroker) -> None:
        records = old_messages(5_000) if version == 2 else long_batch(producer_id=4, producer_epoch=1, base_sequence=0)
        partition = broker.lead("flights", config=config)
        at_once = broker.lead("trains", config=config)
        answer = produced(await broker.connect().call(produce_request("flights", records, 0, acks), version))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
        with monkeypatch.context() as patch:
            assert at_once.log is not None
            patch.setattr(RealClock, "time_ms", lambda _: answer.log_append_time_ms)
            at_once.append(bytearray(records), required_acks=1, produce_version=version)
        (stored,), (expected,) = batches_of(partition), batches_of(at_once)
        assert bytes(stored.view) == bytes(expected.view)
        metrics = broker.topic_metrics.of("flights")
        count = stored.header.record_count
        assert (metrics.messages_in.count, metrics.produce_conversions.count) == (count, count)

    scenario(run, tmp_path, body)


def test_an_idempotent_producers_batch_is_appended_once(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=ROOM)
        records = long_batch(producer_id=4, producer_epoch=1, base_sequence=0)
        caller, other = broker.connect(), broker.connect()
        for connection in (caller, other):  # sent again over another connection while the first is checked
            connection.send(produce_request("flights", records), 9)
        found = await answers(caller, 1) + await answers(other, 1)
        assert [(answer.error_code, answer.base_offset) for answer in found] == [(0, 0), (0, 0)]
        assert partition.log_end_offset == COUNT

    scenario(run, tmp_path, body)


@contextlib.contextmanager
def steps_held() -> Iterator[None]:
    """No step is done meanwhile, however many turns the loop has."""
    step = StepRunner._step
    held: list[StepRunner] = []

    def hold(runner: StepRunner) -> None:
        held.append(runner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepRunner, "_step", hold)
        yield
    for runner in held:
        asyncio.get_running_loop().call_soon(step, runner)


@pytest.mark.parametrize("event", ["leads no more", "newer epoch", "deleted and made again", "smaller batches only"])
def test_what_happens_between_the_steps_counts_at_the_append(run: Run, tmp_path: Path, event: str) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=ROOM)
        caller = broker.connect()
        caller.send(produce_request("flights", long_batch()), 9)
        await turns(3)
        assert partition.log is not None
        assert partition.log_end_offset == 0
        match event:
            case "leads no more":
                broker.lead("flights", leader=2, leader_epoch=1, isr=(2,), replicas=(BROKER, 2))
            case "newer epoch":
                broker.lead("flights", leader_epoch=7)
            case "deleted and made again":
                old = partition.log
                with steps_held():  # a disk may take longer than all of them
                    await broker.log_manager.delete_log(partition.topic_partition)
                partition.log = None
                partition.create_log(
                    lambda: broker.log_manager.get_or_create_log(
                        partition.topic_partition,
                        is_new=True,
                        topic_id=None,
                        config=dataclasses.replace(ROOM, compression_type="lz4"),
                    )
                )
                assert partition.log is not old
            case _:
                broker.log_manager.reconfigure("flights", LogConfig(message_bytes_max=10_000))
        (answer,) = await answers(caller, 1)
        stored = batches_of(partition) if partition.log is not None else []
        match event:
            case "leads no more":
                assert (answer.error_code, stored) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
            case "newer epoch":
                assert answer.error_code == ErrorCode.NONE
                assert [found.header.partition_leader_epoch for found in stored] == [7]
            case "deleted and made again":
                assert answer.error_code == ErrorCode.NONE
                assert [found.compression_type for found in stored] == [CompressionType.LZ4]
            case _:
                assert (answer.error_code, stored) == (ErrorCode.MESSAGE_TOO_LARGE, [])
        assert caller.connection.is_open

    scenario(run, tmp_path, body)


def test_rules_that_change_all_the_time_end_it(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=ROOM)
        caller = broker.connect()
        caller.send(produce_request("flights", long_batch()), 9)
        found: list[Any] = []
        sizes = 0
        while not found:
            await asyncio.sleep(0)
            sizes += 1
            broker.log_manager.reconfigure("flights", dataclasses.replace(ROOM, message_bytes_max=(4 << 20) + sizes))
            found = caller.received()
        assert produced(found[0]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log_end_offset == 0

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_bomb_is_refused(run: Run, tmp_path: Path, acks: int) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller = broker.connect()
        caller.send(produce_request("flights", bomb(150_000_000), 0, acks), 9, answered=bool(acks))
        if acks:
            assert (await answers(caller, 1))[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
        else:
            async with asyncio.timeout(60):
                while caller.connection.is_open:
                    await asyncio.sleep(0)
        assert partition.log_end_offset == 0

    scenario(run, tmp_path, body)


def test_short_batches_of_the_same_request_need_not_wait(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        first, second = broker.lead("flights", 0, config=ROOM), broker.lead("flights", 1)
        caller = broker.connect()
        caller.send(two_partitions("flights", long_batch(), batch(b"one")), 9)
        async with asyncio.timeout(60):
            while not second.log_end_offset:
                await asyncio.sleep(0)
            assert first.log_end_offset == 0
            while not (found := caller.received()):
                await asyncio.sleep(0)
        codes: Sequence[int] = [part.error_code for part in found[0].responses[0].partition_responses]
        assert (list(codes), first.log_end_offset) == ([0, 0], COUNT)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("end", ["answered", "connection lost", "refused", "stopped"])
def test_the_copy_is_counted_until_it_is_not_needed(run: Run, tmp_path: Path, end: str) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=ROOM)
        caller, frames = broker.connect(), broker.calls.memory.frames
        caller.send(produce_request("flights", long_batch()), 9)
        await turns(2)
        assert (frames.held, partition.log_end_offset) == (len(long_batch()), 0)
        match end:
            case "connection lost":
                caller.transport.close()
                assert frames.held
            case "refused":
                broker.lead("flights", leader=2, leader_epoch=1, isr=(2,), replicas=(BROKER, 2))
            case "stopped":
                await broker.calls.dispatcher.close()
        async with asyncio.timeout(60):
            while frames.held:
                await asyncio.sleep(0)
        await broker.written()
        assert partition.log_end_offset == (COUNT if end in ("answered", "connection lost") else 0)

    scenario(run, tmp_path, body)


def test_a_batch_that_takes_long_is_not_decompressed_again_and_again_in_one_turn(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = RecordBatchBuilder(compression=Compression(CompressionType.GZIP))
    builder.append(NOW_MS, None, random.Random(1).randbytes(50_000) + bytes(2_000_000))
    records = bytes(builder.build())

    async def body(broker: DataBroker) -> None:
        broker.lead("flights", config=ROOM)
        caller = broker.connect()
        await caller.call(produce_request("flights", batch(b"first")), 9)
        with monkeypatch.context() as patch:
            tried: list[int] = []

            def counted(data: Any, *arguments: Any, **named: Any) -> Any:
                tried.append(len(data))
                return decompress(data, *arguments, **named)

            for module in (record_validation, byte_work):
                patch.setattr(module, "decompress", counted)
            caller.send(produce_request("flights", records), 9)
            assert len(tried) == 2, "the fast path's attempt, and the general one's"
            await answers(caller, 1)
            assert len(tried) == 4, "in steps: another attempt, and then a thread"

    scenario(run, tmp_path, body)


def test_a_connection_that_ends_meanwhile_harms_nobody(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=ROOM)
        caller = broker.connect()
        caller.send(produce_request("flights", long_batch()), 9)
        await turns(2)
        caller.transport.close()
        async with asyncio.timeout(60):
            while partition.log_end_offset < COUNT:
                await asyncio.sleep(0)
        assert await broker.produce("flights", b"after") == COUNT

    scenario(run, tmp_path, body)
