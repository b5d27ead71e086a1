"""The audit of a partition: each replica by itself, and all of them against each other."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.log.inspection.replica_comparison import FINDINGS_KEPT_MAX, PartitionAudit, audit_partition
from barnabas.log.inspection.replica_reading import FindingKind, Replica, SegmentFile
from barnabas.wire.record_builder import RecordBatchBuilder

FILES = RealFiles()
NOW_MS = 1_700_000_000_000


def batch(
    base_offset: int, count: int = 2, *, value: bytes = b"value", epoch: int = 0, offsets: Sequence[int] = ()
) -> bytes:
    """Records from `base_offset` on; or those of `offsets` alone, as a cleaner leaves them."""
    builder = RecordBatchBuilder(base_offset=base_offset, partition_leader_epoch=epoch)
    for offset in offsets or range(base_offset, base_offset + count):
        builder.append(NOW_MS + offset, b"key %d" % offset, value, offset=offset)
    return bytes(builder.build())


class Partition:
    """Replicas as files; a segment has batches of two records, five of them if nothing else is said."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._replicas: list[Replica] = []

    def add(
        self,
        segments: dict[int, list[bytes]] | None = None,
        *,
        high_watermark: int | None = 20,
        cleaned_to: int = 0,
    ) -> list[Path]:
        """The files of another replica."""
        if segments is None:
            segments = {0: [batch(at) for at in range(0, 10, 2)], 10: [batch(at) for at in range(10, 20, 2)]}
        label = f"r{len(self._replicas) + 1}"
        directory = self._directory / label
        directory.mkdir()
        paths = []
        for base_offset, batches in segments.items():
            paths.append(directory / f"{base_offset:020d}.log")
            paths[-1].write_bytes(b"".join(batches))
        files = tuple(SegmentFile(str(path), int(path.stem)) for path in paths)
        self._replicas.append(Replica(label, FILES, files, high_watermark, cleaned_to))
        return paths

    def audit(self) -> PartitionAudit:
        passed: list[int] = []
        audit = audit_partition(self._replicas, passed.append)
        assert sum(passed) == sum(each.size_bytes for each in audit.totals)
        return audit


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path)


def found(audit: PartitionAudit) -> list[tuple[str, tuple[str, ...], int | None, int | None]]:
    """Kind, replicas and offsets of all that is wrong."""
    assert audit.findings.faults == sum(each.is_fault for each in audit.findings.kept)
    return [
        (each.kind.value, each.replicas, each.first_offset, each.last_offset)
        for each in audit.findings.kept
        if each.is_fault
    ]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_nothing_is_wrong_with_sound_replicas(partition: Partition) -> None:
    for _ in range(3):
        partition.add()
    audit = partition.audit()
    assert found(audit) == []
    assert audit.compared_batches == 10
    totals = audit.totals[2]
    assert (totals.segments, totals.batches, totals.records) == (2, 10, 20)
    assert (totals.first_offset, totals.end_offset, totals.cleaned_gaps) == (0, 20, 0)


def test_a_flipped_bit_is_found_once_and_in_its_replica_alone(partition: Partition) -> None:
    partition.add()
    overwrite(partition.add()[1], len(batch(10)) + 70, b"\xff")
    partition.add()
    assert found(partition.audit()) == [("checksum", ("r2",), 12, 13)]


def test_a_missing_batch_is_a_gap_and_absent_beside_others(partition: Partition) -> None:
    partition.add()
    partition.add({0: [batch(at) for at in (0, 2, 6, 8)], 10: [batch(at) for at in range(10, 20, 2)]})
    assert found(partition.audit()) == [("gap", ("r2",), 4, 5), ("absent", ("r2",), 4, 5)]


def test_a_missing_segment_is_one_gap_and_one_absence(partition: Partition) -> None:
    partition.add()
    partition.add({0: [batch(0)], 18: [batch(18)]})
    assert found(partition.audit()) == [("gap", ("r2",), 2, 17), ("absent", ("r2",), 2, 17)]


