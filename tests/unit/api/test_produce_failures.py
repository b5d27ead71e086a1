"""What a producer is told when something happens to the partition after its records were taken: frames in, frames out,
the same for requests that come alone, together, and of several partitions.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from barnabas.kernel.real_host import real_host
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.queued_log import QueuedLogFlusher
from barnabas.network.connection import ServerConnection
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ProduceResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.api.calling import Caller, KeepingTransport
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request, produced
from tests.unit.api.test_dispatch import error_counts
from tests.unit.api.test_produce import FailingFiles, Run, scenario, turns, two_partitions

SHAPES = ("alone", "two", "many", "of two partitions")
NO_OFFSETS = (-1, -1, -1)

WRITES = pytest.mark.parametrize("writes", ["loop", "offload"])


async def warmed(broker: DataBroker, version: int) -> Caller:
    """A connection that has produced one record to flights."""
    caller = broker.connect()
    assert produced(await caller.call(produce_request("flights", batch(b"first")), version)).error_code == 0
    return caller


def send(caller: Caller, shape: str, version: int, acks: int, timeout_ms: int = 30_000) -> int:
    """Sends requests for flights; returns how many."""
    if shape == "of two partitions":
        request = two_partitions("flights", batch(b"x"), batch(b"x"), acks=acks)
        request.timeout_ms = timeout_ms
        caller.send(request, version, answered=acks != 0)
        return 1
    count = {"alone": 1, "two": 2, "many": 20}[shape]
    with caller.kept_back() as kept:
        for number in range(count):
            records = batch(b"%d" % (number % 10) * (number + 1 if shape == "two" else 1))
            request = produce_request("flights", records, acks=acks, timeout_ms=timeout_ms)
            caller.send(request, version, answered=acks != 0)
    caller.send_bytes(bytes(kept))
    return count


def offsets(answer: ProduceResponse.PartitionProduceResponse) -> tuple[int, int, int]:
    return answer.base_offset, answer.log_append_time_ms, answer.log_start_offset


def first_of(response: ProduceResponse) -> ProduceResponse.PartitionProduceResponse:
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", [9, 10, 11])
@pytest.mark.parametrize("shape", SHAPES)
def test_who_waits_for_replicas_of_a_deposed_leader_hears_of_the_new_one(
    run: Run, tmp_path: Path, shape: str, version: int
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        broker.lead("flights", 1)
        caller = await warmed(broker, version)
        count = send(caller, shape, version, -1)
        while not broker.replicas.produce_purgatory.delayed:
            await asyncio.sleep(0)
        broker.lead("flights", leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        for number, response in enumerate(await caller.responses(count)):
            answer = first_of(response)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert offsets(answer) == (1 + number, -1, 0)
            if version < 10:
                continue
            assert answer.current_leader == ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
            assert response.node_endpoints == [
                ProduceResponse.NodeEndpoint(node_id=2, host="host-2", port=9093, rack="rack-2")
            ]

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", SHAPES)
def test_who_waits_for_replicas_in_vain_is_told_where_the_records_are(run: Run, tmp_path: Path, shape: str) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        broker.lead("flights", 1)
        caller = await warmed(broker, 9)
        count = send(caller, shape, 9, -1, timeout_ms=20)
        for number, response in enumerate(await caller.responses(count)):
            assert first_of(response).error_code == ErrorCode.REQUEST_TIMED_OUT
            assert offsets(first_of(response)) == (1 + number, -1, 0)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize(
    ("acks", "isr"), [(1, (1,)), (-1, (1,)), (-1, (1, 2))], ids=["acks 1", "acks all", "acks all of two"]
)
@pytest.mark.parametrize("flush_messages", [1 << 62, 1], ids=["unsynced", "synced"])
@pytest.mark.parametrize("shape", SHAPES)
@WRITES
def test_records_that_could_not_be_written_have_no_offset(
    run: Run, tmp_path: Path, shape: str, flush_messages: int, isr: Sequence[int], acks: int, writes: str
) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            files = FailingFiles(host.files)
            failing = dataclasses.replace(host, files=files)
            async with data_broker(failing, str(tmp_path / "good"), str(tmp_path / "bad"), writes=writes) as broker:
                broker.lead("flights", isr=isr, replicas=isr, config=LogConfig(flush_messages=flush_messages))
                broker.lead("flights", 1)
                caller = await warmed(broker, 9)
                files.broken = True
                for response in await caller.responses(send(caller, shape, 9, acks)):
                    assert first_of(response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    assert offsets(first_of(response)) == NO_OFFSETS
                files.broken = False

    run(main())


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("is_gone_before", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_appended_to_a_topic_that_the_controller_has_deleted(
    run: Run, tmp_path: Path, shape: str, acks: int, *, is_gone_before: bool
) -> None:
    """The controller tells all brokers that the topic is gone before it has its replicas deleted."""

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.lead("flights", 1)
        other, caller = await warmed(broker, 9), await warmed(broker, 9)
        if is_gone_before:
            tell_gone(broker)
        else:
            other.send(produce_request("flights", batch(b"beside")), 9)  # so that what follows does not come alone
        count = send(caller, shape, 9, acks)
        if not is_gone_before:
            tell_gone(broker)
        await turns()
        if acks:
            for response in await caller.responses(count):
                assert first_of(response).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert offsets(first_of(response)) == NO_OFFSETS
        else:
            assert caller.transport.closed
            assert "UNKNOWN_TOPIC_OR_PARTITION" in broker.calls.lines.lines[-1]
        if not is_gone_before:
            (response,) = await other.responses(1)
            assert produced(response).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert partition.log_end_offset == 2

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", ["alone", "beside another", "of two partitions"])
@pytest.mark.parametrize("is_deposed", [False, True])
def test_what_no_request_may_carry_is_told_before_what_is_wrong_with_the_partition(
    run: Run, tmp_path: Path, shape: str, *, is_deposed: bool
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", replicas=(1, 2), config=LogConfig(min_insync_replicas=2))
        broker.lead("flights", 1)
        other, caller = await warmed(broker, 9), await warmed(broker, 9)
        two_batches = batch(b"one") + batch(b"two")
        request = produce_request("flights", two_batches, acks=-1)
        if shape == "of two partitions":
            request = two_partitions("flights", two_batches, batch(b"x"), acks=-1)
        if shape == "beside another":
            other.send(produce_request("flights", batch(b"beside"), acks=-1), 9)
            caller.send(request, 9)
        if is_deposed:
            broker.lead("flights", leader=2, leader_epoch=1, isr=(2,), replicas=(1, 2))
        if shape != "beside another":
            caller.send(request, 9)
        (response,) = await caller.responses(1)
        assert first_of(response).error_code == ErrorCode.INVALID_RECORD
        assert offsets(first_of(response)) == NO_OFFSETS

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_leader_that_is_deposed_while_it_syncs_does_not_acknowledge(run: Run, tmp_path: Path, shape: str) -> None:
    """It was alone in the ISR, so that the records counted as replicated before they were synced."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1,), replicas=(1, 2), config=LogConfig(flush_messages=1))
        broker.lead("flights", 1)
        caller = await warmed(broker, 9)
        count = send(caller, shape, 9, -1)
        partition = broker.replicas.get_partition(TopicPartition("flights", 0))
        while partition.log is None or not partition.log.written.is_syncing:
            await asyncio.sleep(0)
        broker.lead("flights", leader=2, leader_epoch=1, isr=(2,), replicas=(1, 2))
        for number, response in enumerate(await caller.responses(count)):
            assert first_of(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert offsets(first_of(response)) == (1 + number, -1, 0)

    scenario(run, tmp_path, body)


@WRITES
@pytest.mark.parametrize(("acks", "isr", "queued"), [(1, (1, 2), 3), (-1, (1,), 3), (-1, (1, 2), 0)])
def test_requests_that_wait_for_the_disk_only_count_against_the_queue(
    run: Run, tmp_path: Path, acks: int, isr: Sequence[int], queued: int, writes: str
) -> None:
    """`queued.max.requests` bounds what waits for work of this broker; nobody is held up by followers."""

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", isr=isr, replicas=(1, 2), config=LogConfig(flush_messages=1))
        caller = await warmed(broker, 9)
        with caller.kept_back() as kept:
            for _ in range(3):
                caller.send(produce_request("flights", batch(b"x"), acks=acks), 9)
        caller.send_bytes(bytes(kept))
        while partition.log is None or not partition.log.written.is_syncing:
            await asyncio.sleep(0)
        assert (caller.connection.unanswered, broker.calls.queue.queued) == (3, queued)
        if queued:
            await caller.responses(3)
            assert broker.calls.queue.queued == 0

    scenario(run, tmp_path, body, writes)


@WRITES
@pytest.mark.parametrize(("acks", "isr", "queued"), [(0, (1, 2), 3), (1, (1, 2), 3), (-1, (1,), 3), (-1, (1, 2), 0)])
def test_requests_of_several_partitions_that_wait_for_the_disk_only_count_against_the_queue(
    run: Run, tmp_path: Path, acks: int, isr: Sequence[int], queued: int, writes: str
) -> None:
    """As those of one partition do: also where only one of the two is synced."""

    async def body(broker: DataBroker) -> None:
        first = broker.lead("flights", 0, isr=isr, replicas=(1, 2), config=LogConfig(flush_messages=1))
        broker.lead("flights", 1)
        caller = broker.connect()
        with caller.kept_back() as kept:
            for _ in range(3):
                request = two_partitions("flights", batch(b"x"), batch(b"x"), acks=acks)
                caller.send(request, 9, answered=acks != 0)
        caller.send_bytes(bytes(kept))
        while first.log is None or not first.log.written.is_syncing:
            await asyncio.sleep(0)
        assert (caller.connection.unanswered, broker.calls.queue.queued) == (3, queued)
        if queued:
            while caller.connection.unanswered:
                await asyncio.sleep(0)
            assert broker.calls.queue.queued == 0

    scenario(run, tmp_path, body, writes)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size_bytes", [4_000, 100_000])
def test_records_of_acks_0_are_not_kept_until_the_sync_ends(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int, count: int
) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=LogConfig(flush_messages=1))
        caller = await warmed(broker, 9)
        syncs: list[asyncio.Future[None]] = []

        def start_sync(_: LogFlusher) -> asyncio.Future[None]:
            syncs.append(asyncio.get_running_loop().create_future())
            return syncs[-1]

        monkeypatch.setattr(LogFlusher, "start_sync", start_sync)
        request = produce_request("flights", batch(b"x" * size_bytes), acks=0)

        async def send_many() -> None:
            for _ in range(50):
                with caller.kept_back() as kept:
                    for _ in range(count):
                        caller.send(request, 9, answered=False)
                caller.send_bytes(bytes(kept))
                await turns()

        await send_many()
        kept_views = -_count_views()
        tracemalloc.start()
        try:
            await send_many()
            kept_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        kept_views += _count_views()
        monkeypatch.undo()
        for sync in syncs:
            sync.set_result(None)
        await turns()
        assert partition.log_end_offset == 1 + 100 * count
        assert kept_bytes < 50 * count * size_bytes // 2
        assert kept_views < 50 * count // 2

    scenario(run, tmp_path, body)


