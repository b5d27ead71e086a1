"""What the cleaner may drop of transactions, where the log has lost a part of them already."""

from __future__ import annotations

from barnabas.log.cleaner.transactions import CleanedTransactions
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder

PRODUCER = 7


def data(offset: int) -> RecordBatch:
    builder = RecordBatchBuilder(
        base_offset=offset, producer_id=PRODUCER, producer_epoch=0, base_sequence=offset, is_transactional=True
    )
    builder.append(1000, b"key", b"value")
    return RecordBatch(bytes(builder.build()))


def marker(offset: int, type_: ControlRecordType) -> RecordBatch:
    return RecordBatch(
        bytes(
            end_transaction_batch(
                EndTransactionMarker(type_, 0),
                timestamp_ms=1000,
                producer_id=PRODUCER,
                producer_epoch=0,
                base_offset=offset,
                partition_leader_epoch=0,
            )
        )
    )


def aborted(first_offset: int, last_offset: int) -> AbortedTransaction:
    return AbortedTransaction(PRODUCER, first_offset, last_offset, last_offset + 1)


def test_committed_data_stay_behind_an_aborted_transaction_whose_marker_is_gone() -> None:
    transactions = CleanedTransactions([aborted(3, 4)])
    assert transactions.is_discarded(data(3))
    assert not transactions.is_discarded(data(5))
    assert not transactions.is_discarded(marker(6, ControlRecordType.COMMIT))


def test_a_marker_is_that_of_its_own_transaction() -> None:
    transactions = CleanedTransactions([aborted(3, 4), aborted(7, 8)])
    assert transactions.is_discarded(data(3))
    assert transactions.is_discarded(data(7))
    assert not transactions.is_discarded(marker(8, ControlRecordType.ABORT))
    assert transactions.kept == [aborted(7, 8)]


def test_a_marker_without_data_may_go() -> None:
    transactions = CleanedTransactions([aborted(3, 4)])
    assert transactions.is_discarded(marker(4, ControlRecordType.ABORT))
    assert transactions.kept == []
