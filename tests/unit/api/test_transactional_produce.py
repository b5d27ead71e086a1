"""Batches of transactions: the first one in a partition waits for the coordinator's word (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.metrics import Histogram, Meter, MetricName
from barnabas.kernel.real_host import real_host
from barnabas.leader.partition import Partition
from barnabas.link.errors import ConnectionLostError
from barnabas.log.producers.producer_state import ProducerState
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ProduceRequest
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import DataBroker, batch, data_broker

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Told = tuple[ErrorCode, int]
PRODUCER = 5


def scenario(run: Run, path: Path, body: Callable[[DataBroker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with (
            real_host("test", asyncio.get_running_loop()) as host,
            data_broker(host, str(path)) as broker,
        ):
            await body(broker)

    run(main())


def request(
    sequence: int,
    *topics: str,
    epoch: int = 0,
    transactional_id: str | None = "t",
    acks: int = -1,
    producer_id: int = PRODUCER,
) -> ProduceRequest:
    records = batch(b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=bytes(records))]
            )
            for topic in topics or ("flights",)
        ],
    )


def told(response: Any) -> dict[str, Told]:
    return {
        topic.name: (ErrorCode.for_code(partition.error_code), partition.base_offset)
        for topic in response.responses
        for partition in topic.partition_responses
    }


def end(partition: Partition, kind: ControlRecordType = ControlRecordType.ABORT, epoch: int = 0) -> None:
    marker = end_transaction_batch(
        EndTransactionMarker(kind, 0), timestamp_ms=1, producer_id=PRODUCER, producer_epoch=epoch
    )
    partition.append(bytearray(marker), required_acks=1, produce_version=None, origin=AppendOrigin.COORDINATOR)


def test_the_first_batch_of_a_transaction_is_verified_and_no_other(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller, coordinator = broker.connect(), broker.coordinator
        for sequence in range(3):
            assert told(await caller.call(request(sequence), 9)) == {"flights": (ErrorCode.NONE, sequence)}
        (asked,) = (each for each in coordinator.asked)
        (transaction,) = asked.transactions
        assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == ("t", 5, 0)
        assert transaction.verify_only
        assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("flights", [0])]
        end(partition, ControlRecordType.COMMIT)
        assert told(await caller.call(request(3), 9)) == {"flights": (ErrorCode.NONE, 4)}
        assert len(coordinator.asked) == 2, "another transaction"

    scenario(run, tmp_path, body)


@pytest.mark.parametrize(
    ("version", "said", "answered"),
    [
        (9, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (11, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (11, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (11, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_what_is_not_verified_is_not_written(
    run: Run, tmp_path: Path, version: int, said: ErrorCode, answered: ErrorCode
) -> None:
    async def body(broker: DataBroker) -> None:
        partition, other = broker.lead("flights"), broker.lead("ships")
        broker.coordinator.codes[TopicPartition("flights", 0)] = said
        caller = broker.connect()
        response = await caller.call(request(0, "flights", "ships"), version)
        assert told(response) == {"flights": (answered, -1), "ships": (ErrorCode.NONE, 0)}
        assert (partition.log_end_offset, other.log_end_offset) == (0, 1)
        failures = broker.calls.metrics.get(
            MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate")
        )
        durations = broker.calls.metrics.get(
            MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs")
        )
        assert isinstance(failures, Meter)
        assert isinstance(durations, Histogram)
        assert (failures.count, durations.count) == (1, 1)
        broker.coordinator.codes.clear()
        assert told(await caller.call(request(0), version)) == {"flights": (ErrorCode.NONE, 0)}
        assert (failures.count, durations.count) == (1, 2)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("why", ["nobody coordinates", "the connection is lost"])
def test_a_coordinator_that_cannot_be_asked_has_the_producer_try_again(run: Run, tmp_path: Path, why: str) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.coordinator.is_alive = why != "nobody coordinates"
        broker.coordinator.failure = ConnectionLostError("gone")
        assert told(await broker.connect().call(request(0), 11)) == {"flights": (ErrorCode.NOT_ENOUGH_REPLICAS, -1)}
        assert partition.log_end_offset == 0

    scenario(run, tmp_path, body)


def test_what_could_not_be_verified_comes_first(run: Run, tmp_path: Path) -> None:
    """A partition that knows nothing of the producer would take the batch behind it, and never that one."""

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller, codes = broker.connect(), broker.coordinator.codes
        codes[TopicPartition("flights", 0)] = ErrorCode.NOT_COORDINATOR
        for sequence in (1, 0, 2):
            response = await caller.call(request(sequence), 11)
            assert told(response) == {"flights": (ErrorCode.NOT_ENOUGH_REPLICAS, -1)}
        codes.clear()
        for sequence in (2, 1):
            response = await caller.call(request(sequence), 11)
            assert told(response) == {"flights": (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)}
        assert partition.log_end_offset == 0
        for sequence in range(3):
            assert told(await caller.call(request(sequence), 11)) == {"flights": (ErrorCode.NONE, sequence)}

    scenario(run, tmp_path, body)


def test_what_could_not_be_verified_is_awaited_in_its_epoch_only(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller, codes = broker.connect(), broker.coordinator.codes
        codes[TopicPartition("flights", 0)] = ErrorCode.NOT_COORDINATOR
        await caller.call(request(0), 11)
        codes.clear()
        assert told(await caller.call(request(7, epoch=1), 11)) == {"flights": (ErrorCode.NONE, 0)}

    scenario(run, tmp_path, body)


def test_no_more_producers_than_so_many_are_waited_for() -> None:
    state = ProducerState()
    for producer_id in range(3_000):
        verification = state.begin_verification(producer_id, 0, 5)
        assert verification is not None
        state.end_verification(verification)
    assert len(state._awaited) == 1_000
    assert len(state._verifications) == 0


def test_without_verification_nobody_is_asked(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.coordinator.is_asked = False
        assert told(await broker.connect().call(request(0), 9)) == {"flights": (ErrorCode.NONE, 0)}
        assert broker.coordinator.asked == []

    scenario(run, tmp_path, body)


def test_a_transaction_that_ends_while_it_is_verified_is_not_begun_again(run: Run, tmp_path: Path) -> None:
    """The answer was true when it was given; the marker that was written since would leave the batch open for ever."""

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.coordinator.answers.clear()
        caller = broker.connect()
        call = asyncio.ensure_future(caller.call(request(0), 11))
        while not broker.coordinator.asked:
            await asyncio.sleep(0)
        end(partition)
        broker.coordinator.answers.set()
        assert told(await call) == {"flights": (ErrorCode.INVALID_TXN_STATE, -1)}
        assert partition.log_end_offset == 1
        assert partition.leader_log().producers.first_unstable_offset in (None, 0)

    scenario(run, tmp_path, body)


def test_later_requests_of_the_connection_wait_and_keep_their_order(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.coordinator.answers.clear()
        caller = broker.connect()
        for sequence in range(3):
            caller.send(request(sequence), 9)
        while not broker.coordinator.asked:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert partition.log_end_offset == 0
        broker.coordinator.answers.set()
        answers = [told(response) for response in await caller.responses(3)]
        assert answers == [{"flights": (ErrorCode.NONE, number)} for number in range(3)]
        assert len(broker.coordinator.asked) == 1

    scenario(run, tmp_path, body)


def test_what_cannot_be_a_transaction_is_refused(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        response = await caller.call(request(0, transactional_id=None), 9)
        assert told(response) == {"flights": (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)}
        broker.lead("ships")
        mixed = request(0, "flights")
        mixed.topic_data += request(0, "ships", producer_id=6).topic_data
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert told(await caller.call(mixed, 9)) == {"flights": (code, -1), "ships": (code, -1)}
        assert told(await caller.call(request(0, "nowhere"), 9)) == {
            "nowhere": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        }
        assert broker.coordinator.asked == []

    scenario(run, tmp_path, body)
