"""Fetches and look-ups of a tiered partition whose local log starts behind what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.timestamp_lookup import ListedOffset
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.serving.remote_fetch import RemoteRecords
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ListOffsetsRequest
from tests.unit.api.data_broker import DataBroker, batch
from tests.unit.api.fetching import Run, asked, fetch_request, only, scenario, values


async def tiered(broker: DataBroker, topic: str = "flights", local_start: int = 2) -> PartitionLog:
    """A log with offsets 0 to 3, of which the first are in remote storage only."""
    log = broker.lead(topic, isr=(1, 2), replicas=(1, 2)).log
    assert log is not None
    for value in (b"one", b"two", b"three", b"four"):
        await broker.produce(topic, value)
    log.update_high_watermark(4)
    log._state.local_start_offset = local_start
    return log


@pytest.mark.parametrize("version", range(18))
def test_a_consumer_is_given_what_is_in_remote_storage(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        log = await tiered(broker)
        broker.remote.answer = RemoteRecords(bytes(batch(b"one", b"two")), None)
        caller = broker.connect()
        data = only(await caller.call(fetch_request(version, "flights", asked()), version))
        assert (data.error_code, values(data), data.high_watermark) == (0, [b"one", b"two"], 4)
        data = only(await caller.call(fetch_request(version, "flights", asked(offset=2)), version))
        assert values(data) == [b"three", b"four"], "the rest is here"
        (fetch,) = broker.remote.asked
        assert (fetch.log, fetch.offset, fetch.is_committed) == (log, 0, False)
        assert fetch.has_minimum is (version >= 3)

    scenario(run, tmp_path, body)


def test_many_fetches_of_one_connection(run: Run, tmp_path: Path) -> None:
    """By the fast path, which hands over to the general one."""

    async def body(broker: DataBroker) -> None:
        await tiered(broker)
        broker.remote.answer = RemoteRecords(bytes(batch(b"one")), None)
        caller = broker.connect()
        for _ in range(4):
            data = only(await caller.call(fetch_request(17, "flights", asked(), max_wait_ms=60_000), 17))
            assert values(data) == [b"one"]
        request = fetch_request(17, "flights", asked(), max_wait_ms=60_000, min_bytes=1 << 30)
        assert values(only(await caller.call(request, 17))) == [b"one"], "it does not wait for more"

    scenario(run, tmp_path, body)


def test_a_reader_of_committed_records_is_told_what_was_aborted(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await tiered(broker)
        broker.remote.answer = RemoteRecords(bytes(batch(b"one")), [AbortedTransaction(7, 0, 3, 0)])
        request = fetch_request(17, "flights", asked(), isolation_level=1)
        data = only(await broker.connect().call(request, 17))
        assert [(each.producer_id, each.first_offset) for each in data.aborted_transactions or []] == [(7, 0)]
        assert broker.remote.asked[0].is_committed

    scenario(run, tmp_path, body)


def test_a_follower_is_told_that_it_has_moved(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await tiered(broker)
        for _ in range(2):
            request = fetch_request(17, "flights", asked(), replica_id=2, replica_epoch=1)
            data = only(await broker.connect().call(request, 17))
            assert (data.error_code, data.records) == (ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, b"")
        request = fetch_request(17, "flights", asked(offset=2), replica_id=2, replica_epoch=1)
        assert values(only(await broker.connect().call(request, 17))) == [b"three", b"four"]
        assert not broker.remote.asked

    scenario(run, tmp_path, body)


def test_one_partition_of_a_request_is_read_remotely_and_others_are_given_beside_it(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await tiered(broker)
        other = broker.lead("flights", 1, isr=(1,), replicas=(1,)).log
        third = broker.lead("flights", 2, isr=(1,), replicas=(1,)).log
        for number in (1, 2):
            await broker.produce("flights", b"local", number=number)
        assert other is not None
        assert third is not None
        third._state.local_start_offset = 1
        broker.remote.answer = RemoteRecords(bytes(batch(b"one")), None)
        request = fetch_request(17, "flights", asked(), asked(1), asked(2))
        response = await broker.connect().call(request, 17)
        given = {data.partition_index: values(data) for data in response.responses[0].partitions}
        assert given == {0: [b"one"], 1: [b"local"], 2: []}
        assert len(broker.remote.asked) == 1

    scenario(run, tmp_path, body)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone"), ErrorCode.OFFSET_OUT_OF_RANGE),
        (KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "far away"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (RuntimeError("defect"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_goes_wrong_is_said_of_the_partition(
    run: Run, tmp_path: Path, failure: Exception, code: ErrorCode
) -> None:
    async def body(broker: DataBroker) -> None:
        await tiered(broker)
        broker.remote.answer = failure
        data = only(await broker.connect().call(fetch_request(17, "flights", asked()), 17))
        assert (data.error_code, data.records) == (code, b"")
        broker.remote.answer = RemoteRecords(b"", [])
        data = only(await broker.connect().call(fetch_request(17, "flights", asked()), 17))
        assert (data.error_code, data.records) == (0, b""), "it took too long: the consumer comes back"

    scenario(run, tmp_path, body)


def test_times_are_looked_up_remotely_first(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        await tiered(broker)

        async def find(timestamp: int) -> tuple[int, int]:
            partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsRequest.ListOffsetsTopic(name="flights", partitions=[partition])
            answer = await broker.connect().call(ListOffsetsRequest(topics=[topic]), 9)
            (found,) = answer.topics[0].partitions
            return found.error_code, found.offset

        broker.remote.listed = ListedOffset(5, 1, 0)
        assert await find(0) == (0, 1)
        broker.remote.listed = None
        assert (await find(0))[0] == 0
        assert [await find(place) for place in (-2, -4, -1)] == [(0, 0), (0, 2), (0, 4)]

    scenario(run, tmp_path, body)
