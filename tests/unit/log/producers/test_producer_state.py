"""Idempotence and transactions as a partition sees them."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.log.producers.producer_state import (
    BATCHES_REMEMBERED,
    LATE_TRANSACTION_MS,
    BatchMetadata,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    ProducerEntry,
    ProducerState,
    ProducerStateError,
    TransactionCoordinatorFencedError,
    Update,
    next_of,
)
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker
from barnabas.wire.record_batch import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, INT32_MAX, BatchHeader
from tests.unit.log.verified import verified

PRODUCER = 7


def header(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    offset: int = 0,
    producer_id: int = PRODUCER,
    attributes: int = 0,
    timestamp_ms: int = 1000,
) -> BatchHeader:
    return BatchHeader(
        offset, 60, 0, 2, 0, attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, epoch, sequence, count
    )


class Partition:
    """A log of headers in front of the state, as a leader appends them."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.log: list[tuple[BatchHeader, EndTransactionMarker | None]] = []

    def append(self, batch: BatchHeader) -> int | None:
        """The base offset; that of the first time for a duplicate."""
        with contextlib.ExitStack() as stack:
            if batch.is_transactional:
                stack.enter_context(verified(self.state, batch.producer_id, batch.producer_epoch))
            return self._append(batch)

    def _append(self, batch: BatchHeader) -> int | None:
        base_offset = self.state.end_offset
        wanted = self.state.find_duplicate(batch) or self.prepared(batch, base_offset)
        if isinstance(wanted, ProducerStateError):
            with pytest.raises(type(wanted)):
                self.state.check_client(batch, base_offset, batch.max_timestamp_ms)
            raise wanted
        outcome = self.state.check_client(batch, base_offset, batch.max_timestamp_ms)
        assert outcome == wanted, "both in one give what they give one by one"
        if isinstance(outcome, BatchMetadata):
            return outcome.first_offset
        if batch.is_transactional:
            self.state.apply(Update(ProducerEntry._make(outcome), None), base_offset + batch.record_count)
        else:
            self.state.apply_clients({outcome[0]: outcome}, base_offset + batch.record_count)
        self.log.append((batch._replace(base_offset=base_offset), None))
        return base_offset

    def prepared(self, batch: BatchHeader, base_offset: int) -> ProducerEntry | ProducerStateError:
        try:
            return self.state.prepare_client(batch, base_offset, batch.max_timestamp_ms)
        except ProducerStateError as error:
            return error

    def send(
        self, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False, producer: int = 7
    ) -> int | None:
        attributes = ATTRIBUTE_TRANSACTIONAL if transactional else 0
        return self.append(header(sequence, count, epoch=epoch, attributes=attributes, producer_id=producer))

    def end(
        self, type_: ControlRecordType, *, epoch: int = 0, coordinator_epoch: int = 0, producer: int = 7
    ) -> AbortedTransaction | None:
        offset = self.state.end_offset
        marker = EndTransactionMarker(type_, coordinator_epoch)
        batch = header(
            -1, epoch=epoch, offset=offset, producer_id=producer, attributes=ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL
        )
        update = self.state.prepare_marker(batch, marker, offset, 1000)
        aborted = self.state.apply(update, offset + 1)
        self.log.append((batch, marker))
        return aborted


@pytest.fixture
def partition() -> Partition:
    return Partition()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_a_repeated_batch_is_found_among_the_last_five(counts: list[int], data: st.DataObject) -> None:
    """Invariant: whatever a producer with five requests on their way repeats, each batch is in the log once."""
    partition = Partition()
    sequences = [0, *itertools.accumulate(counts)]
    for number in range(len(counts)):
        assert partition.send(sequences[number], counts[number]) == sequences[number]
        back = data.draw(st.integers(0, min(number, BATCHES_REMEMBERED - 1)))
        assert partition.send(sequences[number - back], counts[number - back]) == sequences[number - back]
    assert partition.state.end_offset == sum(counts)


