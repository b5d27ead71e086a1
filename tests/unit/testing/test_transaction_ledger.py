"""`barnabas.testing.transaction_ledger`: each promise of transactions is missed when it is broken."""

from __future__ import annotations

import pytest

from barnabas.testing.cluster_history import RecordId
from barnabas.testing.transaction_ledger import NO_OFFSET, Transaction, TransactionLedger, seen
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.record_batch import RecordBatch, set_base_offset
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
ME, NEXT = (7, 0), (7, 1)


class Log:
    """One partition's log."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self._end_offset = 0

    def write(self, *records: RecordId, producer: tuple[int, int] = ME) -> None:
        builder = RecordBatchBuilder(
            producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, is_transactional=True
        )
        for record in records:
            builder.append(1, None, record.value())
        self._add(builder.build())

    def end(self, kind: ControlRecordType, producer: tuple[int, int] = ME) -> None:
        marker = EndTransactionMarker(kind, 1)
        self._add(
            bytearray(
                end_transaction_batch(marker, timestamp_ms=1, producer_id=producer[0], producer_epoch=producer[1])
            )
        )

    def _add(self, batch: bytearray) -> None:
        set_base_offset(batch, 0, self._end_offset)
        self.batches.append(RecordBatch(bytes(batch)))
        self._end_offset = self.batches[-1].last_offset + 1


class Run:
    """A transaction of one record in each of two partitions, and what came of it."""

    def __init__(self) -> None:
        self.now = 1.0
        self.ledger = TransactionLedger(lambda: self.now)
        self.logs = {P0: Log(), P1: Log()}
        self.ledger.initialized("x", 1, ME)

    def begin(self, *, has_offset: bool = False, producer: tuple[int, int] = ME) -> Transaction:
        transaction = self.ledger.begin("x", producer)
        transaction.has_offset = has_offset
        for number, (partition, log) in enumerate(self.logs.items()):
            record = RecordId(transaction.number, number)
            transaction.records[record] = partition
            log.write(record, producer=producer)
        return transaction

    def commit(self, transaction: Transaction, *kinds: ControlRecordType) -> None:
        self.ledger.asks_to_commit(transaction)
        self.ledger.committed(transaction)
        for log, kind in zip(self.logs.values(), kinds or (COMMIT, COMMIT), strict=True):
            log.end(kind, transaction.producer)

    def findings(self) -> list[str]:
        self.ledger.judge({partition: log.batches for partition, log in self.logs.items()}, "t")
        return self.ledger.findings


@pytest.fixture
def run() -> Run:
    return Run()


def only(findings: list[str]) -> str:
    (found,) = findings
    return found


def test_what_is_kept_is_no_finding(run: Run) -> None:
    one = run.begin(has_offset=True)
    run.commit(one)
    run.ledger.rests_at("x", one.number)
    run.ledger.told_offset("x", one.number)
    other = run.begin(has_offset=True)
    run.ledger.aborted(other, "aborted")
    for log in run.logs.values():
        log.end(ABORT)
    for partition, log in run.logs.items():
        for offset, record in seen(log.batches)[0]:
            run.ledger.given(1, partition, offset, record)
    assert run.findings() == []
    assert run.ledger.counts["transactions: visible"] == 1


@pytest.mark.parametrize("is_commit", [True, False])
def test_in_doubt_it_may_be_either(run: Run, is_commit: bool) -> None:
    transaction = run.begin()
    run.ledger.asks_to_commit(transaction)
    for log in run.logs.values():
        log.end(COMMIT if is_commit else ABORT)
    assert run.findings() == []
    assert run.ledger.counts[f"transactions: in doubt and {'committed' if is_commit else 'aborted'}"] == 1


def test_a_part_of_a_transaction(run: Run) -> None:
    run.commit(run.begin(), COMMIT, ABORT)
    assert "of the 2 records" in only(run.findings())


def test_an_acknowledged_commit_that_is_not_seen(run: Run) -> None:
    run.commit(run.begin(), ABORT, ABORT)
    assert "not seen" in only(run.findings())


def test_what_nobody_has_asked_to_commit_or_was_aborted_is_seen(run: Run) -> None:
    run.begin()
    aborted = run.begin()
    run.ledger.aborted(aborted, "aborted")
    for log in run.logs.values():
        log.end(COMMIT)
    assert [finding.rpartition(" ")[2] for finding in run.findings()] == ["undecided", "aborted"]


def test_records_without_their_offset_and_the_reverse(run: Run) -> None:
    run.commit(run.begin(has_offset=True))
    run.ledger.rests_at("x", NO_OFFSET)
    assert "its offset is not" in only(run.findings())
    other = Run()
    transaction = other.begin(has_offset=True)
    other.ledger.asks_to_commit(transaction)
    for log in other.logs.values():
        log.end(ABORT)
    other.ledger.told_offset("x", transaction.number)
    assert "none of its records" in only(other.findings())


def test_a_reader_or_an_asker_is_told_of_an_open_transaction(run: Run) -> None:
    transaction = run.begin(has_offset=True)
    run.ledger.given(1, P0, 0, RecordId(transaction.number, 0))
    run.ledger.told_offset("x", transaction.number)
    assert all("nobody has asked to commit" in finding for finding in run.ledger.findings)
    assert len(run.ledger.findings) == 2


def test_a_reader_is_given_what_is_not_there_or_lacks_what_is(run: Run) -> None:
    one, other = run.begin(), run.begin()
    run.commit(one)
    run.ledger.asks_to_commit(other)
    run.ledger.given(1, P0, 1, RecordId(other.number, 0))
    run.ledger.given(2, P0, 0, None)
    assert [finding.partition(": ")[2][:8] for finding in run.findings()] == ["a reader", "reader 1"]


def test_a_record_twice_and_out_of_order(run: Run) -> None:
    one = run.begin()
    run.logs[P0].write(RecordId(one.number, 0))
    run.commit(one)
    twice, behind = run.findings()
    assert "there twice" in twice
    assert "is behind" in behind


def test_who_was_replaced_commits(run: Run) -> None:
    transaction = run.begin()
    run.ledger.initialized("x", 2, NEXT)
    run.now = 2.0
    run.commit(transaction)
    assert "has had the id since 1.000 s" in only(run.findings())


def test_two_instances_with_one_epoch(run: Run) -> None:
    run.ledger.initialized("x", 2, ME)
    assert "both given" in only(run.findings())


def test_a_transaction_stays_open(run: Run) -> None:
    run.begin()
    assert all("is open" in finding for finding in run.findings())
    assert len(run.ledger.findings) == 2