def test_other_bytes_at_the_same_offsets_name_who_has_which(partition: Partition) -> None:
    partition.add()
    partition.add({0: [batch(0), batch(2, value=b"other"), *(batch(at) for at in range(4, 20, 2))]})
    partition.add()
    audit = partition.audit()
    assert found(audit) == [("different", ("r1 and r3", "r2"), 2, 3)]
    assert "leader epoch 0" in audit.findings.kept[0].detail


def test_another_leader_epoch_in_a_batch_is_a_difference_although_no_checksum_has_it(partition: Partition) -> None:
    partition.add({0: [batch(at, epoch=7) for at in range(0, 20, 2)]})
    paths = partition.add({0: [batch(at, epoch=7) for at in range(0, 20, 2)]})
    overwrite(paths[0], len(batch(0)) + 12, struct.pack(">i", 8))
    assert ("different", ("r1", "r2"), 2, 3) in found(partition.audit())


def test_a_leader_epoch_does_not_go_back(partition: Partition) -> None:
    partition.add({0: [batch(0, epoch=3), batch(2, epoch=2)]}, high_watermark=4)
    assert found(partition.audit()) == [("leader_epoch", ("r1",), 2, 3)]


def test_what_is_above_the_high_watermark_of_a_replica_is_not_compared(partition: Partition) -> None:
    partition.add()
    partition.add(
        {0: [*(batch(at) for at in range(0, 12, 2)), batch(12, value=b"a former leader's")]}, high_watermark=12
    )
    partition.add({0: [batch(0)]}, high_watermark=2)
    audit = partition.audit()
    assert found(audit) == []
    assert audit.compared_batches > 0


def test_a_record_at_the_high_watermark_is_not_committed(partition: Partition) -> None:
    partition.add({0: [batch(0, 12), batch(12, 1), batch(13, 7)]})
    partition.add({0: [batch(0, 12)]}, high_watermark=12)
    assert found(partition.audit()) == []


def test_the_first_batch_of_a_log_is_missed_too(partition: Partition) -> None:
    partition.add()
    partition.add({0: [batch(at) for at in range(2, 20, 2)]})
    assert found(partition.audit()) == [("gap", ("r2",), 0, 1), ("absent", ("r2",), 0, 1)]


def test_a_log_that_ends_ahead_of_its_high_watermark_has_lost_records(partition: Partition) -> None:
    partition.add({0: [batch(0), batch(2)]}, high_watermark=9)
    assert found(partition.audit()) == [("short", ("r1",), 4, 8)]


@pytest.mark.parametrize("rest", [batch(20)[:30], bytes(500)])
def test_what_is_torn_behind_the_high_watermark_is_no_fault(partition: Partition, rest: bytes) -> None:
    paths = partition.add()
    with paths[-1].open("ab") as file:
        file.write(rest)
    audit = partition.audit()
    assert found(audit) == []
    assert [each.kind for each in audit.findings.kept] == [FindingKind.TORN]


@pytest.mark.parametrize("segment", [0, 1])
def test_a_file_that_was_cut_off_below_it_is_a_fault_told_once(partition: Partition, segment: int) -> None:
    partition.add()
    path = partition.add()[segment]
    path.write_bytes(path.read_bytes()[:-20])
    end = 8 if segment == 0 else 18
    assert found(partition.audit()) == [("torn", ("r2",), end, None)]


def test_garbage_in_the_middle_does_not_hide_what_comes_behind_it(partition: Partition) -> None:
    partition.add()
    paths = partition.add()
    overwrite(paths[0], len(batch(0)) + 16, b"\xee")  # the magic
    overwrite(paths[1], 70, b"\xff")
    assert found(partition.audit()) == [("corrupt", ("r2",), 2, None), ("checksum", ("r2",), 10, 11)]


def test_retention_may_have_come_further_in_one_replica(partition: Partition) -> None:
    partition.add()
    partition.add({10: [batch(at) for at in range(10, 20, 2)]})
    audit = partition.audit()
    assert found(audit) == []
    assert audit.compared_batches == 5


