"""`barnabas.api.fetch` outside of sessions, with real logs and replicas."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.metrics import Meter, MetricName
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.segments.reading import LogReader
from barnabas.log.segments.segment import ReadPlan
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.records import walk_batches
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import DataBroker, batch, produce_request
from tests.unit.api.fetching import Run, asked, fetch_request, only, scenario, values


@pytest.mark.parametrize("version", range(18))
def test_reads_in_every_version(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"one", b"two")
        await broker.produce("flights", b"three")
        caller = broker.connect()
        response: FetchResponse = await caller.call(fetch_request(version, "flights", asked()), version)
        data = only(response)
        assert (data.error_code, data.partition_index, data.high_watermark) == (0, 0, 3)
        assert values(data) == [b"one", b"two", b"three"]
        assert {span.magic for span in walk_batches(bytes(data.records or b"")).spans} == {
            0 if version <= 1 else 1 if version <= 3 else 2
        }
        assert (data.last_stable_offset, data.log_start_offset) == (
            3 if version >= 4 else -1,
            0 if version >= 5 else -1,
        )
        assert data.aborted_transactions is None or version < 4
        assert response.responses[0].topic == ("" if version >= 13 else "flights")
        data = only(await caller.call(fetch_request(version, "flights", asked(offset=2)), version))
        assert values(data) == [b"three"]
        metrics = broker.topic_metrics.of("flights")
        assert metrics.bytes_out.count > 0
        assert (metrics.fetch_conversions.count > 0) is (version <= 3)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [4, 17])
@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("flights", asked(offset=4), ErrorCode.OFFSET_OUT_OF_RANGE),
        ("flights", asked(offset=-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        ("flights", asked(number=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", asked(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("elsewhere", asked(), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_says_what_is_wrong_with_a_partition(
    run: Run, tmp_path: Path, version: int, topic: str, partition: FetchRequest.FetchPartition, code: ErrorCode
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.tell_metadata({("elsewhere", 0): (2, 5, (2,), (2,))})  # type: ignore[dict-item]
        await broker.produce("flights", b"one", b"two", b"three")
        response = await broker.connect().call(fetch_request(version, topic, partition), version)
        data = only(response)
        expected = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 and topic == "nowhere" else code
        assert (data.error_code, data.high_watermark, data.records) == (expected, -1, b"")
        if version == 17 and code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            assert data.current_leader == FetchResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
            assert [(node.node_id, node.port) for node in response.node_endpoints] == [(2, 9093)]

    scenario(run, tmp_path, body)


def test_checks_the_leader_epoch(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader_epoch=3)
        caller = broker.connect()
        codes = []
        for epoch in (2, 3, 4, -1):
            request = fetch_request(12, "flights", asked(current_leader_epoch=epoch))
            codes.append(only(await caller.call(request, 12)).error_code)
        assert codes == [ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH, 0]

    scenario(run, tmp_path, body)


def test_a_topic_id_that_is_not_the_logs_is_inconsistent(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.tell_metadata({("flights", 0): (1, 0, (1,), (1,))}, {"flights": b"?" * 16})  # type: ignore[dict-item]
        request = fetch_request(13, "flights", asked())
        request.topics[0].topic_id = b"?" * 16
        data = only(await broker.connect().call(request, 13))
        assert data.error_code == ErrorCode.INCONSISTENT_TOPIC_ID

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [2, 3, 12])
def test_bounds_bytes_but_for_the_first_batch(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(3):
            broker.lead("flights", number)
            await broker.produce("flights", bytes(1000), number=number)
            await broker.produce("flights", bytes(1000), number=number)
        caller = broker.connect()

        async def sizes(partition_max_bytes: int, max_bytes: int) -> list[int]:
            partitions = [asked(number, partition_max_bytes=partition_max_bytes) for number in range(3)]
            request = fetch_request(version, "flights", *partitions, max_bytes=max_bytes)
            response = await caller.call(request, version)
            return [len(values(data)) for data in response.responses[0].partitions]

        one = len(batch(bytes(1000)))
        assert await sizes(1 << 20, 1 << 20) == [2, 2, 2]
        assert await sizes(one, 1 << 20) == [1, 1, 1]
        if version >= 3:
            assert await sizes(1 << 20, 2 * one + 1) == [2, 0, 0]
            assert await sizes(1 << 20, 3 * one) == [2, 1, 0]
            assert await sizes(1, 1) == [1, 0, 0]
        else:
            # All that the client learns is that its limit is too small.
            request = fetch_request(version, "flights", asked(partition_max_bytes=one - 1))
            records = bytes(only(await caller.call(request, version)).records or b"")
            walk = walk_batches(records)
            assert (len(records), len(walk.spans)) == (12, 0)

    scenario(run, tmp_path, body)


def test_shows_clients_what_is_replicated_and_followers_everything(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        await broker.produce("flights", b"one")
        caller = broker.connect()
        assert values(only(await caller.call(fetch_request(12, "flights", asked()), 12))) == []
        follower = fetch_request(12, "flights", asked(), replica_id=2)
        data = only(await caller.call(follower, 12))
        assert (values(data), data.high_watermark) == ([b"one"], 0)
        data = only(await caller.call(fetch_request(15, "flights", asked(offset=1), replica_id=2), 15))
        assert (values(data), partition.high_watermark) == ([], 1)
        assert values(only(await caller.call(fetch_request(12, "flights", asked()), 12))) == [b"one"]
        committed = fetch_request(12, "flights", asked(), isolation_level=1)
        data = only(await caller.call(committed, 12))
        assert (values(data), data.aborted_transactions) == ([b"one"], [])
        stranger = fetch_request(12, "flights", asked(), replica_id=3)
        assert only(await caller.call(stranger, 12)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.topic_metrics.replication_bytes_out.count == len(batch(b"one"))
        for name, count in (("FetchFollower", 3), ("FetchConsumer", 3)):
            times: Any = broker.calls.metrics.get(
                MetricName("kafka.network", "RequestMetrics", "TotalTimeMs", (("request", name),))
            )
            assert times.snapshot().count == count
        # By the API only, as Kafka counts them: a sum over all requests must not have each twice.
        errors: dict[Any, Any] = {
            name.tags: found for name, found in broker.calls.metrics if name.name == "ErrorsPerSec"
        }
        counts = {
            dict(tags)["error"]: found.count for tags, found in errors.items() if dict(tags)["request"] == "Fetch"
        }
        assert counts == {"NOT_LEADER_OR_FOLLOWER": 1, "NONE": 5}
        assert {dict(tags)["request"] for tags in errors} <= {"Fetch", "Produce"}

    scenario(run, tmp_path, body)


def test_tells_a_follower_where_its_log_parts(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        await broker.produce("flights", b"one")
        broker.lead("flights", leader_epoch=5, isr=(1, 2), replicas=(1, 2))
        await broker.produce("flights", b"two")
        request = fetch_request(
            12,
            "flights",
            asked(offset=3, last_fetched_epoch=3, current_leader_epoch=5),
            replica_id=2,
            max_wait_ms=60_000,
        )
        data = only(await broker.connect().call(request, 12))
        assert data.error_code == 0
        assert data.diverging_epoch == FetchResponse.EpochEndOffset(epoch=0, end_offset=1)
        assert data.records == b""
        assert partition.high_watermark == 0

    scenario(run, tmp_path, body)


def test_a_client_reads_from_a_follower_since_version_11(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader=2, isr=(1, 2), replicas=(1, 2))
        caller = broker.connect()
        codes = [
            only(await caller.call(fetch_request(version, "flights", asked()), version)).error_code
            for version in (10, 11)
        ]
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]

    scenario(run, tmp_path, body)


def test_waits_for_enough_bytes(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.lead("flights", 1)
        await broker.produce("flights", b"one")
        size = len(batch(b"one"))
        caller = broker.connect()
        request = fetch_request(12, "flights", asked(offset=1), asked(1), max_wait_ms=600_000, min_bytes=2 * size)
        caller.send(request, 12)
        assert broker.replicas.fetch_purgatory.delayed == 0
        await broker.produce("flights", b"two")
        assert broker.replicas.fetch_purgatory.delayed == 1
        assert caller.received() == []
        await broker.produce("flights", b"six", number=1)
        (response,) = await caller.responses(1)
        assert [values(data) for data in response.responses[0].partitions] == [[b"two"], [b"six"]]
        assert broker.replicas.fetch_purgatory.delayed == 0
        assert not any(partition.watchers for partition in broker.replicas.partitions.values())

    scenario(run, tmp_path, body)


def test_one_response_takes_all_appends_of_a_tick(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"zero")
        producer, consumer = broker.connect(), broker.connect()
        consumer.send(fetch_request(12, "flights", asked(offset=1), max_wait_ms=600_000), 12)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        for value in (b"one", b"two", b"three"):
            producer.send(produce_request("flights", batch(value)), 9)
        (response,) = await consumer.responses(1)
        assert values(only(response)) == [b"one", b"two", b"three"]
        # They leave together: the consumer does not wait another tick.
        assert len(producer.received()) == 3

    scenario(run, tmp_path, body, writes="loop")


def test_answers_with_what_there_is_after_the_time_out(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"one")
        request = fetch_request(12, "flights", asked(), max_wait_ms=20, min_bytes=1 << 20)
        data = only(await broker.connect().call(request, 12))
        assert values(data) == [b"one"]
        expires = broker.calls.metrics.get(
            MetricName("kafka.server", "DelayedFetchMetrics", "ExpiresPerSec", (("fetcherType", "consumer"),))
        )
        assert isinstance(expires, Meter)
        assert expires.count == 1

    scenario(run, tmp_path, body)


def test_a_parked_fetch_hears_that_the_leader_was_deposed(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        caller = broker.connect()
        caller.send(fetch_request(10, "flights", asked(), max_wait_ms=600_000), 10)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        broker.lead("flights", leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        (response,) = await caller.responses(1)
        assert only(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    scenario(run, tmp_path, body)


def test_an_unknown_partition_does_not_end_the_wait_of_others(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        request = fetch_request(12, "flights", asked(), asked(7), max_wait_ms=600_000)
        caller.send(request, 12)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        await broker.produce("flights", b"one")
        (response,) = await caller.responses(1)
        codes = [data.error_code for data in response.responses[0].partitions]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [3, 12])
def test_reads_off_the_loop_what_is_not_cached(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"one")
        monkeypatch.setattr(LogReader, "read_cached", lambda *_: None)
        caller = broker.connect()
        caller.send(fetch_request(version, "flights", asked()), version)
        caller.send(fetch_request(version, "flights", asked(offset=1)), version)
        first, second = await caller.responses(2)
        assert (values(only(first)), values(only(second))) == ([b"one"], [])
        assert broker.log_manager.reader.cold_reads == 1

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_file_that_cannot_be_read_fails_its_partition_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_parked: bool
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.lead("flights", 1)
        await broker.produce("flights", b"one")
        read_cached = LogReader.read_cached

        def fail_once(reader: LogReader, plan: ReadPlan) -> memoryview | None:
            monkeypatch.setattr(LogReader, "read_cached", read_cached)
            raise OSError(errno.EIO, "the disk is broken")

        monkeypatch.setattr(LogReader, "read_cached", fail_once)
        caller = broker.connect()
        size = len(batch(b"one"))
        options: dict[str, Any] = {"max_wait_ms": 600_000, "min_bytes": 2 * size} if is_parked else {}
        caller.send(fetch_request(12, "flights", asked(), asked(1), **options), 12)
        await broker.produce("flights", b"two", number=1)
        (response,) = await caller.responses(1)
        first, second = response.responses[0].partitions
        assert (first.error_code, second.error_code) == (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE)
        assert values(second) == ([b"two"] if is_parked else [])

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_fetch_does_not_wait_for_longer_than_its_client(run: Run, tmp_path: Path, session_epoch: int) -> None:
    """A client may ask to wait for weeks, and ask again by another connection, as often as it likes."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        partition = broker.replicas.get_partition(TopicPartition("flights", 0))
        watchers = len(partition.watchers)
        caller = broker.connect()
        options: dict[str, Any] = {"max_wait_ms": 2**31 - 1, "session_epoch": session_epoch}
        caller.send(fetch_request(12, "flights", asked(), **options), 12)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        caller.connection.connection_lost(None)
        assert broker.replicas.fetch_purgatory.delayed == 0
        assert broker.replicas.fetch_purgatory.completed_count == 0
        if session_epoch < 0:  # a session lasts for longer than the connection
            assert len(partition.watchers) == watchers
        assert await broker.produce("flights", b"one") == 0
        await asyncio.sleep(0)
        assert caller.received() == []

    scenario(run, tmp_path, body)


