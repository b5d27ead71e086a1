"""Very many transactional ids, and very many partitions in one transaction: a bounded piece in each step."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from barnabas.coordinators.shard import batch_in_steps
from barnabas.coordinators.transaction import descriptions
from barnabas.coordinators.transaction import transactions as transactions_module
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.loading import TransactionLoader
from barnabas.coordinators.transaction.markers import Ending, MarkerSender
from barnabas.coordinators.transaction.records import Transaction, transaction_key, transaction_value
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, at_once
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.compression_types import NO_COMPRESSION
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import walk_batches
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.turn_counting import TurnCount
from tests.unit.coordinators.transaction.transaction_world import SHARD, TransactionWorld

MANY = 10_000
ME = Producer(7, 3)


class Walked(frozenset[TopicPartition]):
    """Partitions that count how often one of them is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[TopicPartition]:
        for partition in super().__iter__():
            Walked.looks += 1
            yield partition


def ongoing(partitions: frozenset[TopicPartition]) -> Transaction:
    return Transaction(7, 3, 60_000, TransactionState.ONGOING, partitions, 1, 1)


def numbered(count: int, per_topic: int) -> Walked:
    return Walked(TopicPartition(f"t{number // per_topic}", number % per_topic) for number in range(count))


def played(steps: Steps[Any]) -> tuple[Any, int]:
    """The result, and how many partitions were looked at in one step at most."""
    most, before = 0, Walked.looks
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, max(most, Walked.looks - before)
        most, before = max(most, Walked.looks - before), Walked.looks


@pytest.mark.parametrize(("ids", "per_id", "per_topic"), [(1, MANY, MANY), (1, MANY, 1), (MANY // 10, 10, 3)])
def test_transactions_are_described_in_pieces(ids: int, per_id: int, per_topic: int) -> None:
    asked = {f"x{number}": ongoing(numbered(per_id, per_topic)) for number in range(ids)}
    states, most = played(descriptions.described(asked, asked.__getitem__))
    assert most <= descriptions._DESCRIBED_PER_STEP
    assert [state.transactional_id for state in states] == list(asked)
    for state in states:
        shown = [(topic.topic, number) for topic in state.topics for number in topic.partitions]
        assert sorted(shown) == sorted(asked[state.transactional_id].partitions)


def test_ids_that_are_not_known_count_towards_a_step() -> None:
    def find(_transactional_id: str) -> Transaction:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

    steps = descriptions.described([f"x{number}" for number in range(MANY)], find)
    assert sum(1 for _ in steps) == MANY // descriptions._DESCRIBED_PER_STEP


def partition_sets(world: TransactionWorld, ids: int, partitions: int, state: TransactionState) -> None:
    """Writes so many ids into the log, each with a transaction of so many partitions in the state."""
    transaction = replace(ongoing(numbered(partitions, 10)), state=state, started_ms=world.clock.time_ms())
    value = transaction_value(transaction)
    for number in range(ids):
        records = [(transaction_key(f"x{number}"), value)]
        world.log.write(SHARD, at_once(batch_in_steps(records, 1, NO_COMPRESSION)))
    world.log.commit()


@pytest.mark.parametrize("partitions", [0, 1, 100, 1_000])
def test_partitions_count_when_a_shard_is_loaded_and_given_back(partitions: int) -> None:
    ids = 20_000 // (partitions + 1)
    builder = RecordBatchBuilder()
    value = transaction_value(ongoing(numbered(partitions, 10)))
    for number in range(ids):
        builder.append(1, transaction_key(f"x{number}"), value)
    data = builder.build()
    loader = TransactionLoader(logging.getLogger("tests"))
    pieces = sum(1 for _ in loader.replay(batch_at(data, walk_batches(data).spans[0])))
    assert pieces >= ids * (partitions + 1) // max(2 * STEP_ELEMENTS, partitions)
    transactions = loader.take()
    assert len(transactions) == ids
    pieces = sum(1 for _ in transactions.emptied())
    assert pieces >= ids * (partitions + 1) // (2 * transactions_module._FREED_PER_STEP)
    assert len(transactions) == 0


def test_a_new_coordinator_sends_markers_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds prepared is not looked at before its partitions are routed, so many of them in a turn."""
    world = TransactionWorld()
    partition_sets(world, 100, 100, TransactionState.PREPARE_COMMIT)
    routed = TurnCount(world.loop, monkeypatch, MarkerSender, "_route_partition")
    world.elect()
    world.pass_ms(1_000)
    assert routed.total == MANY
    assert routed.most_in_a_turn <= STEP_ELEMENTS
    assert sum(map(len, world.brokers.markers.values())) == MANY
    latest = [transaction.state for transaction in world.log.latest().values() if transaction is not None]
    assert latest == [TransactionState.COMPLETE_COMMIT] * 100
    world.close()


def test_an_ending_looks_at_no_partition_before_it_is_routed() -> None:
    looks = Walked.looks
    partitions = numbered(MANY, 10)
    ending = Ending("x", ME, 1, partitions, is_commit=True, is_wanted=lambda: True, on_written=lambda: None)
    assert (ending.left, Walked.looks) == (MANY, looks)
    assert ending.take_unrouted() is partitions
    assert not ending.take_unrouted()


def test_time_outs_of_large_transactions_are_aborted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TransactionWorld()
    partition_sets(world, 50, 200, TransactionState.ONGOING)
    world.elect()
    aborted = TurnCount(world.loop, monkeypatch, TransactionCoordinator, "_abort")
    world.pass_ms(3 * 60_000)
    assert aborted.total == 50
    assert aborted.most_in_a_turn <= 1 + STEP_ELEMENTS // 200
    world.close()


def test_what_is_appended_is_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 partitions are encoded in the turn of an AddPartitionsToTxn and of an EndTxn; decoding takes as long."""

    def read(_value: bytes) -> Transaction:
        raise AssertionError("a value was decoded")

    world = TransactionWorld()
    world.elect()
    monkeypatch.setattr(transactions_module, "read_value", read)
    producer = world.begun()
    assert world.add(producer, *range(MANY)) == [ErrorCode.NONE]
    assert world.end(producer) == [ErrorCode.NONE]
    world.pass_ms(2_000)
    monkeypatch.undo()
    latest = world.log.latest()["x"]
    assert latest is not None
    assert latest.state is TransactionState.COMPLETE_COMMIT
    assert sum(map(len, world.brokers.markers.values())) == MANY
    world.close()
