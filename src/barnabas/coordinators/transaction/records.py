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
from barnabas.wire.codec import decode_prefixed, encode_prefixed
from barnabas.wire.messages import TransactionLogKey, TransactionLogValue
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

NOT_STARTED: Final = -1

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 0
_VERSION_BYTES: Final = 2


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
    by_topic: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        by_topic.setdefault(topic, []).append(partition)
    # Sorted by topic: as pairs, 50,000 of them take three times as long.
    partitions = [
        TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=sorted(by_topic[topic]))
        for topic in sorted(by_topic)
    ]
    return encode_prefixed(
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
    read = decode_prefixed(TransactionLogValue, value)[1]
    state = STATE_OF_STATUS.get(read.transaction_status)
    if state is None or state in TRANSIENT:
        raise ProtocolError(f"no record has transaction status {read.transaction_status}")
    topics = () if state is TransactionState.EMPTY else read.transaction_partitions or ()
    return Transaction(
        producer_id=read.producer_id,
        producer_epoch=read.producer_epoch,
        timeout_ms=read.transaction_timeout_ms,
        state=state,
        partitions=frozenset(TopicPartition(each.topic, number) for each in topics for number in each.partition_ids),
        started_ms=read.transaction_start_timestamp_ms,
        updated_ms=read.transaction_last_update_timestamp_ms,
    )
