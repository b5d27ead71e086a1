"""Answers to odd requests that Apache Kafka has decided; `tests/interop/test_answers.py` found them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.errors import ErrorCode
from barnabas.wire.legacy_records import write_message
from barnabas.wire.messages import FetchRequest, ListOffsetsRequest, ProduceRequest
from barnabas.wire.record_batch import set_producer
from tests.unit.api.data_broker import DataBroker, batch, produce_request, produced
from tests.unit.api.fetching import asked, fetch_request, only, scenario, values

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Topic = ProduceRequest.TopicProduceData
Part = ProduceRequest.PartitionProduceData


def of_producer(producer_id: int, epoch: int, sequence: int) -> bytes:
    made = bytearray(batch(b"one"))
    set_producer(made, producer_id, epoch, sequence)
    return bytes(made)


def test_of_a_partition_named_twice_the_last_records_are_produced(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        request = ProduceRequest(
            acks=1,
            timeout_ms=1_000,
            topic_data=[
                Topic(name="flights", partition_data=[Part(index=0, records=batch(b"first"))]),
                Topic(name="flights", partition_data=[]),
                Topic(name="flights", partition_data=[Part(index=0, records=batch(b"last", b"of all"))]),
                Topic(name="empty", partition_data=[]),
            ],
        )
        response = await broker.connect().call(request, 9)
        ((topic, outcomes),) = [(each.name, each.partition_responses) for each in response.responses]
        assert (topic, [(each.index, each.error_code, each.base_offset) for each in outcomes]) == (
            "flights",
            [(0, 0, 0)],
        )
        assert partition.log is not None
        assert partition.log.log_end_offset == 2

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("path", ["general", "fast"])
def test_a_producer_with_id_but_no_epoch_is_taken_until_it_has_had_one(run: Run, tmp_path: Path, path: str) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()

        async def code(records: bytes) -> int:
            if path == "fast":
                return int(produced(await caller.call(produce_request("flights", records), 9)).error_code)
            topics = [Topic(name="flights", partition_data=[Part(index=0, records=records), Part(index=7)])]
            answer = await broker.connect().call(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics), 9)
            return int(answer.responses[0].partition_responses[0].error_code)

        assert await code(of_producer(72, -1, 0)) == ErrorCode.NONE
        assert await code(of_producer(72, 0, 0)) == ErrorCode.NONE
        assert await code(of_producer(72, -1, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await code(of_producer(72, 0, -1)) == ErrorCode.INVALID_RECORD

    scenario(run, tmp_path, body)


def test_an_id_below_minus_one_is_no_producer(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller = broker.connect()
        for _ in range(2):
            answer = produced(await caller.call(produce_request("flights", of_producer(-2, 0, 0)), 9))
            assert answer.error_code == ErrorCode.NONE
        assert partition.log is not None
        assert partition.log.log_end_offset == 2
        assert partition.log.producers.get(-2) is None

    scenario(run, tmp_path, body)


def test_both_paths_refuse_what_a_version_may_not_carry(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        two = batch(b"one") * 2
        await caller.call(produce_request("flights", batch(b"usual")), 8)
        fast = produced(await caller.call(produce_request("flights", two), 8))
        topics = [Topic(name="flights", partition_data=[Part(index=0, records=two), Part(index=7)])]
        general = await broker.connect().call(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topics), 8)
        assert fast == general.responses[0].partition_responses[0]
        assert (fast.error_code, fast.log_start_offset) == (ErrorCode.INVALID_RECORD, -1)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [11, 12])
def test_a_topic_without_name_is_unknown_and_one_without_id_too(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        data = only(await caller.call(fetch_request(version, "", asked()), version))
        assert (data.error_code, data.aborted_transactions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        nameless = FetchRequest.FetchTopic(partitions=[asked()])
        data = only(await caller.call(FetchRequest(topics=[nameless]), 13))
        assert (data.error_code, data.aborted_transactions) == (ErrorCode.UNKNOWN_TOPIC_ID, [])

    scenario(run, tmp_path, body)


def test_aborted_transactions_are_null_but_for_what_is_not_looked_at(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"one")
        caller = broker.connect()

        async def told(**options: Any) -> Any:
            return only(await caller.call(fetch_request(12, "flights", asked(**options.pop("of")), **options), 12))

        assert (await told(of={})).aborted_transactions is None
        assert (await told(of={}, isolation_level=1)).aborted_transactions == []
        assert (await told(of={"offset": 99})).aborted_transactions is None
        assert (await told(of={"number": 9})).aborted_transactions == []

    scenario(run, tmp_path, body)


def test_every_negative_leader_epoch_stands_for_none(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"one")
        request = fetch_request(12, "flights", asked(current_leader_epoch=-5, last_fetched_epoch=-7))
        assert values(only(await broker.connect().call(request, 12))) == [b"one"]

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("isolation_level", [2, -1, 127])
def test_there_are_two_isolation_levels(run: Run, tmp_path: Path, isolation_level: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        for version in (11, 15, 17):
            await caller.call(fetch_request(version, "flights", asked()), version)  # the next may take the fast path
            refused = await caller.call(
                fetch_request(version, "flights", asked(), isolation_level=isolation_level), version
            )
            assert refused.error_code == ErrorCode.INVALID_REQUEST
        old = await caller.call(fetch_request(4, "flights", asked(), isolation_level=isolation_level), 4)
        assert old.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
        place = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topics = [ListOffsetsRequest.ListOffsetsTopic(name="flights", partitions=[place])]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
        listed = await caller.call(request, 7)
        assert listed.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST

    scenario(run, tmp_path, body)


def test_the_largest_timestamp_may_be_that_of_messages_without(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        place = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-3)
        topics = [ListOffsetsRequest.ListOffsetsTopic(name="flights", partitions=[place])]
        request = ListOffsetsRequest(replica_id=-1, topics=topics)

        async def largest() -> tuple[int, int, int]:
            listed = (await caller.call(request, 7)).topics[0].partitions[0]
            return listed.timestamp, listed.offset, listed.leader_epoch

        assert await largest() == (-1, -1, -1)
        for _ in range(2):
            await caller.call(produce_request("flights", write_message(0, 0, -1, None, b"old")), 0)
        assert await largest() == (-1, 0, 0)

    scenario(run, tmp_path, body)
