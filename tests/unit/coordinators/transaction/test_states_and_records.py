"""`barnabas.coordinators.transaction.states` and `records`: every pair of states, and the bytes of a record."""

from __future__ import annotations

import pytest

from barnabas.coordinators.transaction.records import (
    Transaction,
    read_key,
    read_value,
    transaction_key,
    transaction_value,
)
from barnabas.coordinators.transaction.states import STATUS_OF_STATE, TRANSACTION, TransactionState
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

E, ON, PC, PA, CC, CA, D, F = TransactionState
ALLOWED = {
    *((source, target) for source in (E, CC, CA) for target in (E, ON, D)),
    *((ON, target) for target in (ON, PC, PA, F)),
    (F, PA),
    (PC, CC),
    (PA, CA),
}


@pytest.mark.parametrize("source", TransactionState)
@pytest.mark.parametrize("target", TransactionState)
def test_moves(source: TransactionState, target: TransactionState) -> None:
    if (source, target) in ALLOWED:
        assert TRANSACTION.advance("x", source, target) is target
    else:
        with pytest.raises(IllegalTransitionError):
            TRANSACTION.advance("x", source, target)


def test_statuses_are_those_of_kafka() -> None:
    assert [STATUS_OF_STATE[state] for state in (E, ON, PC, PA, CC, CA, D, F)] == list(range(8))


def test_the_bytes_of_a_record() -> None:
    open_one = Transaction(5, 2, 60_000, ON, frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}), 7, 9)
    value = transaction_value(open_one)
    assert transaction_key("x") == b"\0\0\0\1x"
    assert value.hex() == (
        "0000000000000000000500020000ea6001"
        "00000001000174000000020000000000000001"
        "00000000000000090000000000000007"
    )  # fmt: skip
    assert (read_key(b"\0\0\0\1x"), read_value(value)) == ("x", open_one)


def test_an_empty_one_has_null_for_partitions_and_a_complete_one_has_none() -> None:
    empty = Transaction(5, 0, 1, E, frozenset(), -1, 9)
    complete = Transaction(5, 0, 1, CC, frozenset(), 7, 9)
    assert transaction_value(empty)[17:21] == b"\xff\xff\xff\xff"
    assert transaction_value(complete)[17:21] == b"\0\0\0\0"
    assert [read_value(transaction_value(each)) for each in (empty, complete)] == [empty, complete]


def test_what_cannot_be_read_is_refused_and_other_types_are_left_out() -> None:
    assert read_key(b"\0\1\0\1x") is None
    for key in (b"", b"\0", b"\0\0\0\5x"):
        with pytest.raises(ProtocolError):
            read_key(key)
    value = bytearray(transaction_value(Transaction(5, 0, 1, E, frozenset(), -1, 9)))
    unwritten = []
    for status in (6, 7, 8):  # Dead and PrepareEpochFence are in no record
        value[16] = status
        unwritten.append(bytes(value))
    for wrong in (*unwritten, b"\0\x09", b""):
        with pytest.raises(ProtocolError):
            read_value(wrong)