def test_a_parked_fetch_is_answered_whatever_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("unforeseen")

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        caller.send(fetch_request(12, "flights", asked(), max_wait_ms=600_000), 12)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        monkeypatch.setattr(LogReader, "read_cached", fail)
        await broker.produce("flights", b"one")
        (response,) = await caller.responses(1)
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    scenario(run, tmp_path, body)


def test_conversions_go_off_the_loop(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", *(bytes(1000) for _ in range(40)), compression=CompressionType.GZIP)
        await broker.produce("flights", *(bytes(1000) for _ in range(40)))
        data = only(await broker.connect().call(fetch_request(1, "flights", asked()), 1))
        assert values(data) == [bytes(1000)] * 80

    scenario(run, tmp_path, body)


@pytest.mark.parametrize(
    ("config", "version", "code"),
    [
        (LogConfig(message_downconversion_enable=False), 3, ErrorCode.UNSUPPORTED_VERSION),
        (LogConfig(message_downconversion_enable=False), 4, ErrorCode.NONE),
        (LogConfig(compression_type="zstd"), 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (LogConfig(compression_type="zstd"), 10, ErrorCode.NONE),
    ],
)
def test_refuses_clients_that_are_too_old_for_the_topic(
    run: Run, tmp_path: Path, config: LogConfig, version: int, code: ErrorCode
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", config=config)
        await broker.produce("flights", b"one")
        data = only(await broker.connect().call(fetch_request(version, "flights", asked()), version))
        assert data.error_code == code
        assert bool(values(data)) is (code == ErrorCode.NONE)
        assert data.high_watermark == (1 if code == ErrorCode.NONE else -1)
        # That goes before what else is wrong.
        data = only(await broker.connect().call(fetch_request(version, "flights", asked(offset=7)), version))
        assert data.error_code == (code or ErrorCode.OFFSET_OUT_OF_RANGE)

    scenario(run, tmp_path, body)


def test_gives_old_consumers_what_comes_before_zstd(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"one")
        await broker.produce("flights", b"two", compression=CompressionType.ZSTD)
        caller = broker.connect()
        assert values(only(await caller.call(fetch_request(3, "flights", asked()), 3))) == [b"one"]
        data = only(await caller.call(fetch_request(3, "flights", asked(offset=1)), 3))
        assert (data.error_code, data.high_watermark) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1)

    scenario(run, tmp_path, body)
