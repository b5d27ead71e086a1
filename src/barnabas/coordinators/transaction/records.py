"""The records of `__transaction_state`: one per change of a transactional id, and a tombstone when it expires.

Values are written in version 0, as by Apache Kafka 3.9 with ZooKeeper; version 1 is read, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from barnabas.coordinators.transaction.states import (
    STATE_OF_STATUS,
    STATUS_OF_STATE,
    TRANSIENT,
    TransactionState,
)
from barnabas.kernel.steps import Steps, at_once, each
from barnabas.wire.codec import (
    decode_prefixed,
    decode_prefixed_in_steps,
    encode_prefixed,
    encode_prefixed_in_steps,
)
from barnabas.wire.messages import TransactionLogKey, TransactionLogValue
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

NOT_STARTED: Final = -1

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 0
_VERSION_BYTES: Final = 2
_PARTITIONS_PER_STEP: Final = 1024
_READ_AT_ONCE_BYTES_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the log says of one transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    """Those whose markers are to be written at the end; none in Empty and in the complete states."""
    started_ms: int
    """`NOT_STARTED` in Empty."""
    updated_ms: int


def transaction_key(transactional_id: str) -> bytes:
    return encode_prefixed(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def transaction_value(transaction: Transaction) -> bytes:
    return at_once(transaction_value_in_steps(transaction))


def transaction_value_in_steps(transaction: Transaction) -> Steps[bytes]:
    """As `transaction_value`, in steps."""
    by_topic: dict[str, list[int]] = {}
    left = _PARTITIONS_PER_STEP
    for topic, partition in transaction.partitions:
        by_topic.setdefault(topic, []).append(partition)
        left -= 1
        if not left:
            yield
            left = _PARTITIONS_PER_STEP
    # Sorted by topic: as pairs, 50,000 of them take three times as long.
    partitions = yield from each(
        lambda topic: TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=sorted(by_topic[topic])),
        sorted(by_topic),
        _PARTITIONS_PER_STEP,
    )
    return (
        yield from encode_prefixed_in_steps(
            TransactionLogValue(
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                transaction_timeout_ms=transaction.timeout_ms,
                transaction_status=STATUS_OF_STATE[transaction.state],
                transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
                transaction_last_update_timestamp_ms=transaction.updated_ms,
                transaction_start_timestamp_ms=transaction.started_ms,
            ),
            _VALUE_VERSION,
        )
    )


def read_key(key: bytes) -> str | None:
    """The transactional id; None for a type of record that is not known.

    Raises `ProtocolError` for a key that is none.
    """
    if len(key) >= _VERSION_BYTES and int.from_bytes(key[:_VERSION_BYTES], "big", signed=True) != _KEY_VERSION:
        return None
    return decode_prefixed(TransactionLogKey, key)[1].transactional_id


def read_value(value: bytes) -> Transaction:
    """Raises `ProtocolError` for a value that is none, of a version that is not known, or with a status that no record
    has: Kafka would take the two that are never written, and from then on fail every request for such an id.
    """
    return at_once(_transaction(decode_prefixed(TransactionLogValue, value)[1]))


def read_value_in_steps(value: bytes) -> Steps[Transaction]:
    """As `read_value`; a value of few bytes takes one step."""
    if len(value) <= _READ_AT_ONCE_BYTES_MAX:
        return read_value(value)
    return (yield from _transaction((yield from decode_prefixed_in_steps(TransactionLogValue, value))[1]))


def _transaction(read: TransactionLogValue) -> Steps[Transaction]:
    state = STATE_OF_STATUS.get(read.transaction_status)
    if state is None or state in TRANSIENT:
        raise ProtocolError(f"no record has transaction status {read.transaction_status}")
    partitions: set[TopicPartition] = set()
    left = _PARTITIONS_PER_STEP
    # Taken out one by one: given back at once, very many topics hold the loop.
    topics = read.transaction_partitions or []
    topics.reverse()
    if state is TransactionState.EMPTY:
        topics = []
    while topics:
        each_topic = topics.pop()
        for start in range(0, len(each_topic.partition_ids), _PARTITIONS_PER_STEP):
            numbers = each_topic.partition_ids[start : start + _PARTITIONS_PER_STEP]
            partitions.update([TopicPartition(each_topic.topic, number) for number in numbers])
            left -= len(numbers)
            if left <= 0:
                yield
                left = _PARTITIONS_PER_STEP
    return Transaction(
        producer_id=read.producer_id,
        producer_epoch=read.producer_epoch,
        timeout_ms=read.transaction_timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        started_ms=read.transaction_start_timestamp_ms,
        updated_ms=read.transaction_last_update_timestamp_ms,
    )
