"""`barnabas.client.fetched`: which records of an answer a consumer sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.client.fetched import FetchedRecords
from barnabas.client.records import RecordColumn
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.messages import FetchResponse
from barnabas.wire.record_batch import assign_offset_and_epoch, read_batch_header
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.topics import TopicPartition

PARTITION = TopicPartition("t", 0)


def batch(base_offset: int, *values: bytes, producer_id: int | None = None, epoch: int = 0) -> bytearray:
    builder = RecordBatchBuilder(base_offset=base_offset)
    if producer_id is not None:
        builder = RecordBatchBuilder(
            base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
    for number, value in enumerate(values):
        builder.append(1_000 + number, None, value)
    data = builder.build()
    assign_offset_and_epoch(data, 0, base_offset, read_batch_header(data).length_bytes, epoch)
    return data


def marker(base_offset: int, producer_id: int, kind: ControlRecordType) -> bytearray:
    return end_transaction_batch(
        EndTransactionMarker(kind, 0),
        timestamp_ms=1_000,
        producer_id=producer_id,
        producer_epoch=0,
        base_offset=base_offset,
        partition_leader_epoch=0,
    )


def fetched(
    *batches: bytes | bytearray, offset: int = 0, aborted: list[tuple[int, int]] | None = None
) -> FetchedRecords:
    transactions = None
    if aborted is not None:
        transactions = [
            FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in aborted
        ]
    return FetchedRecords(PARTITION, 0, offset, b"".join(batches), transactions, checks_crcs=True)


def by_records(records: FetchedRecords, count: int = 100) -> list[bytes | None]:
    return [record.value for record in records.take(count)]


def by_columns(records: FetchedRecords, count: int = 100) -> list[bytes | None]:
    columns = records.take_columns(count)
    assert all(len(column) == len(column.offsets) > 0 for column in columns)
    assert sum(map(len, columns)) <= count
    return [value for column in columns for value in column.values]


Values = Callable[..., list[bytes | None]]


@pytest.fixture(params=[by_records, by_columns])
def values(request: pytest.FixtureRequest) -> Values:
    """What is taken of an answer, either way."""
    found: Values = request.param
    return found


def test_gives_records_from_the_offset_asked_for_in_portions(values: Values) -> None:
    records = fetched(batch(0, b"a", b"b", b"c", epoch=2), batch(3, b"d", epoch=5), offset=1)
    (first,) = records.take(1)
    assert (first.value, first.offset, first.leader_epoch, first.timestamp_ms) == (b"b", 1, 2, 1_001)
    assert (records.next_offset, records.offset_epoch) == (2, 2)
    assert values(records) == [b"c", b"d"]
    assert (records.next_offset, records.offset_epoch) == (4, 5)
    assert records.take(1) == []


def test_passes_over_a_batch_that_was_cut_off_at_the_end(values: Values) -> None:
    assert values(fetched(batch(0, b"a"), batch(1, b"b")[:-3])) == [b"a"]


def test_a_damaged_batch_is_told_and_not_given(values: Values) -> None:
    damaged = batch(1, b"b")
    damaged[-1] ^= 1
    records = fetched(batch(0, b"a"), damaged)
    assert values(records) == [b"a"], "what is ahead of it is given first"
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            values(records, 1)
        assert (records.next_offset, records.is_at_end) == (1, False)


def test_control_batches_are_never_given_but_read_over(values: Values) -> None:
    records = fetched(batch(0, b"a", producer_id=1), marker(1, 1, ControlRecordType.COMMIT))
    assert values(records) == [b"a"]
    assert records.next_offset == 2


def test_committed_records_only_where_that_is_asked_for(values: Values) -> None:
    data = [
        batch(0, b"one", producer_id=1),
        batch(1, b"two", producer_id=2),
        batch(2, b"plain"),
        marker(3, 1, ControlRecordType.ABORT),
        batch(4, b"again", producer_id=1),
        marker(5, 2, ControlRecordType.COMMIT),
        marker(6, 1, ControlRecordType.COMMIT),
    ]
    everything = [b"one", b"two", b"plain", b"again"]
    assert values(fetched(*data)) == everything
    assert values(fetched(*data, aborted=[])) == everything
    assert values(fetched(*data, aborted=[(1, 0)])) == [b"two", b"plain", b"again"]
    records = fetched(*data, aborted=[(2, 1), (1, 0)])
    assert values(records) == [b"plain", b"again"]
    assert records.next_offset == 7


@pytest.mark.parametrize("taken", range(6))
def test_what_is_detached_goes_on_where_it_was_and_lets_go_of_the_answer(values: Values, taken: int) -> None:
    part = batch(0, b"a", b"b", producer_id=7) + batch(2, b"c", b"d", producer_id=8) + batch(4, b"e")
    answer = memoryview(bytes(1_000_000) + part)
    transactions = [FetchResponse.AbortedTransaction(producer_id=8, first_offset=2)]
    records = FetchedRecords(PARTITION, 0, 0, answer[1_000_000:], transactions, checks_crcs=True)
    first = values(records, taken) if taken else []
    records.detach()
    # What pins an answer is a view of it.
    answer.release()
    assert first + values(records) == [b"a", b"b", b"e"]
    assert records.is_at_end
    assert records.next_offset == 5


def test_columns_have_keys_and_offsets_and_end_where_they_are_told_to() -> None:
    builder = RecordBatchBuilder()
    for offset in (0, 1, 5, 9):
        builder.append(1_000, b"%d" % offset if offset % 2 else None, b"v", offset=offset)
    records = fetched(builder.build(), batch(10, *[b"x"] * 50, epoch=4), offset=1)
    first, second = records.take_columns(2)
    assert (first.partition, list(first.offsets), first.keys, first.values) == (PARTITION, [1], [b"1"], [b"v"])
    assert (list(second.offsets), second.keys, list(second.values)) == ([5], (b"5",), [b"v"])
    assert (records.next_offset, records.offset_epoch) == (6, -1)
    columns = records.take_columns(100)
    assert [offset for column in columns for offset in column.offsets] == [9, *range(10, 60)]
    assert columns[-1].keys is None
    assert (records.next_offset, records.offset_epoch, records.is_at_end) == (60, 4, True)
    assert records.take_columns(1) == []


def test_whoever_changes_from_columns_to_records_goes_on_where_he_was() -> None:
    def answer() -> FetchedRecords:
        data = [batch(0, b"a", b"b", b"c", producer_id=1), batch(3, b"d", b"e", producer_id=2), batch(5, b"f")]
        return fetched(*data, aborted=[(2, 3)])

    for first in range(5):
        for second in range(5):
            records = answer()
            found = [*by_columns(records, first), *by_records(records, second), *by_columns(records)]
            assert found == [b"a", b"b", b"c", b"f"]
            records = answer()
            found = [*by_records(records, first), *by_columns(records, second)]
            records.detach()
            assert found + by_columns(records) == [b"a", b"b", b"c", b"f"]
            assert records.next_offset == 6


def test_parts_of_columns() -> None:
    column = RecordColumn(PARTITION, range(5, 10), [b"k"] * 5, [b"%d" % number for number in range(5, 10)])
    assert column.offset == 5
    assert column.below(7) == RecordColumn(PARTITION, range(5, 7), [b"k"] * 2, [b"5", b"6"])
    assert column.since(8) == RecordColumn(PARTITION, range(8, 10), [b"k"] * 2, [b"8", b"9"])
    assert len(column.below(5)) == len(column.since(10)) == 0
    assert column.below(10) == column.since(0) == column
    assert RecordColumn(PARTITION, (1, 4, 8), None, (None, b"", b"x")).below(5).values == (None, b"")
