"""Metadata, ListOffsets, OffsetForLeaderEpoch, DeleteRecords and the Describe requests of data, with real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.api.metadata import _divided
from barnabas.kernel.real_host import real_host
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.log.partition.log_config import LogConfig
from barnabas.serving.list_offsets import offsets_before
from barnabas.wire import catalogue
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    DeleteRecordsRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from tests.unit.api.data_broker import CLUSTER_ID, DataBroker, batch, data_broker, produce_request, topic_id

Run = Callable[[Coroutine[Any, Any, Any]], Any]
NOT_ASKED = -(2**31)


def scenario(
    run: Run, path: Path, body: Callable[[DataBroker], Coroutine[Any, Any, None]], *, is_told: bool = True
) -> None:
    async def main() -> None:
        async with (
            real_host("test", asyncio.get_running_loop()) as host,
            data_broker(host, str(path), is_told=is_told) as broker,
        ):
            await body(broker)

    run(main())


def by_name(*names: str) -> list[MetadataRequest.MetadataRequestTopic]:
    return [MetadataRequest.MetadataRequestTopic(name=name) for name in names]


def test_metadata_waits_until_a_controller_has_told_of_the_cluster(run: Run, tmp_path: Path) -> None:
    """A client that was told that its topic does not exist would give up, by a broker that only does not know yet."""

    async def body(broker: DataBroker) -> None:
        caller = broker.connect()
        asked = asyncio.ensure_future(caller.call(MetadataRequest(topics=by_name("flights")), 9))
        done, _ = await asyncio.wait([asked], timeout=0.05)
        assert not done
        broker.lead("flights")
        broker.told.set_result(None)
        (topic,) = (await asked).topics
        assert (topic.name, topic.error_code, len(topic.partitions)) == ("flights", ErrorCode.NONE, 1)
        assert broker.creation.asked == []

    scenario(run, tmp_path, body, is_told=False)


def test_metadata_does_not_wait_for_a_controller_for_ever(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.api.metadata.TOLD_SECONDS_MAX", 0.01)

    async def body(broker: DataBroker) -> None:
        for enabled, code in ((False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (True, ErrorCode.LEADER_NOT_AVAILABLE)):
            broker.creation.enabled = enabled
            response = await broker.connect().call(MetadataRequest(topics=by_name("flights")), 9)
            assert response.topics[0].error_code == code

    scenario(run, tmp_path, body, is_told=False)


@pytest.mark.parametrize("version", range(13))
def test_metadata_in_every_version(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader_epoch=4, isr=(1, 2), replicas=(1, 2, 3))
        broker.tell_metadata({("__consumer_offsets", 0): (9, 1, (9,), (9,))})  # type: ignore[dict-item]
        caller = broker.connect()
        response = await caller.call(MetadataRequest(topics=by_name("flights", "__consumer_offsets")), version)
        assert [(node.node_id, node.host, node.port) for node in response.brokers] == [
            (1, "host-1", 9092),
            (2, "host-2", 9093),
            (3, "host-3", 9094),
        ]
        assert [node.rack for node in response.brokers] == (
            ["rack-1", "rack-2", "rack-3"] if version >= 1 else [None] * 3
        )
        assert response.controller_id == (2 if version >= 1 else -1)
        assert response.cluster_id == (CLUSTER_ID if version >= 2 else None)
        flights, offsets = response.topics
        (partition,) = flights.partitions
        assert (flights.error_code, flights.name, flights.is_internal) == (0, "flights", False)
        assert (partition.error_code, partition.leader_id, partition.replica_nodes) == (0, 1, [1, 2, 3])
        assert partition.isr_nodes == [1, 2]
        assert partition.leader_epoch == (4 if version >= 7 else -1)
        assert flights.topic_id == (topic_id("flights") if version >= 10 else bytes(16))
        assert flights.topic_authorized_operations == NOT_ASKED
        assert offsets.is_internal is (version >= 1)
        assert offsets.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        everything = MetadataRequest(topics=[] if version == 0 else None)
        assert len((await caller.call(everything, version)).topics) == 2
        if version:
            assert (await caller.call(MetadataRequest(topics=[]), version)).topics == []

    scenario(run, tmp_path, body)


def test_metadata_by_topic_id(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        known = MetadataRequest.MetadataRequestTopic(topic_id=topic_id("flights"), name=None)
        unknown = MetadataRequest.MetadataRequestTopic(topic_id=b"?" * 16, name=None)
        response = await caller.call(MetadataRequest(topics=[known, unknown, *by_name("ignored")]), 12)
        assert [(topic.error_code, topic.name) for topic in response.topics] == [
            (ErrorCode.UNKNOWN_TOPIC_ID, None),
            (0, "flights"),
        ]
        assert response.topics[0].topic_id == b"?" * 16
        response = await caller.call(MetadataRequest(topics=[known]), 11)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]
        assert broker.creation.asked == []

    scenario(run, tmp_path, body)


def test_metadata_makes_missing_topics_where_all_agree(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()

        async def codes(*names: str, version: int = 9, **options: Any) -> list[int]:
            response = await caller.call(MetadataRequest(topics=by_name(*names), **options), version)
            return [topic.error_code for topic in response.topics]

        assert await codes("flights", "new", "new") == [0, ErrorCode.LEADER_NOT_AVAILABLE]
        assert broker.creation.asked == ["new"]
        asked = {"allow_auto_topic_creation": False}
        assert await codes("other", "b?d", **asked) == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        broker.creation.enabled = False
        assert await codes("other") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert broker.creation.asked == ["new"]

    scenario(run, tmp_path, body)


def test_whether_topics_may_be_described_is_asked_in_steps_alone() -> None:
    """Anybody may name millions; what goes through them more than once does it in one turn."""
    decisions: Any = SimpleNamespace(allow_all=False, allow=lambda name: name.startswith("a"))
    names: Any = iter(["a1", "b1"] * 5 * STEP_ELEMENTS)
    found: list[Any] = []

    def whole() -> Steps[None]:
        found.extend((yield from _divided(names, decisions)))

    assert len(list(whole())) == 10
    assert found == [["a1"] * 5 * STEP_ELEMENTS, ["b1"] * 5 * STEP_ELEMENTS]


@pytest.mark.parametrize("version", [8, 10, 12])
def test_metadata_says_what_a_client_may_do(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        request = MetadataRequest(topics=by_name("flights"), include_topic_authorized_operations=True)
        request.include_cluster_authorized_operations = version <= 10
        response = await broker.connect().call(request, version)
        assert response.topics[0].topic_authorized_operations == 3576
        if version >= 12:  # nobody may do anything with an id that no topic has
            request.topics = [MetadataRequest.MetadataRequestTopic(name=None, topic_id=bytes(range(16)))]
            (unknown,) = (await broker.connect().call(request, version)).topics
            assert (unknown.error_code, unknown.topic_authorized_operations) == (ErrorCode.UNKNOWN_TOPIC_ID, NOT_ASKED)
        expected = 8096 if version <= 10 else NOT_ASKED
        assert response.cluster_authorized_operations == expected

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [0, 1])
def test_describe_cluster(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        caller = broker.connect()
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        response = await caller.call(request, version)
        assert (response.error_code, response.cluster_id, response.controller_id) == (0, CLUSTER_ID, 2)
        assert [(node.broker_id, node.port, node.rack) for node in response.brokers] == [
            (1, 9092, "rack-1"),
            (2, 9093, "rack-2"),
            (3, 9094, "rack-3"),
        ]
        assert response.cluster_authorized_operations == 8096
        broker.tell_metadata({}, alive=(1, 3))
        response = await caller.call(DescribeClusterRequest(), version)
        assert (response.controller_id, response.cluster_authorized_operations) == (-1, NOT_ASKED)
        if version:
            response = await caller.call(DescribeClusterRequest(endpoint_type=2), 1)
            assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
            response = await caller.call(DescribeClusterRequest(endpoint_type=9), 1)
            assert response.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE

    scenario(run, tmp_path, body)


def list_offsets(
    *asked: tuple[int, int], replica_id: int = -1, isolation_level: int = 0, **options: Any
) -> ListOffsetsRequest:
    """`asked`: partition and timestamp."""
    return ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="flights",
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=number, timestamp=timestamp, **options)
                    for number, timestamp in asked
                ],
            )
        ],
    )


async def listed(broker: DataBroker, request: ListOffsetsRequest, version: int) -> list[tuple[int, int, int, int]]:
    """Code, timestamp, offset, leader epoch."""
    response = await broker.connect().call(request, version)
    return [
        (found.error_code, found.timestamp, found.offset, found.leader_epoch) for found in response.topics[0].partitions
    ]


@pytest.mark.parametrize("version", range(1, 10))
def test_list_offsets_by_time_and_place(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader_epoch=3)
        for at in (1000, 3000, 2000):
            await broker.produce("flights", b"x", timestamp_ms=at)
        epoch = 3 if version >= 4 else -1

        async def one(timestamp: int) -> tuple[int, int, int, int]:
            return (await listed(broker, list_offsets((0, timestamp)), version))[0]

        assert await one(-1) == (0, -1, 3, epoch)
        assert await one(-2) == (0, -1, 0, epoch)
        assert await one(1000) == (0, 1000, 0, epoch)
        assert await one(1001) == (0, 3000, 1, epoch)
        assert await one(3001) == (0, -1, -1, -1)
        unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)
        assert await one(-3) == ((0, 3000, 1, epoch) if version >= 7 else unsupported)
        assert await one(-4) == ((0, -1, 0, epoch) if version >= 8 else unsupported)
        assert await one(-5) == ((0, -1, -1, -1) if version >= 9 else unsupported)
        assert await one(-6) == unsupported

    scenario(run, tmp_path, body)


def test_list_offsets_before_version_1(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        one = len(batch(bytes(1000)))
        broker.lead("flights", config=LogConfig(segment_bytes=2 * one))
        for _ in range(5):
            await broker.produce("flights", bytes(1000))
        caller = broker.connect()

        async def old(timestamp: int, count: int) -> tuple[int, list[int]]:
            response = await caller.call(list_offsets((0, timestamp), max_num_offsets=count), 0)
            (found,) = response.topics[0].partitions
            return found.error_code, found.old_style_offsets

        assert await old(-1, 10) == (0, [5, 4, 2, 0])
        assert await old(-1, 2) == (0, [5, 4])
        assert await old(-2, 10) == (0, [0])
        assert await old(1, 10) == (0, [])
        assert await old(1 << 50, 10) == (0, [5, 4, 2, 0])
        assert await old(-3, 1) == (ErrorCode.UNSUPPORTED_VERSION, [])

    scenario(run, tmp_path, body)


def test_list_offsets_before_version_1_knows_segments_that_are_yet_to_be_made(run: Run, tmp_path: Path) -> None:
    """Where writes leave the loop their files are made later."""

    async def main() -> None:
        path = str(tmp_path / "log")
        async with (
            real_host("test", asyncio.get_running_loop()) as host,
            data_broker(host, path, writes="offload") as broker,
        ):
            partition = broker.lead("flights")
            assert partition.log is not None
            assert not host.files.exists(partition.log.segments.active.path)
            assert offsets_before(partition, 0, -1, 10, is_client=True, leader_only=True) == [0]

    run(main())


def test_list_offsets_shows_who_asks_as_much_as_he_may_see(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        await broker.produce("flights", b"x", timestamp_ms=1000)
        assert await listed(broker, list_offsets((0, -1)), 9) == [(0, -1, 0, 0)]
        assert await listed(broker, list_offsets((0, -1), isolation_level=1), 9) == [(0, -1, 0, 0)]
        assert await listed(broker, list_offsets((0, -1), replica_id=2), 9) == [(0, -1, 1, 0)]
        assert await listed(broker, list_offsets((0, 1000)), 9) == [(0, -1, -1, -1)]
        assert await listed(broker, list_offsets((0, 1000), replica_id=2), 9) == [(0, 1000, 0, 0)]
        broker.lead("flights", leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        for timestamp in (-1, 1000):
            for version, code in ((5, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)):
                assert await listed(broker, list_offsets((0, timestamp)), version) == [(code, -1, -1, -1)]
        assert (await listed(broker, list_offsets((0, -2)), 5))[0][0] == 0

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("timestamp", [-1, -2])
def test_list_offsets_says_what_is_wrong(run: Run, tmp_path: Path, timestamp: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader_epoch=2)
        broker.lead("flights", 1, leader=2, replicas=(1, 2), isr=(1, 2))
        found = await listed(broker, list_offsets((0, timestamp), (7, timestamp), (1, timestamp)), 9)
        assert [each[0] for each in found] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ]
        assert [each[0] for each in await listed(broker, list_offsets((1, timestamp), replica_id=-2), 9)] == [0]
        twice = await listed(broker, list_offsets((0, timestamp), (0, timestamp)), 9)
        assert [each[0] for each in twice] == [ErrorCode.INVALID_REQUEST] * 2
        old = await listed(broker, list_offsets((0, timestamp), current_leader_epoch=1), 9)
        assert [each[0] for each in old] == [ErrorCode.FENCED_LEADER_EPOCH]

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", range(5))
def test_offset_for_leader_epoch(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", leader_epoch=1)
        await broker.produce("flights", b"x", b"y")
        broker.lead("flights", leader_epoch=4)
        await broker.produce("flights", b"z")
        caller = broker.connect()

        async def ends(number: int, epoch: int, current: int = -1) -> tuple[int, int, int]:
            asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=number, leader_epoch=epoch, current_leader_epoch=current
            )
            request = OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="flights", partitions=[asked])],
            )
            (found,) = (await caller.call(request, version)).topics[0].partitions
            return found.error_code, found.leader_epoch, found.end_offset

        hidden = version == 0
        assert await ends(0, 1) == (0, -1 if hidden else 1, 2)
        assert await ends(0, 3) == (0, -1 if hidden else 1, 2)
        assert await ends(0, 4) == (0, -1 if hidden else 4, 3)
        assert await ends(0, 5) == (0, -1, -1)
        assert await ends(9, 1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        if version >= 2:
            assert await ends(0, 1, 3) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)

    scenario(run, tmp_path, body)


def delete_records(*offsets: tuple[int, int], topic: str = "flights", timeout_ms: int = 30_000) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        timeout_ms=timeout_ms,
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsRequest.DeleteRecordsPartition(partition_index=number, offset=offset)
                    for number, offset in offsets
                ],
            )
        ],
    )


async def deleted(broker: DataBroker, request: DeleteRecordsRequest, version: int = 2) -> list[tuple[int, int]]:
    """Code and low watermark."""
    response = await broker.connect().call(request, version)
    return [(found.error_code, found.low_watermark) for found in response.topics[0].partitions]


@pytest.mark.parametrize("version", range(3))
def test_deletes_records(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.lead("flights", 1)
        broker.lead("__consumer_offsets")
        await broker.produce("flights", b"one", b"two", b"three")
        assert await deleted(broker, delete_records((0, 2), (1, 0)), version) == [(0, 2), (0, 0)]
        assert partition.log_start_offset == 2
        assert await deleted(broker, delete_records((0, 4)), version) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        assert await deleted(broker, delete_records((0, -2)), version) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        assert await deleted(broker, delete_records((0, -1), (9, 1)), version) == [
            (0, 3),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        internal = delete_records((0, 0), topic="__consumer_offsets")
        assert await deleted(broker, internal, version) == [(ErrorCode.INVALID_TOPIC_EXCEPTION, -1)]

    scenario(run, tmp_path, body)


def test_compacted_topics_keep_their_records(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", config=LogConfig(cleanup_policy=("compact",)))
        assert await deleted(broker, delete_records((0, 0))) == [(ErrorCode.POLICY_VIOLATION, -1)]

    scenario(run, tmp_path, body)


def test_deletion_waits_for_the_replicas(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        await broker.produce("flights", b"one", b"two")
        follower, caller = broker.connect(), broker.connect()

        async def follow(log_start_offset: int) -> None:
            partition = FetchRequest.FetchPartition(
                partition=0, fetch_offset=2, log_start_offset=log_start_offset, partition_max_bytes=1
            )
            topic = FetchRequest.FetchTopic(topic="flights", partitions=[partition])
            await follower.call(FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=[topic]), 12)

        await follow(0)
        assert await deleted(broker, delete_records((0, 1), timeout_ms=20)) == [(ErrorCode.REQUEST_TIMED_OUT, 0)]
        caller.send(delete_records((0, 2)), 2)
        while not broker.replicas.delete_records_purgatory.delayed:
            await asyncio.sleep(0)
        await follow(1)
        assert caller.received() == []
        await follow(2)
        (response,) = await caller.responses(1)
        (found,) = response.topics[0].partitions
        assert (found.error_code, found.low_watermark) == (0, 2)

    scenario(run, tmp_path, body)


def test_describes_producers(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        records = batch(b"x", b"y", timestamp_ms=1000, producer_id=7, producer_epoch=2, base_sequence=0)
        caller = broker.connect()
        await caller.call(produce_request("flights", records), 9)
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0, 5])
                for name in ("flights", "nowhere", "b?d")
            ]
        )
        response = await caller.call(request, 0)
        codes = {topic.name: [each.error_code for each in topic.partitions] for topic in response.topics}
        assert codes == {
            "flights": [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "nowhere": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2,
            "b?d": [ErrorCode.INVALID_TOPIC_EXCEPTION] * 2,
        }
        (producer,) = response.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 1)
        assert (producer.last_timestamp, producer.current_txn_start_offset) == (1000, -1)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", range(5))
def test_describes_log_directories(run: Run, tmp_path: Path, version: int) -> None:
    async def main() -> None:
        paths = [str(tmp_path / name) for name in ("one", "two")]
        async with real_host("test", asyncio.get_running_loop()) as host, data_broker(host, *paths) as broker:
            partition = broker.lead("flights")
            broker.lead("trains")
            await broker.produce("flights", b"x")
            caller = broker.connect()
            response = await caller.call(DescribeLogDirsRequest(topics=None), version)
            assert [result.log_dir for result in response.results] == paths
            found = {
                topic.name: (each.partition_index, each.partition_size, each.offset_lag, each.is_future_key)
                for result in response.results
                for topic in result.topics
                for each in topic.partitions
            }
            assert partition.log is not None
            assert found == {"flights": (0, partition.log.size_bytes, 0, False), "trains": (0, 0, 0, False)}
            for result in response.results:
                assert (result.total_bytes > result.usable_bytes > 0) is (version >= 4)
            asked = DescribeLogDirsRequest.DescribableLogDirTopic(topic="flights", partitions=[0, 9])
            response = await caller.call(DescribeLogDirsRequest(topics=[asked]), version)
            assert [topic.name for result in response.results for topic in result.topics] == ["flights"]
            directory = partition.log.log_directory
            broker.log_manager.fail_directory(directory, OSError("broken"))
            response = await caller.call(DescribeLogDirsRequest(topics=None), version)
            results = {result.log_dir: (result.error_code, len(result.topics)) for result in response.results}
            assert results[directory.path] == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
            assert sorted(code for code, _ in results.values()) == [0, ErrorCode.KAFKA_STORAGE_ERROR]

    run(main())


def test_answers_every_version_that_apache_kafka_answers(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        # The schemas hold the versions of Apache Kafka 3.9.1, and are held against its own answer.
        for key, versions in broker.calls.registry.versions().items():
            known = catalogue.request(key).versions
            assert versions == (known.low, known.high), key
        assert set(broker.calls.registry.versions()) == {0, 1, 2, 3, 18, 21, 23, 27, 34, 35, 60, 61}

    scenario(run, tmp_path, body)