Sent = tuple[int, int, int, bool]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(1, 3), st.booleans()),
            st.tuples(st.integers(0, 3), st.just(-1), st.just(1), st.just(True)),
        ),
        max_size=40,
    )
)
@example([(0, 0, 1, True), (0, 1, 1, True), (1, 0, 1, True), (1, 1, 1, True)])
@example([(0, 0, 1, True), (0, 1, 1, True), (1, -1, 1, True), (1, 0, 1, True), (1, 1, 1, True)])
@example([(0, 0, 3, False), (0, 1, 2, False)])
@example([(0, 0, 1, False), (1, 1, 1, False)])
def test_the_log_has_no_gap_and_no_repetition(sent: list[Sent]) -> None:
    """Invariants: within an epoch, sequences in the log follow one another, and epochs never go back; what is answered
    as a repetition is in the log, in the very epoch. Whatever is sent, in transactions (sequence -1 ends one) or not.
    """
    partition = Partition()
    for epoch, sequence, count, transactional in sent:
        before = len(partition.log)
        try:
            if sequence < 0:
                partition.end(ControlRecordType.COMMIT, epoch=epoch)
                continue
            offset = partition.send(sequence, count, epoch=epoch, transactional=transactional)
        except (OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTransactionStateError):
            continue
        if len(partition.log) == before:
            (found,) = [batch for batch, _ in partition.log if batch.base_offset == offset]
            assert (found.producer_epoch, found.base_sequence, found.record_count) == (epoch, sequence, count)
    data = [batch for batch, marker in partition.log if marker is None]
    for earlier, later in itertools.pairwise(data):
        if earlier.producer_epoch == later.producer_epoch:
            assert later.base_sequence == earlier.last_sequence + 1
        else:
            assert later.producer_epoch > earlier.producer_epoch
            assert later.base_sequence == 0


@pytest.mark.parametrize("marked", [False, True], ids=["bumped", "bumped by a marker"])
@pytest.mark.parametrize("transactional", [False, True])
def test_nothing_of_a_new_epoch_repeats_what_the_old_one_wrote(
    partition: Partition, transactional: bool, marked: bool
) -> None:
    """ProducerStateEntry.findDuplicateBatch of Apache Kafka looks at the batches of the present epoch alone."""
    old = [partition.send(sequence, 2, transactional=transactional) for sequence in (0, 2, 4)]
    if marked:
        partition.end(ControlRecordType.ABORT, epoch=1)
    new = [partition.send(sequence, 2, epoch=1, transactional=transactional) for sequence in (0, 2, 4)]
    assert (old, new) == ([0, 2, 4], [6 + marked, 8 + marked, 10 + marked])
    repeated = [partition.send(sequence, 2, epoch=1, transactional=transactional) for sequence in (0, 2, 4)]
    assert repeated == new


def test_sequences_go_on_after_the_largest(partition: Partition) -> None:
    partition.send(INT32_MAX - 1, 2)
    assert partition.send(0, 3) == 2
    assert partition.send(3) == 5
    with pytest.raises(OutOfOrderSequenceError, match="sequence 5 where 4 is next"):
        partition.send(5)


def test_a_batch_across_the_largest_sequence_is_found_again(partition: Partition) -> None:
    partition.send(INT32_MAX, 3)
    assert partition.send(INT32_MAX, 3) == 0
    assert partition.send(2) == 3


def test_a_batch_older_than_five_is_out_of_order(partition: Partition) -> None:
    for sequence in range(BATCHES_REMEMBERED + 1):
        partition.send(sequence)
    assert partition.send(1) == 1
    with pytest.raises(OutOfOrderSequenceError):
        partition.send(0)


def test_a_refused_batch_changes_nothing(partition: Partition) -> None:
    partition.send(0)
    before = partition.state.snapshot()
    with pytest.raises(OutOfOrderSequenceError):
        partition.send(2)
    assert partition.state.snapshot() == before
    assert partition.send(1) == 1


def test_an_older_epoch_is_fenced(partition: Partition) -> None:
    partition.send(0, epoch=3)
    with pytest.raises(InvalidProducerEpochError):
        partition.send(1, epoch=2)
    with pytest.raises(OutOfOrderSequenceError, match="begins epoch 4"):
        partition.send(1, epoch=4)
    assert partition.send(0, epoch=4) == 1


def test_an_unknown_producer_may_go_on_anywhere(partition: Partition) -> None:
    assert partition.send(17) == 0
    assert partition.send(18) == 1


def test_producers_expire_unless_a_transaction_is_open(partition: Partition) -> None:
    partition.send(0, producer=1)
    partition.send(0, producer=2, transactional=True)
    partition.state.remove_expired(1000 + partition.state.expiration_ms - 1)
    assert len(partition.state) == 2
    partition.state.remove_expired(1000 + partition.state.expiration_ms)
    assert [entry.producer_id for entry in partition.state] == [2]


