"""`barnabas.api.fetch`, with real logs, replicas and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.metrics import Meter, MetricName
from barnabas.kernel.real_host import real_host
from barnabas.log.log_config import LogConfig
from barnabas.log.reading import LogReader
from barnabas.wire.compression import CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.records import read_records, walk_batches
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request, topic_id

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Data = FetchResponse.PartitionData


def scenario(run: Run, path: Path, body: Callable[[DataBroker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host, data_broker(host, str(path)) as broker:
            await body(broker)

    run(main())


async def settled() -> None:
    """The changes that the controller has brought about have been told to all who watch."""
    for _ in range(3):
        await asyncio.sleep(0)


def asked(number: int = 0, offset: int = 0, **options: Any) -> FetchRequest.FetchPartition:
    return FetchRequest.FetchPartition(
        **({"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20} | options)
    )


def fetch_request(
    version: int, topic: str, *partitions: FetchRequest.FetchPartition, replica_id: int = -1, **options: Any
) -> FetchRequest:
    """A request outside of sessions that does not wait, unless `options` say otherwise."""
    named = FetchRequest.FetchTopic(partitions=list(partitions))
    if version >= 13:
        named.topic_id = topic_id(topic)
    else:
        named.topic = topic
    fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "topics": [named] if partitions else []}
    request = FetchRequest(**(fields | options))
    if version >= 15:
        request.replica_state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=-1)
    else:
        request.replica_id = replica_id
    return request


def only(response: FetchResponse) -> Data:
    """The only partition of a response that has no error of its own."""
    assert response.error_code == 0
    ((data,),) = ([*topic.partitions] for topic in response.responses)
    return data


def values(data: Data) -> list[bytes | None]:
    return [record.value for record in read_records(bytes(data.records or b""))]


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

    scenario(run, tmp_path, body)


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


def test_large_conversions_go_off_the_loop(run: Run, tmp_path: Path) -> None:
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

    scenario(run, tmp_path, body)


class Session:
    """A client that keeps a session."""

    def __init__(self, caller: Caller, version: int = 12, replica_id: int = -1) -> None:
        self.caller = caller
        self.version = version
        self.replica_id = replica_id
        self.session_id = 0
        self.epoch = 0

    def request(
        self, *partitions: FetchRequest.FetchPartition, forgotten: Sequence[int] = (), **options: Any
    ) -> FetchRequest:
        request = fetch_request(
            self.version,
            "flights",
            *partitions,
            replica_id=self.replica_id,
            session_id=self.session_id,
            session_epoch=self.epoch,
            **options,
        )
        if forgotten:
            gone = FetchRequest.ForgottenTopic(partitions=list(forgotten))
            if self.version >= 13:
                gone.topic_id = topic_id("flights")
            else:
                gone.topic = "flights"
            request.forgotten_topics_data = [gone]
        return request

    async def fetch(self, *partitions: FetchRequest.FetchPartition, **options: Any) -> dict[int, Data]:
        """What the response says, by partition."""
        response = await self.caller.call(self.request(*partitions, **options), self.version)
        return self.take(response)

    def take(self, response: FetchResponse) -> dict[int, Data]:
        assert response.error_code == 0
        self.session_id = response.session_id
        self.epoch += 1
        return {data.partition_index: data for topic in response.responses for data in topic.partitions}


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_a_session_answers_with_news_only(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(50):
            broker.lead("flights", number)
        await settled()
        session = Session(broker.connect(), version)
        first = await session.fetch(*(asked(number) for number in range(50)))
        assert sorted(first) == list(range(50))
        assert session.session_id != 0
        examined = broker.topic_metrics.of("flights").fetch_requests
        before = examined.count
        assert await session.fetch() == {}
        assert examined.count == before
        await broker.produce("flights", b"one", number=17)
        found = await session.fetch()
        assert {number: values(data) for number, data in found.items()} == {17: [b"one"]}
        # The client did not move on, so it gets it again; then it does.
        assert list(await session.fetch()) == [17]
        assert await session.fetch(asked(17, 1)) == {}
        before = examined.count
        assert await session.fetch() == {}
        assert examined.count == before
        assert await session.fetch(forgotten=[17]) == {}
        await broker.produce("flights", b"two", number=17)
        await broker.produce("flights", b"three", number=18)
        assert list(await session.fetch()) == [18]

    scenario(run, tmp_path, body)


def test_a_parked_session_wakes_for_its_changes_alone(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(20):
            broker.lead("flights", number)
        await settled()
        session = Session(broker.connect())
        await session.fetch(*(asked(number) for number in range(20)))
        examined = broker.topic_metrics.of("flights").fetch_requests
        before = examined.count
        session.caller.send(session.request(max_wait_ms=600_000), 12)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        await broker.produce("flights", b"one", number=3)
        (response,) = await session.caller.responses(1)
        assert list(session.take(response)) == [3]
        assert examined.count - before == 1

    scenario(run, tmp_path, body)


def test_who_got_bytes_lately_comes_last(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(3):
            broker.lead("flights", number)
            for _ in range(3):
                await broker.produce("flights", bytes(1000), number=number)
        session = Session(broker.connect())
        one = len(batch(bytes(1000)))
        limits = {"max_bytes": one, "min_bytes": 1}
        offsets = dict.fromkeys(range(3), 0)
        order: list[int] = []
        found = await session.fetch(*(asked(number, partition_max_bytes=one) for number in range(3)), **limits)
        for _ in range(9):
            got = [number for number, data in found.items() if data.records]
            order += got
            for number in got:
                offsets[number] += 1
            found = await session.fetch(
                *(asked(number, offsets[number], partition_max_bytes=one) for number in got), **limits
            )
        assert order == [0, 1, 2] * 3
        assert offsets == dict.fromkeys(range(3), 3)

    scenario(run, tmp_path, body)


def test_errors_are_said_until_they_are_over(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        session = Session(broker.connect(), 13)
        assert (await session.fetch(asked(), asked(1)))[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await session.fetch())[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        broker.lead("flights", 1)
        found = await session.fetch()
        assert (found[1].error_code, found[1].high_watermark) == (0, 0)
        assert await session.fetch() == {}
        broker.lead("flights", 1, leader=2, leader_epoch=1, replicas=(1, 2))
        await settled()
        found = await session.fetch(asked(1, current_leader_epoch=0))
        assert found[1].error_code == ErrorCode.FENCED_LEADER_EPOCH

    scenario(run, tmp_path, body)


def test_a_session_that_is_not_there_or_not_in_step_is_refused(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        session = Session(caller)
        await session.fetch(asked())

        async def code(session_id: int, epoch: int, version: int = 12) -> int:
            request = fetch_request(version, "flights", session_id=session_id, session_epoch=epoch)
            response: FetchResponse = await caller.call(request, version)
            assert response.responses == []
            return response.error_code

        other = session.session_id ^ 1
        assert await code(other, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert await code(session.session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert await code(session.session_id, 1, 13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert await code(session.session_id, 1) == 0
        assert await code(session.session_id, -1) == 0  # ends it
        assert await code(session.session_id, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not any(partition.watchers for partition in broker.replicas.partitions.values())

    scenario(run, tmp_path, body)


def test_a_second_request_of_a_session_makes_the_parked_one_invalid(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        session = Session(broker.connect())
        await session.fetch(asked())
        session.caller.send(session.request(max_wait_ms=600_000), 12)
        again = broker.connect()
        session.epoch += 1
        again.send(session.request(), 12)
        (second,) = await again.responses(1)
        assert second.error_code == 0
        await broker.produce("flights", b"one")
        (first,) = await session.caller.responses(1)
        assert (first.error_code, first.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])

    scenario(run, tmp_path, body)


def test_followers_push_clients_out_of_a_full_cache(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2, 3))
        clients = [Session(broker.connect()) for _ in range(3)]
        for client in clients:
            await client.fetch(asked())
        assert [client.session_id != 0 for client in clients] == [True, True, False]
        # A parked fetch of the session that has to go is answered.
        clients[0].caller.send(clients[0].request(max_wait_ms=600_000), 12)
        clients[1].caller.send(clients[1].request(max_wait_ms=600_000), 12)
        while broker.replicas.fetch_purgatory.delayed < 2:
            await asyncio.sleep(0)
        follower = Session(broker.connect(), replica_id=2)
        await follower.fetch(asked())
        assert follower.session_id != 0
        while broker.replicas.fetch_purgatory.delayed > 1:
            await asyncio.sleep(0)
        assert broker.sessions.evictions.count == 1
        assert len(broker.sessions.sessions) == 2

    scenario(run, tmp_path, body)


def test_a_followers_quiet_partitions_cost_nothing_and_stay_in_sync(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(30):
            broker.lead("flights", number, isr=(1, 2), replicas=(1, 2))
        await settled()
        follower = Session(broker.connect(), 17, replica_id=2)
        await follower.fetch(*(asked(number, log_start_offset=0) for number in range(30)))
        # That the leader learns where the follower's logs begin is a change itself.
        assert await follower.fetch() == {}
        examined = broker.topic_metrics.of("flights").fetch_requests
        before = examined.count
        for _ in range(5):
            assert await follower.fetch() == {}
        assert examined.count == before
        session = broker.sessions.sessions[follower.session_id]
        partition = broker.lead("flights", 4, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        producer = broker.connect()
        producer.send(produce_request("flights", batch(b"one"), number=4, acks=-1), 9)
        while not broker.replicas.produce_purgatory.delayed:
            await asyncio.sleep(0)
        found = await follower.fetch(asked(4, log_start_offset=0, current_leader_epoch=1))
        assert values(found[4]) == [b"one"]
        assert await follower.fetch(asked(4, 1, log_start_offset=0, current_leader_epoch=1)) != {}
        (response,) = await producer.responses(1)
        assert response.responses[0].partition_responses[0].error_code == 0
        assert partition.high_watermark == 1
        assert session.clock.time == session.last_used

    scenario(run, tmp_path, body)
