"""Markers that end transactions, with real logs: whom they are written for, when they count, and who sees what then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from barnabas.api.context import RequestContext
from barnabas.api.write_txn_markers import WriteTxnMarkersHandler
from barnabas.kernel.real_host import real_host
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.leader.partition import Partition
from barnabas.log.partition.log_config import LogConfig
from barnabas.serving.transaction_markers import MarkerAppends
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import DataBroker, Groups, batch, data_broker
from tests.unit.log.verified import verified

Run = Callable[[Coroutine[Any, Any, Any]], Any]
READ_COMMITTED = 1


def scenario(run: Run, path: Path, body: Callable[[DataBroker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with (
            real_host("test", asyncio.get_running_loop()) as host,
            data_broker(host, str(path)) as broker,
        ):
            await body(broker)

    run(main())


def write(partition: Partition, producer_id: int, *values: bytes, epoch: int = 0, sequence: int = 0) -> int:
    """Appends what a transaction's producer sends."""
    records = batch(
        *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    )
    assert partition.log is not None
    with verified(partition.log.producers, producer_id, epoch):
        return partition.append(bytearray(records), required_acks=1, produce_version=9).first_offset


def markers(
    *partitions: tuple[str, int], producer_id: int, commit: bool, epoch: int = 0, coordinator_epoch: int = 0
) -> WriteTxnMarkersRequest.WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        coordinator_epoch=coordinator_epoch,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
            for topic, numbers in topics.items()
        ],
    )


def codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, str, int], ErrorCode]:
    return {
        (marker.producer_id, topic.name, partition.partition_index): ErrorCode.for_code(partition.error_code)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }


async def end(
    caller: Caller, *asked: WriteTxnMarkersRequest.WritableTxnMarker
) -> dict[tuple[int, str, int], ErrorCode]:
    return codes(await caller.call(WriteTxnMarkersRequest(markers=list(asked)), 1))


async def read_committed(caller: Caller, offset: int = 0) -> tuple[int, list[tuple[int, int]]]:
    """The last stable offset, and the aborted transactions by producer and first offset."""
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=READ_COMMITTED,
        topics=[FetchRequest.FetchTopic(topic="flights", partitions=[partition])],
    )
    found = (await caller.call(request, 11)).responses[0].partitions[0]
    assert found.error_code == 0
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()]
    return found.last_stable_offset, aborted


async def follow(caller: Caller, offset: int) -> None:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, log_start_offset=0, partition_max_bytes=1)
    topics = [FetchRequest.FetchTopic(topic="flights", partitions=[partition])]
    request = FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=topics)
    assert (await caller.call(request, 11)).responses[0].partitions[0].error_code == 0