def test_an_open_transaction_is_unstable_until_its_marker_is_replicated(partition: Partition) -> None:
    state = partition.state
    partition.send(0, producer=1)
    partition.send(0, 2, producer=2, transactional=True)
    partition.send(0, producer=3, transactional=True)
    assert state.first_unstable_offset == 1
    assert partition.end(ControlRecordType.COMMIT, producer=2) is None
    assert state.first_unstable_offset == 1
    state.high_watermark_moved(4)
    assert state.first_unstable_offset == 1
    state.high_watermark_moved(5)
    assert state.first_unstable_offset == 3
    assert partition.end(ControlRecordType.ABORT, producer=3) == AbortedTransaction(3, 3, 5, 6)
    state.high_watermark_moved(6)
    assert state.first_unstable_offset is None


def test_an_aborted_transaction_knows_what_was_open_besides(partition: Partition) -> None:
    partition.send(0, producer=1, transactional=True)
    partition.send(0, producer=2, transactional=True)
    assert partition.end(ControlRecordType.ABORT, producer=2) == AbortedTransaction(2, 1, 2, 0)
    assert partition.state.first_unstable_offset == 0


def test_a_transaction_without_data_leaves_no_trace(partition: Partition) -> None:
    assert partition.end(ControlRecordType.ABORT) is None
    assert partition.state.first_unstable_offset is None


def test_writing_beside_an_open_transaction_is_refused(partition: Partition) -> None:
    partition.send(0, transactional=True)
    with pytest.raises(InvalidTransactionStateError, match="began at 0"):
        partition.send(1)
    assert partition.send(1, transactional=True) == 1


def test_an_older_coordinator_is_fenced(partition: Partition) -> None:
    partition.send(0, transactional=True)
    partition.end(ControlRecordType.COMMIT, coordinator_epoch=5)
    with pytest.raises(TransactionCoordinatorFencedError):
        partition.end(ControlRecordType.COMMIT, coordinator_epoch=4)
    with pytest.raises(InvalidProducerEpochError):
        partition.end(ControlRecordType.COMMIT, epoch=-1, coordinator_epoch=6)


def test_a_marker_of_a_newer_epoch_begins_that_epoch(partition: Partition) -> None:
    partition.send(0, transactional=True)
    partition.end(ControlRecordType.ABORT, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        partition.send(1, transactional=True)
    assert partition.send(0, epoch=1, transactional=True) == 2


def test_a_hanging_transaction_is_late(partition: Partition) -> None:
    state = partition.state
    limit_ms = 1000 + state.transaction_timeout_max_ms + LATE_TRANSACTION_MS
    assert not state.has_late_transaction(limit_ms + 1)
    partition.send(0, transactional=True)
    assert not state.has_late_transaction(limit_ms)
    assert state.has_late_transaction(limit_ms + 1)


steps = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["send", "begin", "commit", "abort"]), st.integers(0, 1)), max_size=30
)


def run(chosen: list[tuple[int, str, int]]) -> Partition:
    """Producers that write well or badly; what is refused is left out of the log."""
    partition = Partition()
    for producer, action, epoch in chosen:
        entry = partition.state.get(producer)
        same_epoch = entry is not None and entry.epoch == epoch
        sequence = entry.last_sequence + 1 if entry is not None and same_epoch else 0
        try:
            if action in {"commit", "abort"}:
                type_ = ControlRecordType.COMMIT if action == "commit" else ControlRecordType.ABORT
                partition.end(type_, epoch=epoch, producer=producer)
            else:
                partition.send(sequence, epoch=epoch, producer=producer, transactional=action == "begin")
        except (InvalidProducerEpochError, InvalidTransactionStateError):
            continue
    return partition


@given(steps)
def test_a_follower_that_replays_the_log_has_the_same_state(chosen: list[tuple[int, str, int]]) -> None:
    """Invariant: the state is a function of the log, so a follower and a recovered leader decide as the leader did."""
    partition = run(chosen)
    follower = ProducerState()
    for batch, marker in partition.log:
        follower.replay(batch, marker)
    assert follower == partition.state


