"""The APIs of transactions, in every version, from the frame of the request to that of the response."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest

from barnabas.api.add_offsets_to_txn import AddOffsetsToTxnHandler
from barnabas.api.add_partitions_to_txn import AddPartitionsToTxnHandler
from barnabas.api.describe_transactions import DescribeTransactionsHandler
from barnabas.api.end_txn import EndTxnHandler
from barnabas.api.list_transactions import ListTransactionsHandler
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    UpdateMetadataRequest,
)
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition
from tests.unit.api.calling import Calls
from tests.unit.coordinators.transaction.transaction_world import TransactionWorld

ID = "orders"
GROUPS_PARTITION = 7
PARTITIONS = 3
Asked = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


class Groups:
    """Of a group coordinator where it keeps a group."""

    def partition_for(self, group_id: str) -> int:
        assert group_id
        return GROUPS_PARTITION


class Broker:
    """A transaction coordinator behind its handlers, and one client."""

    def __init__(self) -> None:
        self.world = TransactionWorld()
        self.world.elect()
        metadata = MetadataCache(1, logging.getLogger("state.change.logger"))
        states = [
            UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=index, leader=1, isr=[1], replicas=[1])
            for index in range(PARTITIONS)
        ]
        topic = UpdateMetadataRequest.UpdateMetadataTopicState(topic_name="t", partition_states=states)
        metadata.apply(UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[topic]))
        coordinator = self.world.coordinator
        self.calls = Calls(
            self.world.host,
            AddPartitionsToTxnHandler(coordinator, metadata),
            AddOffsetsToTxnHandler(coordinator, cast("GroupCoordinator", Groups())),
            EndTxnHandler(coordinator),
            DescribeTransactionsHandler(coordinator),
            ListTransactionsHandler(coordinator),
        )
        self._caller = self.calls.connect()

    def call(self, request: Any, version: int) -> Any:
        self._caller.send(request, version)
        for _ in range(10):
            self.world.pass_ms(10)
            answers = self._caller.received()
            if answers:
                (answer,) = answers
                return answer
        raise AssertionError(f"{request!r} is not answered")

    def add(
        self, producer: Producer, *partitions: tuple[str, int], version: int = 3
    ) -> dict[TopicPartition, ErrorCode]:
        """As a client, or from version 4 as a broker."""
        topics = _topics(partitions)
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )
            return _codes(self.call(request, version).results_by_topic_v3_and_below)
        asked = _asked(producer, topics)
        (result,) = self.call(AddPartitionsToTxnRequest(transactions=[asked]), version).results_by_transaction
        assert result.transactional_id == ID
        return _codes(result.topic_results)

    def describe(self, transactional_id: str = ID) -> Any:
        (state,) = self.call(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states
        return state

    def end(self, producer: Producer, *, committed: bool = True, version: int = 4) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=committed,
        )
        return ErrorCode.for_code(self.call(request, version).error_code)

    def add_offsets(self, producer: Producer, version: int) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="g"
        )
        return ErrorCode.for_code(self.call(request, version).error_code)

    def close(self) -> None:
        self.world.loop.run_until_complete(self.calls.dispatcher.close())
        assert self.calls.lines.lines == []
        self.world.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def _topics(partitions: tuple[tuple[str, int], ...]) -> list[Topic]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    return [Topic(name=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def _asked(producer: Producer, topics: list[Topic], *, name: str = ID, verify_only: bool = False) -> Asked:
    return Asked(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=topics,
    )


def _codes(topics: Any) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, partition.partition_index): ErrorCode.for_code(partition.partition_error_code)
        for topic in topics
        for partition in topic.results_by_partition
    }


def _partitions(state: Any) -> set[tuple[str, int]]:
    return {(topic.topic, number) for topic in state.topics for number in topic.partitions}


@pytest.mark.parametrize("version", range(6))
def test_partitions_become_part_of_a_transaction(broker: Broker, version: int) -> None:
    producer = broker.world.begun(ID)
    found = broker.add(producer, ("t", 0), ("t", 2), version=version)
    assert found == {TopicPartition("t", 0): ErrorCode.NONE, TopicPartition("t", 2): ErrorCode.NONE}
    state = broker.describe()
    assert (state.transaction_state, _partitions(state)) == ("Ongoing", {("t", 0), ("t", 2)})
    assert (state.producer_id, state.producer_epoch, state.transaction_timeout_ms) == (*producer, 60_000)
    assert state.transaction_start_time_ms >= 0


@pytest.mark.parametrize("version", range(6))
def test_none_is_added_where_one_does_not_exist(broker: Broker, version: int) -> None:
    producer = broker.world.begun(ID)
    unknown, others = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert broker.add(producer, ("t", 0), ("t", PARTITIONS), ("u", 0), version=version) == {
        TopicPartition("t", 0): others,
        TopicPartition("t", PARTITIONS): unknown,
        TopicPartition("u", 0): unknown,
    }
    assert broker.describe().transaction_state == "Empty"


@pytest.mark.parametrize("version", range(6))
def test_a_fenced_producer_is_told_in_a_code_that_it_knows(broker: Broker, version: int) -> None:
    fenced = broker.world.begun(ID)
    broker.world.begun(ID)
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.add(fenced, ("t", 0), version=version) == {TopicPartition("t", 0): code}
    if version <= 4:
        assert broker.add_offsets(fenced, version) is code
        assert broker.end(fenced, version=version) is code


def test_several_transactions_are_asked_for_at_once(broker: Broker) -> None:
    """Some are added to, of others is only asked whether they have a partition; each has an answer of its own."""
    one, other = broker.world.begun("one"), broker.world.begun("other")
    broker.world.add(other, 1, name="other")
    broker.world.pass_ms(10)
    response = broker.call(
        AddPartitionsToTxnRequest(
            transactions=[
                _asked(one, _topics((("t", 0),)), name="one"),
                _asked(other, _topics((("t", 0), ("t", 1))), name="other", verify_only=True),
                _asked(one, _topics((("t", 0),)), name="nobody's", verify_only=True),
            ]
        ),
        4,
    )
    found = {each.transactional_id: _codes(each.topic_results) for each in response.results_by_transaction}
    assert response.error_code == ErrorCode.NONE
    assert found["one"] == {TopicPartition("t", 0): ErrorCode.NONE}
    assert found["other"][TopicPartition("t", 1)] is ErrorCode.NONE
    assert found["other"][TopicPartition("t", 0)] is not ErrorCode.NONE
    assert found["nobody's"] == {TopicPartition("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert broker.describe("other").topics[0].partitions == [1], "a question adds nothing"


@pytest.mark.parametrize("version", range(5))
def test_the_partition_of_a_group_becomes_part_of_a_transaction(broker: Broker, version: int) -> None:
    producer = broker.world.begun(ID)
    assert broker.add_offsets(producer, version) is ErrorCode.NONE
    assert _partitions(broker.describe()) == {(OFFSETS_TOPIC, GROUPS_PARTITION)}


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_ends_as_its_producer_says(broker: Broker, version: int, *, committed: bool) -> None:
    producer = broker.world.begun(ID)
    broker.add(producer, ("t", 0))
    assert broker.end(producer, committed=committed, version=version) is ErrorCode.NONE
    broker.world.pass_ms(100)
    assert [each[:2] for each in broker.world.brokers.markers[TopicPartition("t", 0)]] == [(producer, committed)]
    assert broker.describe().transaction_state == ("CompleteCommit" if committed else "CompleteAbort")
    assert broker.end(producer, committed=committed, version=version) is ErrorCode.NONE, "the answer may have been lost"
    assert broker.end(producer, committed=not committed, version=version) is ErrorCode.INVALID_TXN_STATE


def test_what_is_unknown_is_told_for_each_id(broker: Broker) -> None:
    broker.world.begun(ID)
    states = broker.call(DescribeTransactionsRequest(transactional_ids=[ID, "nobody's", ""]), 0).transaction_states
    assert [(state.transactional_id, state.error_code) for state in states] == [
        (ID, ErrorCode.NONE),
        ("nobody's", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ("", ErrorCode.INVALID_REQUEST),
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_ids_are_listed_by_state_and_producer(broker: Broker, version: int) -> None:
    first, second = broker.world.begun("first"), broker.world.begun("second")
    broker.world.add(second, 0, name="second")
    broker.world.pass_ms(10)

    def listed(**filters: Any) -> dict[str, tuple[int, str]]:
        response = broker.call(ListTransactionsRequest(**filters), version)
        assert response.error_code == ErrorCode.NONE
        found = response.transaction_states
        return {each.transactional_id: (each.producer_id, each.transaction_state) for each in found}

    assert listed() == {"first": (first.producer_id, "Empty"), "second": (second.producer_id, "Ongoing")}
    assert list(listed(state_filters=["Ongoing"])) == ["second"]
    assert list(listed(producer_id_filters=[first.producer_id])) == ["first"]
    assert listed(state_filters=["Ongoing"], producer_id_filters=[first.producer_id]) == {}
    response = broker.call(ListTransactionsRequest(state_filters=["Ongoing", "Asleep"]), version)
    assert response.unknown_state_filters == ["Asleep"]


def test_ids_are_listed_by_how_long_their_transaction_is_open(broker: Broker) -> None:
    producer = broker.world.begun(ID)
    broker.world.add(producer, 0, name=ID)
    broker.world.pass_ms(5_000)

    def count(duration_ms: int) -> int:
        return len(broker.call(ListTransactionsRequest(duration_filter=duration_ms), 1).transaction_states)

    assert [count(-1), count(4_000), count(6_000)] == [1, 1, 0]


def test_without_the_partition_everything_is_refused_for_now(broker: Broker) -> None:
    producer = broker.world.begun(ID)
    broker.world.resign()
    code = ErrorCode.NOT_COORDINATOR
    assert broker.add(producer, ("t", 0)) == {TopicPartition("t", 0): code}
    assert broker.add_offsets(producer, 4) is code
    assert broker.end(producer) is code
    assert broker.describe().error_code == code
