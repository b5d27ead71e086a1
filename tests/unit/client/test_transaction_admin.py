"""What an administrator asks, and is told, of transactions."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client.admin import Admin
from barnabas.client.transaction_admin import PartitionProducer, TransactionAdmin
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    DeleteRecordsResponse,
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    FindCoordinatorResponse,
    ListTransactionsResponse,
    WriteTxnMarkersResponse,
)
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, cluster_of, simulated

T0 = TopicPartition("t", 0)


def asking(answers: list[Any], main: Any) -> list[Any]:
    """What is asked while `main(admin)` runs; each request gets the next answer."""
    asked: list[Any] = []
    left = iter(answers)

    async def answer(request: Any, _lane: Any) -> Any:
        asked.append(request)
        return next(left)

    async def on_host(host: Host) -> None:
        client = ScriptedClient(host, answer, {"t": 1})
        async with TransactionAdmin(client) as admin:
            await main(admin)
        await client.close()

    simulated(on_host)
    return asked


def test_what_is_asked_for_is_picked_by_the_brokers() -> None:
    async def main(admin: TransactionAdmin) -> None:
        assert await admin.list_transactions(["Ongoing"], [7], 60_000) == []
        with pytest.raises(ValueError, match="there is no state Busy"):
            await admin.list_transactions(["Busy"])

    picked, everything = asking(
        [ListTransactionsResponse(), ListTransactionsResponse(unknown_state_filters=["Busy"])], main
    )
    assert (picked.state_filters, picked.producer_id_filters, picked.duration_filter) == (["Ongoing"], [7], 60_000)
    assert everything.duration_filter == -1


def test_a_coordinator_that_moves_is_looked_for_again() -> None:
    found = FindCoordinatorResponse.Coordinator(key="x", node_id=1, host="broker", port=9092)
    state = DescribeTransactionsResponse.TransactionState
    moved = state(transactional_id="x", error_code=ErrorCode.NOT_COORDINATOR)
    known = state(transactional_id="x", transaction_state="Ongoing", transaction_start_time_ms=5)

    async def main(admin: TransactionAdmin) -> None:
        described = await admin.describe_transactions(["x"])
        assert (described["x"].state, described["x"].started_at_ms) == ("Ongoing", 5)

    asked = asking(
        [
            FindCoordinatorResponse(coordinators=[found]),
            DescribeTransactionsResponse(transaction_states=[moved]),
            FindCoordinatorResponse(coordinators=[found]),
            DescribeTransactionsResponse(transaction_states=[known]),
        ],
        main,
    )
    assert [type(each).__name__ for each in asked] == ["FindCoordinatorRequest", "DescribeTransactionsRequest"] * 2
    assert (asked[0].key_type, asked[0].coordinator_keys) == (1, ["x"])


def test_an_id_that_nobody_knows_is_left_out_and_one_that_is_not_permitted_raised() -> None:
    found = FindCoordinatorResponse.Coordinator(key="x", node_id=1, host="broker", port=9092)
    state = DescribeTransactionsResponse.TransactionState
    codes = (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    answers: list[Any] = []
    for code in codes:
        answers.append(FindCoordinatorResponse(coordinators=[found]))
        answers.append(DescribeTransactionsResponse(transaction_states=[state(transactional_id="x", error_code=code)]))

    async def main(admin: TransactionAdmin) -> None:
        assert await admin.describe_transactions(["x"]) == {}
        with pytest.raises(KafkaError):
            await admin.describe_transactions(["x"])

    asking(answers, main)


def test_a_marker_goes_to_the_leader_with_an_epoch_that_is_not_refused() -> None:
    producer = PartitionProducer(7, 3, 0, 0, -1, 5)
    marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
    partition = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

    def answer(code: int) -> Any:
        of_topic = topic(name="t", partitions=[partition(partition_index=0, error_code=code)])
        return WriteTxnMarkersResponse(markers=[marker(producer_id=7, topics=[of_topic])])

    async def main(admin: TransactionAdmin) -> None:
        await admin.abort_in_partition(T0, producer)
        with pytest.raises(KafkaError, match="aborting in t-0"):
            await admin.abort_in_partition(T0, producer)

    first, _ = asking([answer(0), answer(ErrorCode.INVALID_PRODUCER_EPOCH)], main)
    (sent,) = first.markers
    assert (sent.producer_id, sent.producer_epoch, sent.transaction_result, sent.coordinator_epoch) == (7, 3, False, 0)


def test_producers_come_by_partition_in_order() -> None:
    state = DescribeProducersResponse.ProducerState
    states = [
        state(producer_id=9, producer_epoch=0, coordinator_epoch=-1, current_txn_start_offset=4),
        state(producer_id=2, producer_epoch=1, coordinator_epoch=0),
    ]
    partition = DescribeProducersResponse.PartitionResponse(partition_index=0, active_producers=states)
    response = DescribeProducersResponse(
        topics=[DescribeProducersResponse.TopicResponse(name="t", partitions=[partition])]
    )

    async def main(admin: TransactionAdmin) -> None:
        found = await admin.describe_producers([T0])
        assert [(each.producer_id, each.transaction_offset) for each in found[T0]] == [(2, None), (9, 4)]

    asking([response], main)


def test_a_client_that_has_just_begun_learns_the_leaders_before_it_asks_them() -> None:
    deleted = DeleteRecordsResponse.DeleteRecordsPartitionResult(partition_index=0, low_watermark=2)
    answers = {
        "DescribeProducersRequest": DescribeProducersResponse(),
        "DeleteRecordsRequest": DeleteRecordsResponse(
            topics=[DeleteRecordsResponse.DeleteRecordsTopicResult(name="t", partitions=[deleted])]
        ),
        "WriteTxnMarkersRequest": WriteTxnMarkersResponse(),
    }

    async def answer(request: Any, _lane: Any) -> Any:
        return answers[type(request).__name__]

    async def ask(host: Host, call: Any) -> tuple[int, float]:
        """How many requests that takes, and how many seconds."""
        client = ScriptedClient(host, answer, {})

        async def update() -> None:
            client.metadata.cluster = cluster_of({"t": 1})

        client.metadata.update = update  # type: ignore[method-assign]
        began = host.loop.time()
        async with Admin(client) as admin, TransactionAdmin(client) as transactions:
            await call(admin, transactions)
        took = len(client.asked), host.loop.time() - began
        await client.close()
        return took

    async def main(host: Host) -> None:
        producer = PartitionProducer(1, 0, 0, 0, 0, 0)
        assert await ask(host, lambda admin, _: admin.delete_records({T0: 2})) == (1, 0.0)
        assert await ask(host, lambda _, transactions: transactions.describe_producers([T0])) == (1, 0.0)
        assert await ask(host, lambda _, transactions: transactions.abort_in_partition(T0, producer)) == (1, 0.0)

    simulated(main)