@given(steps, st.data())
def test_a_snapshot_and_the_rest_of_the_log_give_the_same_state(
    chosen: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    """Invariant: recovery from any snapshot ends in the state of the whole log, but for older batches of the window."""
    partition = run(chosen)
    cut = data.draw(st.integers(0, len(partition.log)))
    first = ProducerState()
    for batch, marker in partition.log[:cut]:
        first.replay(batch, marker)
    second = ProducerState()
    second.load(first.snapshot(), first.end_offset, now_ms=1000)
    for batch, marker in partition.log[cut:]:
        second.replay(batch, marker)
    assert second.snapshot() == partition.state.snapshot()
    second.high_watermark_moved(second.end_offset)
    partition.state.high_watermark_moved(second.end_offset)
    assert second.first_unstable_offset == partition.state.first_unstable_offset
    assert second.end_offset == partition.state.end_offset


def test_a_snapshot_leaves_out_who_has_expired(partition: Partition) -> None:
    partition.send(0, producer=1)
    partition.send(0, producer=2, transactional=True)
    again = ProducerState()
    again.load(partition.state.snapshot(), 2, now_ms=1000 + again.expiration_ms)
    assert [entry.producer_id for entry in again] == [2]
    assert again.first_unstable_offset == 1


def test_a_cleared_state_knows_nobody(partition: Partition) -> None:
    partition.send(0, transactional=True)
    partition.state.clear(9)
    assert partition.state == ProducerState(end_offset=9)


def test_deleted_records_end_the_wait(partition: Partition) -> None:
    partition.send(0, transactional=True)
    partition.end(ControlRecordType.COMMIT)
    partition.state.log_start_moved(10)
    assert partition.state.first_unstable_offset is None
    assert partition.state.end_offset == 10


def test_offsets_of_a_transaction_have_no_sequence(partition: Partition) -> None:
    state = partition.state
    batch = header(-1, attributes=ATTRIBUTE_TRANSACTIONAL)
    with verified(state, PRODUCER):
        for offset in range(2):
            state.apply(state.prepare_coordinator(batch, offset, 1000), offset + 1)
    assert state.first_unstable_offset == 0
    with pytest.raises(InvalidTransactionStateError):
        state.prepare_coordinator(header(-1, epoch=-1, attributes=ATTRIBUTE_TRANSACTIONAL), 2, 1000)


def test_a_question_in_an_old_epoch_verifies_nothing() -> None:
    state = Partition().state
    batch = header(0, epoch=2, attributes=ATTRIBUTE_TRANSACTIONAL)
    current = state.begin_verification(PRODUCER, 2, 0)
    late = state.begin_verification(PRODUCER, 1, 0)
    assert current is not None
    assert late is not None
    late.is_verified = True
    for epoch in (1, 2):
        with pytest.raises(InvalidTransactionStateError):
            state.check_client(batch._replace(producer_epoch=epoch), 0, 1000)
    state.end_verification(late)
    current.is_verified = True  # it is still the one that counts
    assert not isinstance(state.check_client(batch, 0, 1000), BatchMetadata)


def test_what_becomes_of_producers_together_is_what_becomes_of_each() -> None:
    together, alone = Partition().state, Partition().state
    for state in (together, alone):
        assert state.begin_verification(1, 0, 0) is not None
        assert state.begin_verification(3, 0, 0) is not None
    batches = [header(0, producer_id=1), header(0, producer_id=2)]
    entries = [together.check_client(batch, offset, 1000) for offset, batch in enumerate(batches)]
    together.apply_clients({entry[0]: entry for entry in entries if not isinstance(entry, BatchMetadata)}, 2)
    for offset, batch in enumerate(batches):
        entry = alone.check_client(batch, offset, 1000)
        assert not isinstance(entry, BatchMetadata)
        alone.apply(Update(ProducerEntry._make(entry), None), 2)
    assert together == alone
    assert list(together) == list(alone)
    for state in (together, alone):
        assert (list(state._verifications), list(state._awaited)) == ([3], [3]), "a question is over with the answer"


def test_the_next_batches_of_a_producer_are_known_and_nothing_else_is() -> None:
    partition = Partition()
    for number in range(7):
        partition.send(number * 3, 3)
        known = partition.state.fields(PRODUCER)
        assert known is not None
        sequence = number * 3 + 3
        wanted = partition.prepared(header(sequence, 2), 50)
        assert next_of(known, 0, sequence, 1, 51, 1000) == wanted
        for epoch, other in ((0, sequence - 3), (0, sequence + 1), (1, 0), (1, sequence)):
            assert next_of(known, epoch, other, 1, 51, 1000) is None


@pytest.mark.parametrize("begin", [INT32_MAX - 4, INT32_MAX - 3, INT32_MAX - 1])
def test_the_next_batch_of_a_producer_may_go_beyond_the_largest_sequence(partition: Partition, begin: int) -> None:
    partition.send(begin, 2)
    known, after = partition.state.fields(PRODUCER), (begin + 2) & INT32_MAX
    assert known is not None
    found = next_of(known, 0, after, 3, 53, 1000)
    assert found == partition.prepared(header(after, 4), 50)
    assert found is not None
    assert found[2][-1][0] == (begin + 5) & INT32_MAX
