"""Very many transactional ids, and very many partitions in one transaction: a bounded piece in each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.coordinators.transaction import descriptions
from barnabas.coordinators.transaction.records import Transaction
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.kernel.steps import Steps
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

MANY = 10_000


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