def test_transactions_are_seen_when_they_have_ended(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller = broker.connect()
        assert [write(partition, 7, b"a"), write(partition, 8, b"b"), write(partition, 7, b"c", sequence=1)] == [
            0,
            1,
            2,
        ]
        assert await read_committed(caller) == (0, [])
        ended = await end(caller, markers(("flights", 0), producer_id=7, commit=True))
        assert ended == {(7, "flights", 0): ErrorCode.NONE}
        assert await read_committed(caller) == (1, [])  # the other one begins there
        ended = await end(caller, markers(("flights", 0), producer_id=8, commit=False))
        assert ended == {(8, "flights", 0): ErrorCode.NONE}
        assert await read_committed(caller) == (5, [(8, 1)])
        assert await read_committed(caller, 2) == (5, [(8, 1)])  # its marker is behind that

    scenario(run, tmp_path, body)


def test_a_marker_counts_when_it_is_replicated(run: Run, tmp_path: Path) -> None:
    """Its coordinator forgets the transaction then: a leader without the marker would hold it open for ever."""

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", replicas=(1, 2), isr=(1, 2))
        caller, follower = broker.connect(), broker.connect()
        write(partition, 7, b"a")
        await follow(follower, 1)
        ended = asyncio.ensure_future(end(caller, markers(("flights", 0), producer_id=7, commit=False)))
        done, _ = await asyncio.wait([ended], timeout=0.05)
        assert not done
        assert (partition.log_end_offset, partition.high_watermark, partition.last_stable_offset) == (2, 1, 0)
        await follow(follower, 2)
        assert await ended == {(7, "flights", 0): ErrorCode.NONE}
        assert partition.last_stable_offset == 2

    scenario(run, tmp_path, body)


def test_each_producer_and_partition_has_its_own_outcome(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.lead("led by another", leader=2, replicas=(1, 2), isr=(1, 2))
        broker.lead("too few", replicas=(1, 2), isr=(1,), config=LogConfig(min_insync_replicas=2))
        caller = broker.connect()
        write(partition, 7, b"a", epoch=3)
        assert await end(
            caller,
            markers(("flights", 0), producer_id=7, epoch=2, commit=True),
            markers(("flights", 0), ("flights", 1), ("led by another", 0), producer_id=8, commit=True),
            markers(("too few", 0), producer_id=9, commit=True),
        ) == {
            (7, "flights", 0): ErrorCode.INVALID_PRODUCER_EPOCH,
            (8, "flights", 0): ErrorCode.NONE,
            (8, "flights", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (8, "led by another", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            (9, "too few", 0): ErrorCode.NOT_ENOUGH_REPLICAS,
        }
        assert partition.last_stable_offset == 0
        newer = markers(("flights", 0), producer_id=7, epoch=3, coordinator_epoch=5, commit=True)
        older = markers(("flights", 0), producer_id=7, epoch=3, coordinator_epoch=4, commit=False)
        assert await end(caller, newer) == {(7, "flights", 0): ErrorCode.NONE}
        assert await end(caller, older) == {(7, "flights", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        assert await end(caller, newer) == {
            (7, "flights", 0): ErrorCode.NONE
        }  # sent again: it is not known to be there
        assert await end(caller) == {}

    scenario(run, tmp_path, body)


def test_the_answer_waits_for_the_offsets_of_groups(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("__consumer_offsets", 3)
        caller = broker.connect()
        write(partition, 7, b"an offset")
        asked = markers(("__consumer_offsets", 3), ("__consumer_offsets", 4), producer_id=7, commit=True)
        ended = asyncio.ensure_future(end(caller, asked))
        while not broker.groups.told:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert not ended.done()
        assert broker.groups.told == [(3, 7, True)]  # nothing of the partition that is not here
        broker.groups.waiting.pop()()
        assert await ended == {
            (7, "__consumer_offsets", 3): ErrorCode.NONE,
            (7, "__consumer_offsets", 4): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    scenario(run, tmp_path, body)


def test_many_markers_are_written_in_steps(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        for producer_id in range(600):
            write(partition, producer_id, b"a")
        asked = [markers(("flights", 0), producer_id=number, commit=bool(number % 2)) for number in range(600)]
        ended = await end(broker.connect(), *asked)
        assert ended == {(number, "flights", 0): ErrorCode.NONE for number in range(600)}
        assert partition.last_stable_offset == partition.log_end_offset == 1200

    scenario(run, tmp_path, body)


@pytest.mark.parametrize(("asked", "partitions"), [(1, 5_000), (500, 10), (5_000, 0)])
def test_an_error_of_very_many_partitions_is_told_in_pieces(asked: int, partitions: int) -> None:
    handler = WriteTxnMarkersHandler(cast("MarkerAppends", None), Groups())
    request = WriteTxnMarkersRequest(
        markers=[
            markers(*(("t", number) for number in range(partitions)), producer_id=producer_id, commit=True)
            for producer_id in range(asked)
        ]
    )
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    steps = handler.error_response(cast("RequestContext", None), request, KafkaError(code))
    answers = []

    def answered() -> Steps[None]:
        answers.append((yield from steps))

    pieces = sum(1 for _ in answered())
    (told,) = answers
    assert pieces == 2 * ((asked * partitions + asked) // STEP_ELEMENTS)
    assert codes(told) == {
        (producer_id, "t", number): code for producer_id in range(asked) for number in range(partitions)
    }
    assert len(told.markers) == asked
