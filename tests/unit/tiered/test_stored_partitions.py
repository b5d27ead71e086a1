"""Remote storage read without brokers: every offset once, whoever has copied how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.tiered import stored_partitions as subject
from barnabas.tiered.object_names import ObjectKind, partition_prefix
from barnabas.tiered.storage import RemoteStore, open_store
from barnabas.tiered.stored_partitions import MissingRecordsError, read_stretch, stored_partitions, stretches
from barnabas.wire.record_errors import CorruptRecordError
from tests.support.stored_segments import abort_marker, partition, put_copy, records

PARTITION = partition()


@pytest.fixture
def store(tmp_path: Path) -> RemoteStore:
    return open_store(RealFiles(), f"file://{tmp_path}")


def read(store: RemoteStore, *, is_committed: bool = True, fails_on_missing: bool = True) -> list[tuple[int, bytes]]:
    """Offset and value of each record."""
    found: list[tuple[int, bytes]] = []
    for stretch in stretches(store, partition_prefix(PARTITION), PARTITION):
        for batch, start, end in read_stretch(
            store, stretch, is_committed=is_committed, fails_on_missing=fails_on_missing
        ):
            found += [
                (record.offset, record.value or b"")
                for record in batch.records()
                if record.offset >= start and (end is None or record.offset < end)
            ]
    return found


def values(start: int, end: int, text: str = "value") -> list[tuple[int, bytes]]:
    return [(offset, f"{text}-{offset}".encode()) for offset in range(start, end)]


def test_partitions_are_found_by_their_names(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 3)])
    put_copy(store, partition("other", 7), 2, 0, [records(0, 3)])
    assert stored_partitions(store) == {
        partition_prefix(PARTITION): PARTITION,
        partition_prefix(partition("other", 7)): partition("other", 7),
    }
    assert stretches(store, "absent", PARTITION) == []


def test_each_offset_comes_once_whatever_copies_overlap(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 9, 0, [records(0, 10), records(10, 20)])
    put_copy(store, PARTITION, 1, 0, [records(0, 10)])
    put_copy(store, PARTITION, 2, 15, [records(15, 20), records(20, 30)])
    put_copy(store, PARTITION, 3, 15, [records(15, 20), records(20, 30)])
    put_copy(store, PARTITION, 4, 30, [records(30, 31)])
    assert read(store) == values(0, 31)


def test_a_batch_that_reaches_beyond_is_cut_off_where_the_next_segment_begins(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 10)])
    put_copy(store, PARTITION, 2, 5, [records(5, 12)])
    assert read(store) == values(0, 12)


@pytest.mark.parametrize("without", list(ObjectKind))
def test_half_of_a_copy_counts_for_nothing(store: RemoteStore, without: ObjectKind) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 10)])
    put_copy(store, PARTITION, 2, 10, [records(10, 20)], without=without)
    assert read(store) == values(0, 10)


def test_what_an_unclean_election_has_given_up_is_not_read(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 10), records(10, 40, text="lost")])
    put_copy(store, PARTITION, 2, 40, [records(40, 50, text="lost")])
    put_copy(store, PARTITION, 3, 10, [records(10, 60, epoch=2)], epochs=((0, 0), (2, 10)))
    assert read(store) == values(0, 60)


def test_a_copy_ends_where_the_log_has_gone_another_way(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 10), records(10, 40, text="lost")])
    put_copy(store, PARTITION, 2, 5, [records(5, 10), records(10, 20, epoch=1)], epochs=((0, 0), (1, 10)))
    put_copy(store, PARTITION, 3, 0, [records(0, 10)], epochs=((0, 0),))
    assert read(store) == values(0, 20)


def test_aborted_transactions_are_left_out_wherever_their_markers_are(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 5, producer_id=7), records(5, 8), records(8, 10, producer_id=8)])
    aborted = [(7, 0, 12)]
    put_copy(
        store,
        PARTITION,
        2,
        10,
        [records(10, 12, producer_id=7), abort_marker(12, 7), records(13, 15, producer_id=7)],
        aborted=aborted,
    )
    assert read(store) == values(5, 10) + values(13, 15)
    assert read(store, is_committed=False) == values(0, 12) + values(13, 15)


def test_records_that_are_missing_are_an_error_where_it_is_asked_for(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 10)])
    put_copy(store, PARTITION, 2, 12, [records(12, 20)])
    with pytest.raises(MissingRecordsError, match="ends at 10, and the next segment in remote storage begins at 12"):
        read(store)
    assert read(store, fails_on_missing=False) == values(0, 10) + values(12, 20)
    put_copy(store, PARTITION, 3, 20, [records(20, 22), records(24, 25)])
    with pytest.raises(MissingRecordsError, match="no records from 22 to 24"):
        list(read_stretch(store, stretches(store, partition_prefix(PARTITION), PARTITION)[-1], is_committed=True))


def test_what_is_damaged_is_an_error(store: RemoteStore) -> None:
    batch = records(0, 3)
    put_copy(store, PARTITION, 1, 0, [batch[:-1] + b"?"])
    with pytest.raises(CorruptRecordError):
        read(store)
    put_copy(store, PARTITION, 1, 0, [batch[:-1]])
    with pytest.raises(CorruptRecordError, match="ends within a batch"):
        read(store)


def test_a_log_is_read_in_pieces(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_READ_BYTES", 150)
    put_copy(store, PARTITION, 1, 0, [records(0, 1), records(1, 30), records(30, 32)])
    assert read(store) == values(0, 32)


def test_committed_records_end_where_a_transaction_begins_whose_end_is_not_copied(store: RemoteStore) -> None:
    """Its marker is in the active segment of a broker: whether it was aborted nobody can tell here."""
    put_copy(store, PARTITION, 1, 0, [records(0, 5), records(5, 8, producer_id=7), records(8, 10)], open_at=[(7, 5)])
    assert read(store) == values(0, 5)
    assert read(store, is_committed=False) == values(0, 10)
    put_copy(store, PARTITION, 2, 10, [records(10, 12, producer_id=7), records(12, 15)], open_at=[(8, 14), (7, 5)])
    assert read(store) == values(0, 5)
    put_copy(store, PARTITION, 3, 15, [abort_marker(15, 7), records(16, 17)], aborted=[(7, 5, 15)])
    assert read(store) == values(0, 5) + values(8, 10) + values(12, 15) + values(16, 17)


def test_a_damaged_snapshot_of_producers_is_an_error(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 5)])
    name = next(name for name in store.names(partition_prefix(PARTITION)) if name.endswith(".snapshot"))
    store.put(name, [b"?"])
    with pytest.raises(CorruptRecordError, match="snapshot is not what it should be"):
        read(store)


@pytest.mark.parametrize("kind", [ObjectKind.LOG, ObjectKind.LEADER_EPOCHS, ObjectKind.TRANSACTION_INDEX])
def test_a_copy_that_is_deleted_while_others_are_looked_at_was_none(
    store: RemoteStore, monkeypatch: pytest.MonkeyPatch, kind: ObjectKind
) -> None:
    """Retention goes on meanwhile."""
    put_copy(store, PARTITION, 1, 0, [records(0, 10)])
    put_copy(store, PARTITION, 2, 10, [records(10, 20)])
    names = store.names
    listed = names(partition_prefix(PARTITION))
    store.delete([name for name in listed if name.endswith(kind) and "/00000000000000000000-" in name])
    monkeypatch.setattr(
        store, "names", lambda prefix: listed if prefix == partition_prefix(PARTITION) else names(prefix)
    )
    assert read(store) == values(10, 20)


def test_a_log_that_is_deleted_before_it_is_read_is_missing(store: RemoteStore) -> None:
    put_copy(store, PARTITION, 1, 0, [records(0, 10)])
    put_copy(store, PARTITION, 2, 10, [records(10, 20)])
    gone, *_ = stretches(store, partition_prefix(PARTITION), PARTITION)
    store.delete([gone.log_name])
    with pytest.raises(MissingRecordsError, match="was deleted before it was read"):
        list(read_stretch(store, gone, is_committed=True))
    assert list(read_stretch(store, gone, is_committed=True, fails_on_missing=False)) == []
