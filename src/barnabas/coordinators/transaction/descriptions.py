"""Transactional ids as DescribeTransactions and ListTransactions show them (KIP-664)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from barnabas.coordinators.transaction.records import Transaction
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.coordinators.transaction.transactions import Transactions
from barnabas.kernel.steps import Steps
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import DescribeTransactionsResponse, ListTransactionsResponse

_LISTED_PER_STEP: Final = 2_048
_DESCRIBED_PER_STEP: Final = 2_048
"""Ids, and topics and partitions of their transactions."""


def described(
    transactional_ids: Iterable[str], find: Callable[[str], Transaction]
) -> Steps[list[DescribeTransactionsResponse.TransactionState]]:
    """Each id as its last record says, committed or not yet. Errors of `find` are KafkaErrors, and in the answer."""
    states: list[DescribeTransactionsResponse.TransactionState] = []
    left = _DESCRIBED_PER_STEP
    for transactional_id in transactional_ids:
        state = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
        states.append(state)
        left -= 1
        if not left:
            yield
            left = _DESCRIBED_PER_STEP
        try:
            transaction = find(transactional_id)
        except KafkaError as error:
            state.error_code = error.code
            continue
        by_topic: dict[str, list[int]] = {}
        for topic, number in transaction.partitions:
            by_topic.setdefault(topic, []).append(number)
            left -= 1
            if not left:
                yield
                left = _DESCRIBED_PER_STEP
        state.transaction_state = transaction.state.value
        state.transaction_timeout_ms = transaction.timeout_ms
        state.transaction_start_time_ms = transaction.started_ms
        state.producer_id = transaction.producer_id
        state.producer_epoch = transaction.producer_epoch
        for topic, numbers in by_topic.items():
            state.topics.append(DescribeTransactionsResponse.TopicData(topic=topic, partitions=numbers))
            left -= 1
            if not left:
                yield
                left = _DESCRIBED_PER_STEP
    return states


def listed(
    shards: Iterable[Transactions],
    producer_ids: Collection[int],
    state_names: Collection[str],
    duration_ms: int,
    now_ms: int,
) -> Steps[ListTransactionsResponse]:
    """Ids of one of the producers and in one of the states, or all where none are named; those whose transaction began
    more than `duration_ms` ago, unless that is below 0. One that never had a transaction began before all time, as in
    Kafka.
    """
    states = {state.value for state in TransactionState}
    wanted_ids, wanted_states = set(producer_ids), set(state_names)
    found: list[ListTransactionsResponse.TransactionState] = []
    left = _LISTED_PER_STEP
    for transactions in shards:
        for transactional_id in transactions.ids:
            left -= 1
            if not left:
                yield
                left = _LISTED_PER_STEP
            transaction = transactions.get(transactional_id)
            if (
                transaction is not None
                and (not wanted_ids or transaction.producer_id in wanted_ids)
                and (not wanted_states or transaction.state.value in wanted_states)
                and (duration_ms < 0 or now_ms - transaction.started_ms > duration_ms)
            ):
                found.append(
                    ListTransactionsResponse.TransactionState(
                        transactional_id=transactional_id,
                        producer_id=transaction.producer_id,
                        transaction_state=transaction.state.value,
                    )
                )
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in state_names if name not in states], transaction_states=found
    )