def _count_views() -> int:
    """Of buffers, whose memory is not traced."""
    return sum(type(each) is memoryview for each in gc.get_objects())


class RememberingTransport(KeepingTransport):
    """Remembers the buffers that it was given beside what was in them then."""

    def __init__(self, connection: ServerConnection) -> None:
        super().__init__(connection)
        self.given: list[tuple[bytes | bytearray | memoryview, bytes]] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.given.append((data, bytes(data)))
        super().write(data)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_sync_that_fails_changes_no_answer_that_did_not_wait_for_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """What comes later in the same tick reaches `flush.messages`; what came before it needs the tick's write only."""
    disk_full = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    async def body(broker: DataBroker) -> None:
        broker.lead("flights", config=LogConfig(flush_messages=6))
        early, late = broker.connect("early"), broker.connect("late")
        for caller, its_acks in ((early, 1), (early, acks), (late, 1)):
            caller.send(produce_request("flights", batch(b"x"), acks=its_acks), 9, answered=its_acks != 0)
            await caller.responses(its_acks != 0)
            await turns()
        transport = early.transport = RememberingTransport(early.connection)
        early.connection.connection_made(transport)
        syncs: list[asyncio.Future[KafkaError | None]] = []

        def start_sync(_: LogFlusher) -> asyncio.Future[KafkaError | None]:
            syncs.append(asyncio.get_running_loop().create_future())
            return syncs[-1]

        monkeypatch.setattr(LogFlusher, "start_sync", start_sync)
        for caller, its_acks in ((early, acks), (late, 1)):
            with caller.kept_back() as kept:
                for _ in range(2):
                    request = produce_request("flights", batch(b"x"), acks=its_acks)
                    caller.send(request, 9, answered=its_acks != 0)
            caller.send_bytes(bytes(kept))
        await turns()
        told = [first_of(response).error_code for response in early.received()]
        assert (len(syncs), told) == (1, [0, 0] if acks else [])
        syncs[0].set_result(disk_full)
        for response in await late.responses(2):
            assert first_of(response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert [bytes(buffer) for buffer, _ in transport.given] == [sent for _, sent in transport.given]
        assert not transport.closed
        assert not early.received()
        assert error_counts(broker.calls, "Produce") == {"KAFKA_STORAGE_ERROR": 2, "NONE": 5}

    # By a queue all of them wait, until they are written.
    scenario(run, tmp_path, body, "loop")


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_requests_of_acks_0_that_wait_for_a_sync_have_their_places(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, *, is_broken: bool
) -> None:
    """They count against the queue meanwhile, and the connection reads on only so far: the disk bounds the producer."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights", config=LogConfig(flush_messages=1))
        caller = await warmed(broker, 9)
        syncs: list[asyncio.Future[KafkaError | None]] = []

        def start_sync(_: LogFlusher) -> asyncio.Future[KafkaError | None]:
            syncs.append(asyncio.get_running_loop().create_future())
            return syncs[-1]

        for kind in (LogFlusher, QueuedLogFlusher):
            monkeypatch.setattr(kind, "start_sync", start_sync)
        for _ in range(3):
            with caller.kept_back() as kept:
                for _ in range(count):
                    caller.send(produce_request("flights", batch(b"x"), acks=0), 9, answered=False)
            caller.send_bytes(bytes(kept))
            await turns()
        assert (caller.connection.unanswered, broker.calls.queue.queued) == (3 * count, 3 * count)
        monkeypatch.undo()
        syncs[0].set_result(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) if is_broken else None)
        while broker.calls.queue.queued:
            await asyncio.sleep(0)
        assert caller.transport.closed == is_broken
        if not is_broken:
            assert produced(await caller.call(produce_request("flights", batch(b"y")), 9)).base_offset == 1 + 3 * count

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("count", [1, 2])
def test_a_client_id_that_is_no_text_ends_the_connection(run: Run, tmp_path: Path, version: int, count: int) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller = broker.connect()
        with caller.kept_back() as kept:
            for _ in range(count):
                caller.send(produce_request("flights", batch(b"x")), version)
        caller.send_bytes(bytes(kept).replace(b"tests", b"\xf0ests"))
        await turns()
        assert caller.transport.closed
        assert partition.log_end_offset == 0

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("count", [1, 2])
def test_a_frame_that_ends_otherwise_than_those_before_it_is_read_anew(run: Run, tmp_path: Path, count: int) -> None:
    """Its last byte says that a tagged field comes, and there is none. The form of such a size is learnt."""

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller = await warmed(broker, 9)
        for _ in range(2):
            await caller.call(produce_request("flights", batch(b"x" * 200)), 9)
        with caller.kept_back() as kept:
            for _ in range(count):
                caller.send(produce_request("flights", batch(b"x" * 200)), 9)
        caller.send_bytes(bytes(kept[:-1]) + b"\1")
        await turns()
        assert caller.transport.closed
        assert partition.log_end_offset == 3 + count - 1

    scenario(run, tmp_path, body)


def tell_gone(broker: DataBroker) -> None:
    """The controller's word that it deletes the topic."""
    during_delete = -2
    broker.tell_metadata({TopicPartition("flights", number): (during_delete, 1, (1,), (1,)) for number in range(2)})
