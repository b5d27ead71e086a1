"""`barnabas.api.produce`, on its general path and on its fast one, with real logs and replicas."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.api.produce_fast_path import ProduceFastPaths
from barnabas.api.produce_pipeline import OpenAccess, ProduceKind, ProducePipeline
from barnabas.api.produce_responses import ProduceResponses
from barnabas.api.request_metrics import RequestMetrics
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.real_host import real_host
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire import codec
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import read_request_header
from barnabas.wire.messages import FetchRequest, ProduceRequest, ProduceResponse
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.record_conversion import down_convert
from barnabas.wire.topics import TopicPartition
from tests.support.writes import WRITES
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request, produced

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class FailingFiles:
    """Real files, until `broken` is set: then nothing is written any more."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        if self.broken and name in {"write", "writev", "pwrite"}:
            return self._fail
        return getattr(self._files, name)

    def _fail(self, *_: Any) -> int:
        raise OSError(errno.EIO, "the disk is broken")


def scenario(
    run: Run, path: Path, body: Callable[[DataBroker], Coroutine[Any, Any, None]], writes: str = WRITES
) -> None:
    async def main() -> None:
        async with (
            real_host("test", asyncio.get_running_loop()) as host,
            data_broker(host, str(path), writes=writes) as broker,
        ):
            await body(broker)

    run(main())


