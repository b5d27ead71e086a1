"""Very many transactional ids, and very many partitions in one transaction: a bounded piece in each step."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from barnabas.coordinators.shard import batch_in_steps
from barnabas.coordinators.transaction import descriptions, records
from barnabas.coordinators.transaction import transactions as transactions_module
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.loading import TransactionLoader
from barnabas.coordinators.transaction.markers import Ending, MarkerSender
from barnabas.coordinators.transaction.records import (
    Transaction,
    read_value,
    read_value_in_steps,
    transaction_key,
    transaction_value,
    transaction_value_in_steps,
)
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, at_once
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.compression_types import NO_COMPRESSION
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import ELEMENTS_MAX
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
        written = [(transaction_key(f"x{number}"), value)]
        world.log.write(SHARD, at_once(batch_in_steps(written, 1, NO_COMPRESSION)))
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
    """Decoding takes as long as encoding."""

    def read(_value: bytes) -> Steps[Transaction]:
        raise AssertionError("a value was decoded")

    world = TransactionWorld()
    world.elect()
    monkeypatch.setattr(transactions_module, "read_value_in_steps", read)
    producer = world.begun()
    added = world.add(producer, *range(MANY))
    world.pass_ms(20)
    ended = world.end(producer)
    world.pass_ms(2_000)
    assert added == ended == [ErrorCode.NONE]
    monkeypatch.undo()
    latest = world.log.latest()["x"]
    assert latest is not None
    assert latest.state is TransactionState.COMPLETE_COMMIT
    assert sum(map(len, world.brokers.markers.values())) == MANY
    world.close()


@pytest.mark.parametrize("per_topic", [1, 7, MANY])
def test_a_large_record_is_made_and_read_in_pieces(per_topic: int) -> None:
    transaction = ongoing(numbered(MANY, per_topic))
    value, most = played(transaction_value_in_steps(transaction))
    assert most <= records._PARTITIONS_PER_STEP
    assert value == transaction_value(transaction)
    read, pieces = None, 1
    steps = read_value_in_steps(value)
    try:
        while True:
            next(steps)
            pieces += 1
    except StopIteration as stop:
        read = stop.value
    assert read == read_value(value) == transaction
    assert pieces > MANY // records._PARTITIONS_PER_STEP


def test_the_largest_record_is_read_in_pieces_too() -> None:
    """Of more elements than a request may have, and more than 4 MiB, as with a large `max.message.bytes`."""
    count = ELEMENTS_MAX // 2 + 150_000
    entries = b"".join(b"\0\1t\0\0\0\1" + number.to_bytes(4, "big") for number in range(count))
    value = b"\0\0" + bytes(14) + b"\1" + count.to_bytes(4, "big") + entries + bytes(16)
    assert len(value) > 4 << 20
    read: list[Transaction] = []

    def reading() -> Steps[None]:
        read.append((yield from read_value_in_steps(value)))

    pieces = sum(1 for _ in reading())
    assert read[0].partitions == {TopicPartition("t", number) for number in range(count)}
    assert pieces > 3 * count // 2 // records._PARTITIONS_PER_STEP


def test_making_a_large_record_takes_steps_that_do_not_grow_with_it() -> None:
    """Of the topics that are sorted, written and read, too: counted are the lines of Python that run in one step."""
    longest = []
    for count in (2_000, 3_000, 6_000):  # the first has encoder and decoder be compiled
        transaction = ongoing(frozenset(numbered(count, 1)))
        value, most_written = longest_step(transaction_value_in_steps(transaction))
        _, most_read = longest_step(read_value_in_steps(value))
        longest.append((most_written, most_read))
    assert longest[2] == pytest.approx(longest[1], rel=0.2)


def longest_step(steps: Steps[Any]) -> tuple[Any, int]:
    """The result, and how many lines of code ran in one step at most."""
    most = lines = 0

    def count(_frame: object, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    try:
        while True:
            lines = 0
            sys.settrace(count)
            next(steps)
            sys.settrace(before)
            most = max(most, lines)
    except StopIteration as stop:
        sys.settrace(before)
        return stop.value, max(most, lines)


@pytest.fixture
def large() -> Iterator[tuple[TransactionWorld, Producer]]:
    """A producer whose transaction has many partitions."""
    world = TransactionWorld()
    world.elect()
    producer = world.begun()
    assert world.add(producer, 0) == [ErrorCode.NONE]
    yield world, producer
    world.close()


def test_nobody_decides_on_an_id_while_a_large_record_of_it_is_made(large: tuple[TransactionWorld, Producer]) -> None:
    world, producer = large
    added = world.add(producer, *range(MANY))
    before = world.log.end_offsets[SHARD]
    assert added == []
    assert world.add(producer, 1) == world.end(producer) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    ((code, _),) = world.init()
    assert code is ErrorCode.CONCURRENT_TRANSACTIONS
    verify = world.coordinator.verification("x", producer)
    assert [verify(TopicPartition("t", number)) for number in (0, 1)] == [
        ErrorCode.NONE,
        ErrorCode.TRANSACTION_ABORTABLE,
    ]
    assert world.log.end_offsets[SHARD] == before
    world.pass_ms(20)
    assert added == [ErrorCode.NONE]
    assert world.coordinator.verification("x", producer)(TopicPartition("t", 1)) is ErrorCode.NONE
    assert world.add(producer, MANY) == []
    world.pass_ms(20)
    ended = world.end(producer)
    world.pass_ms(2_000)
    assert ended == [ErrorCode.NONE]


def test_a_large_record_that_is_refused_changes_nothing(large: tuple[TransactionWorld, Producer]) -> None:
    world, producer = large
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    added = world.add(producer, *range(MANY))
    world.pass_ms(20)
    assert added == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.log.refusal = None
    assert world.add(producer, 1) == [ErrorCode.NONE]
    ended = world.end(producer)
    world.pass_ms(20)
    assert ended == [ErrorCode.NONE]
    assert world.brokers.markers.keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}


@pytest.mark.parametrize("ending", ["resigns", "resigns and leads again", "stops"])
def test_who_waits_for_a_large_record_is_told_when_the_coordinator_goes(
    large: tuple[TransactionWorld, Producer], ending: str
) -> None:
    world, producer = large
    added = world.add(producer, *range(MANY))
    if ending == "stops":
        world.stop_broker()
    else:
        world.resign()
        if ending == "resigns and leads again":
            world.elect()
    world.pass_ms(20)
    assert added == [ErrorCode.NOT_COORDINATOR]
    latest = world.log.latest()["x"]
    assert latest is not None
    assert latest.partitions == {TopicPartition("t", 0)}