def test_what_a_cleaner_removed_is_no_gap_and_what_it_left_is_compared_record_by_record(partition: Partition) -> None:
    partition.add({0: [batch(0, offsets=[1]), batch(8, offsets=[8, 9])], 10: [batch(10, 10)]}, cleaned_to=10)
    partition.add({0: [batch(at) for at in range(0, 10, 2)], 10: [batch(10, 10)]})
    audit = partition.audit()
    assert found(audit) == []
    assert audit.totals[0].cleaned_gaps == 1
    assert audit.compared_records == 1, "offset 1: the batch of 8 and 9 is the same"
    assert audit.compared_batches == 2


def test_a_record_that_differs_where_a_cleaner_was_is_found(partition: Partition) -> None:
    partition.add({0: [batch(0, offsets=[1, 4, 9])], 10: [batch(10, 10)]}, cleaned_to=10)
    partition.add({0: [batch(0, 4), batch(4, 2, value=b"other"), batch(6, 4)], 10: [batch(10, 10)]})
    assert found(partition.audit()) == [("different", ("r1", "r2"), 4, 4)]


def test_a_gap_up_to_where_the_cleaner_has_come_is_no_fault(partition: Partition) -> None:
    partition.add({0: [batch(0)], 10: [batch(10, 10)]}, cleaned_to=10)
    audit = partition.audit()
    assert (found(audit), audit.totals[0].cleaned_gaps) == ([], 1)


def test_a_gap_ahead_of_the_cleaner_is_a_fault(partition: Partition) -> None:
    partition.add({0: [batch(0), batch(8)], 10: [batch(10), batch(14, 6)]}, cleaned_to=10)
    audit = partition.audit()
    assert found(audit) == [("gap", ("r1",), 12, 13)]
    assert "10 only" in audit.findings.kept[0].detail


def test_copies_in_remote_storage_may_overlap_and_are_compared_too(partition: Partition) -> None:
    partition.add({6: [batch(at) for at in range(6, 20, 2)]})
    partition.add(
        {0: [batch(at) for at in range(0, 10, 2)], 8: [batch(8, value=b"twice"), batch(10, value=b"x")]},
        high_watermark=None,
    )
    audit = partition.audit()
    assert found(audit) == [("different", ("r1", "r2"), 10, 11)], "what is not copied yet is not absent"
    assert audit.compared_batches == 2


def test_a_file_that_is_gone_is_a_note_and_one_that_cannot_be_read_a_fault(partition: Partition) -> None:
    partition.add()
    gone = partition.add()[0]
    gone.unlink()
    unreadable = partition.add()[0]
    unreadable.unlink()
    unreadable.mkdir()
    audit = partition.audit()
    assert [(kind, replicas) for kind, replicas, *_ in found(audit)] == [("unreadable", ("r3",))]
    assert any(each.kind is FindingKind.NOTE and each.replicas == ("r2",) for each in audit.findings.kept)


def test_findings_are_bounded_and_all_are_counted(partition: Partition) -> None:
    batches = [bytearray(batch(at)) for at in range(0, 200, 2)]
    for each in batches:
        each[70] ^= 0xFF
    partition.add({0: [bytes(each) for each in batches]}, high_watermark=200)
    audit = partition.audit()
    assert (audit.findings.faults, len(audit.findings.kept)) == (100, FINDINGS_KEPT_MAX)
    assert audit.findings.left_out == 100 - FINDINGS_KEPT_MAX


def test_random_damage_is_always_found_and_never_raises(tmp_path: Path) -> None:
    random_ = random.Random(5)
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        partition = Partition(tmp_path / str(number))
        partition.add()
        path = random_.choice(partition.add())
        data = bytearray(path.read_bytes())
        place = random_.randrange(len(data))
        match random_.randrange(3):
            case 0:
                data[place] ^= 1 << random_.randrange(8)
            case 1:
                del data[place : place + random_.randrange(1, 200)]
            case _:
                data[place:place] = random_.randbytes(random_.randrange(1, 200))
        path.write_bytes(data)
        assert found(partition.audit()), f"number {number}, byte {place}"