async def turns(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def two_partitions(topic: str, *records: bytes, acks: int = 1) -> ProduceRequest:
    """A request that has to take the general path."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=number, records=data)
                    for number, data in enumerate(records)
                ],
            )
        ],
    )


@pytest.mark.parametrize("version", range(12))
def test_appends_in_every_version(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        records = batch(b"one", b"two", b"three")
        if version < 3:
            records = down_convert(records, min(version, 1)).data
        caller = broker.connect()
        for expected in (0, 3, 6):
            answer = produced(await caller.call(produce_request("flights", records), version))
            assert (answer.error_code, answer.base_offset, answer.index) == (ErrorCode.NONE, expected, 0)
            assert answer.log_append_time_ms == -1
            assert answer.log_start_offset == (0 if version >= 5 else -1)
            assert answer.error_message is None
            assert answer.record_errors == []
        assert (caller.connection.fast_path is not None) is (version >= 3)
        assert partition.high_watermark == 9
        metrics = broker.topic_metrics.of("flights")
        assert (metrics.produce_requests.count, metrics.messages_in.count) == (3, 9)
        assert metrics.produce_conversions.count == (9 if version < 2 else metrics.produce_conversions.count)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", range(3, 12))
def test_both_ways_say_the_same_bytes(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", config=LogConfig(message_timestamp_type="LogAppendTime"))
        caller = broker.connect()
        caller.send(produce_request("flights", batch(b"one")), version)
        while not caller.transport.written:
            await asyncio.sleep(0)
        written = bytes(caller.transport.written)
        (response,) = caller.received()
        assert produced(response).log_append_time_ms > 0
        assert b"".join(codec.response_encoder(0, version)(1, response)) == written

    scenario(run, tmp_path, body)


def test_requests_of_one_tick_are_answered_in_order_with_their_offsets(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.lead("trains")
        callers = [broker.connect(), broker.connect()]
        for caller in callers:
            for topic in ("flights", "trains", "flights"):
                caller.send(produce_request(topic, batch(b"x")), 9)
        offsets = [[produced(response).base_offset for response in await caller.responses(3)] for caller in callers]
        assert offsets == [[0, 0, 1], [2, 1, 3]]

    scenario(run, tmp_path, body)


def test_acks_0_has_no_answer(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.lead("flights", 1)
        caller = broker.connect()
        caller.send(produce_request("flights", batch(b"one"), acks=0), 9, answered=False)
        caller.send(two_partitions("flights", batch(b"two"), batch(b"x"), acks=0), 9, answered=False)
        answer = produced(await caller.call(produce_request("flights", batch(b"three")), 9))
        assert answer.base_offset == 2
        assert partition.log_end_offset == 3

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("topic", ["nowhere", "flights"])
def test_an_error_with_acks_0_closes_the_connection(run: Run, tmp_path: Path, topic: str) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader=2, replicas=(1, 2), isr=(2,))
        caller = broker.connect()
        caller.send(produce_request(topic, batch(b"one"), acks=0), 9, answered=False)
        await turns()
        assert caller.transport.closed
        assert "acks 0 failed" in broker.calls.lines.lines[-1]

    scenario(run, tmp_path, body)


@pytest.mark.parametrize(
    ("topic", "records", "acks", "client_id", "code"),
    [
        ("nowhere", batch(b"x"), 1, "c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("flights", batch(b"x"), 2, "c", ErrorCode.INVALID_REQUIRED_ACKS),
        ("flights", batch(b"x"), -2, "c", ErrorCode.INVALID_REQUIRED_ACKS),
        ("flights", b"", 1, "c", ErrorCode.INVALID_RECORD),
        ("flights", None, 1, "c", ErrorCode.INVALID_RECORD),
        ("flights", batch(b"x") * 2, 1, "c", ErrorCode.INVALID_RECORD),
        ("flights", batch(b"x")[:-1] + b"?", 1, "c", ErrorCode.CORRUPT_MESSAGE),
        ("flights", batch(b"x" * 1_100_000), 1, "c", ErrorCode.MESSAGE_TOO_LARGE),
        ("flights", batch(b"x", timestamp_ms=1 << 50), 1, "c", ErrorCode.INVALID_TIMESTAMP),
        ("__consumer_offsets", batch(b"x"), 1, "c", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__consumer_offsets", batch(b"x"), 1, "__admin_client", ErrorCode.NONE),
        ("strict", batch(b"x"), -1, "c", ErrorCode.NOT_ENOUGH_REPLICAS),
        ("strict", batch(b"x"), 1, "c", ErrorCode.NONE),
    ],
)
def test_refuses_with_the_code_of_kafka(
    run: Run, tmp_path: Path, topic: str, records: bytes | None, acks: int, client_id: str, code: ErrorCode
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", config=LogConfig(message_timestamp_after_max_ms=1000))
        broker.lead("__consumer_offsets")
        broker.lead("strict", replicas=(1, 2), config=LogConfig(min_insync_replicas=2))
        caller = broker.connect(client_id)
        answer = produced(await caller.call(produce_request(topic, records, acks=acks), 9))
        assert answer.error_code == code
        assert answer.base_offset == (0 if code == ErrorCode.NONE else -1)
        names_records = code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in answer.record_errors] == ([0] if names_records else [])
        assert (answer.error_message is not None) is names_records

    scenario(run, tmp_path, body)


def test_names_the_leader_to_a_client_that_came_to_the_wrong_broker(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader=2, leader_epoch=7, replicas=(1, 2), isr=(2,))
        caller = broker.connect()
        response: ProduceResponse = await caller.call(produce_request("flights", batch(b"x")), 10)
        answer = produced(response)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader == ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
        assert response.node_endpoints == [
            ProduceResponse.NodeEndpoint(node_id=2, host="host-2", port=9093, rack="rack-2")
        ]

    scenario(run, tmp_path, body)


def test_a_leader_that_lost_its_role_says_so_on_the_fast_path_too(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", replicas=(1, 2), isr=(1, 2))
        caller = broker.connect()
        assert produced(await caller.call(produce_request("flights", batch(b"x")), 9)).error_code == 0
        assert caller.connection.fast_path is not None
        broker.lead("flights", leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
        answer = produced(await caller.call(produce_request("flights", batch(b"x")), 9))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.lead("flights", leader_epoch=2, replicas=(1, 2), isr=(1, 2))
        answer = produced(await caller.call(produce_request("flights", batch(b"x")), 9))
        assert (answer.error_code, answer.base_offset) == (0, 1)

    scenario(run, tmp_path, body)


def test_idempotent_producers_append_once(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller = broker.connect()

        async def send(sequence: int) -> tuple[int, int]:
            records = batch(b"x", b"y", producer_id=5, producer_epoch=0, base_sequence=sequence)
            answer = produced(await caller.call(produce_request("flights", records, acks=-1), 9))
            return answer.error_code, answer.base_offset

        assert [await send(0), await send(2), await send(0)] == [(0, 0), (0, 2), (0, 0)]
        assert await send(9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert partition.log_end_offset == 4

    scenario(run, tmp_path, body)


async def follow(caller: Caller, topic: str, offset: int, follower: int = 2) -> None:
    """A follower fetches from an offset, and so says what it has."""
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, log_start_offset=0, partition_max_bytes=1)
    request = FetchRequest(
        replica_id=follower,
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    assert (await caller.call(request, 12)).responses[0].partitions[0].error_code == 0


@pytest.mark.parametrize("general", [False, True])
def test_acks_all_waits_for_all_in_sync(run: Run, tmp_path: Path, *, general: bool) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2, 3), replicas=(1, 2, 3))
        broker.lead("flights", 1)
        caller, follower = broker.connect(), broker.connect()
        for value in (b"one", b"two"):
            request = (
                two_partitions("flights", batch(value), batch(value), acks=-1)
                if general
                else produce_request("flights", batch(value), acks=-1)
            )
            caller.send(request, 9)
        while not broker.replicas.produce_purgatory.delayed:
            await asyncio.sleep(0)
        assert caller.received() == []
        await follow(follower, "flights", 2, 2)
        await follow(follower, "flights", 1, 3)
        (first,) = await caller.responses(1)
        assert first.responses[0].partition_responses[0].base_offset == 0
        await follow(follower, "flights", 2, 3)
        (second,) = await caller.responses(1)
        assert second.responses[0].partition_responses[0].base_offset == 1
        assert broker.replicas.produce_purgatory.delayed == 0

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("general", [False, True])
def test_acks_all_gives_up_after_the_producers_time_out(run: Run, tmp_path: Path, *, general: bool) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        broker.lead("flights", 1)
        request = produce_request("flights", batch(b"x"), acks=-1)
        if general:
            request = two_partitions("flights", batch(b"x"), batch(b"x"), acks=-1)
        request.timeout_ms = 20
        response = await broker.connect().call(request, 9)
        answers = response.responses[0].partition_responses
        assert [answer.error_code for answer in answers] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE][
            : len(answers)
        ]
        assert answers[0].base_offset == 0

    scenario(run, tmp_path, body)


def test_acks_all_hears_that_the_leader_was_deposed(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        caller = broker.connect()
        caller.send(produce_request("flights", batch(b"x"), acks=-1), 9)
        await turns()
        broker.lead("flights", leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        (response,) = await caller.responses(1)
        assert produced(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("general", [False, True])
def test_a_write_that_fails_is_not_acknowledged(run: Run, tmp_path: Path, acks: int, *, general: bool) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            files = FailingFiles(host.files)
            failing = dataclasses.replace(host, files=files)
            async with data_broker(failing, str(tmp_path / "good"), str(tmp_path / "bad")) as broker:
                broker.lead("flights")
                broker.lead("flights", 1)
                caller = broker.connect()
                assert produced(await caller.call(produce_request("flights", batch(b"x")), 9)).error_code == 0
                files.broken = True
                request = produce_request("flights", batch(b"y"), acks=acks)
                if general:
                    request = two_partitions("flights", batch(b"y"), batch(b"y"), acks=acks)
                caller.send(request, 9, answered=bool(acks))
                if acks:
                    (response,) = await caller.responses(1)
                    assert response.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    while not caller.transport.closed:
                        await asyncio.sleep(0)
                files.broken = False

    run(main())


def test_what_fails_unexpectedly_ends_its_connections_and_leaves_others_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(broker: DataBroker) -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["message"]))
        broker.lead("flights")
        broker.lead("airports")
        callers = [broker.connect() for _ in range(3)]
        topics = ("flights", "flights", "airports")
        for caller, topic in zip(callers, topics, strict=True):
            assert produced(await caller.call(produce_request(topic, batch(b"one")), 9)).error_code == 0
        acknowledge = ProducePipeline._acknowledge

        def fail_for_flights(pipeline: ProducePipeline, kind: ProduceKind, *rest: Any) -> None:
            if kind.topic_partition.topic == "flights":
                raise RuntimeError("unforeseen")
            acknowledge(pipeline, kind, *rest)

        monkeypatch.setattr(ProducePipeline, "_acknowledge", fail_for_flights)
        for caller, topic in zip(callers, topics, strict=True):
            caller.send(produce_request(topic, batch(b"two")), 9)
        (response,) = await callers[2].responses(1)
        assert produced(response).base_offset == 1
        assert [caller.transport.closed for caller in callers] == [True, True, False]
        assert len(reported) == 1

    scenario(run, tmp_path, body)


def test_flush_messages_1_answers_after_the_sync(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", config=LogConfig(flush_messages=1))
        answer = produced(await broker.connect().call(produce_request("flights", batch(b"x")), 9))
        assert answer.error_code == 0
        assert partition.log is not None
        assert partition.log.recovery_point == 1

    scenario(run, tmp_path, body)


FRAMES = st.tuples(
    st.integers(3, 11),
    st.sampled_from(["flights", "a", "x" * 126, "x" * 127, "x" * 200]),
    st.integers(-3, 3),
    st.sampled_from(
        [batch(b"v"), batch(b"v" * 300), batch(b"v" * 20_000), batch(b"v", compression=CompressionType.LZ4)]
    ),
    st.one_of(st.none(), st.text(max_size=200)),
)


class OnePartition:
    """Replicas of which every partition is one, for a fast path that appends nothing."""

    def find_partition(self, topic_partition: TopicPartition) -> Any:
        return topic_partition

    principal = "User:ANONYMOUS"
    address = "127.0.0.1"
    access = OpenAccess()


CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2)


@given(FRAMES, CHANGES, CHANGES, st.integers(-2, 2))
def test_the_fast_path_reads_what_the_codec_reads(
    frame: tuple[int, str, int, bytes, str | None],
    changes: list[tuple[int, int]],
    later_changes: list[tuple[int, int]],
    cut: int,
) -> None:
    """Of a frame from which it is learnt, and of one that is compared with it."""
    version, topic, acks, records, client_id = frame
    request = produce_request(topic, records, number=3, acks=acks)
    sent = bytearray(b"".join(codec.request_encoder(0, version, client_id)(7, request))[4:])
    nothing: Any = OnePartition()
    paths = ProduceFastPaths(nothing, ProduceResponses(nothing, nothing), nothing, nothing, float)
    paths.count_by(RequestMetrics(MetricsRegistry(float), "Produce"))

    def changed(data: bytearray, places: list[tuple[int, int]]) -> bytearray:
        data = bytearray(data)
        for place, value in places:
            if place < len(data):
                data[place] = value
        return data

    first = changed(sent, changes)
    path = None
    for number, data in enumerate((first, first, changed(first, later_changes))):
        if number == 2 and cut:
            data = data[:cut] if cut < 0 else data + bytes(cut)
        try:
            _, found_version, correlation_id, found_client_id, position = read_request_header(data, 0, len(data))
        except ProtocolError:
            return
        if path is None:
            if found_version != version or struct.unpack_from(">h", data)[0] != 0:
                return
            path = paths.find(nothing, data, 0, position, len(data), version)
            if not changes:
                assert (path is not None) == (len(topic) <= 126 or version < 9)
            if path is None:
                return
        found = path._request(nothing, data, 0, len(data), 4096)
        if found is None:
            assert number or changes
            continue
        assert struct.unpack_from(">hh", data) == (0, version)
        decoded, end = codec.request_decoder(0, version)(data, position, len(data))
        assert end == len(data)
        assert found[1] == correlation_id
        kind = path.kind
        assert (kind.client_id, kind.api_version) == (found_client_id, found_version)
        topic_name, index = kind.topic_partition
        read = produce_request(topic_name, bytes(found[2]), index, kind.acks, kind.timeout_ms)
        assert decoded == read
        assert found[2][16] == 2
        assert not found[2][22] & 0x30
