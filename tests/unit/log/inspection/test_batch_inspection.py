"""Looking at a segment's file: every batch, and where what can be read ends."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.log.inspection import batch_inspection
from barnabas.log.inspection.batch_inspection import BatchFacts, Damage, DamageKind, inspect_batches, read_batch
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_batch import set_checksum
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record, TimestampType
from tests.unit.log.log_batches import batch

NOW_MS = 1_700_000_000_000


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def inspect(path: Path, data: bytes) -> list[BatchFacts | Damage]:
    path.write_bytes(data)
    with opened(path) as descriptor:
        return list(inspect_batches(RealFiles(), descriptor))


def facts_of(path: Path, data: bytes) -> BatchFacts:
    (facts,) = inspect(path, data)
    assert isinstance(facts, BatchFacts)
    return facts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


def log(count: int = 3, records: int = 2) -> list[bytes]:
    return [batch(number * records, [NOW_MS + number] * records).data for number in range(count)]


def test_an_empty_file_has_no_batches_and_no_damage(path: Path) -> None:
    assert inspect(path, b"") == []


def test_tells_what_the_header_of_a_batch_says(path: Path) -> None:
    builder = RecordBatchBuilder(
        base_offset=70,
        compression=Compression(CompressionType.ZSTD),
        producer_id=12,
        producer_epoch=3,
        base_sequence=40,
        is_transactional=True,
        partition_leader_epoch=9,
    )
    for number in range(5):
        builder.append(NOW_MS + number, b"key", b"value" * 100)
    data = bytes(builder.build())
    facts = facts_of(path, data)
    assert (facts.position, facts.size_bytes, facts.end_position) == (0, len(data), len(data))
    assert (facts.base_offset, facts.last_offset, facts.record_count) == (70, 74, 5)
    assert (facts.producer_id, facts.producer_epoch, facts.base_sequence, facts.last_sequence) == (12, 3, 40, 44)
    assert facts.partition_leader_epoch == 9
    assert (facts.is_transactional, facts.is_control) == (True, False)
    assert facts.compression_type is CompressionType.ZSTD
    assert facts.timestamp_type is TimestampType.CREATE_TIME
    assert facts.max_timestamp_ms == NOW_MS + 4
    assert (facts.is_crc_valid, facts.fault) == (True, None)


def test_batches_are_found_one_after_another(path: Path) -> None:
    batches = log(50)
    found = inspect(path, b"".join(batches))
    assert [(each.base_offset, each.position) for each in found if isinstance(each, BatchFacts)] == [
        (number * 2, number * len(batches[0])) for number in range(50)
    ]


@pytest.mark.parametrize("missing_bytes", [1, 30, 60])
def test_says_where_a_torn_tail_begins(path: Path, missing_bytes: int) -> None:
    batches = log()
    *whole, damage = inspect(path, b"".join(batches)[:-missing_bytes])
    assert len(whole) == 2
    assert isinstance(damage, Damage)
    assert (damage.kind, damage.position) == (DamageKind.TORN, len(batches[0]) * 2)


def test_a_tail_too_short_for_a_size_is_torn(path: Path) -> None:
    batches = log()
    *whole, damage = inspect(path, b"".join(batches) + b"\1" * 10)
    assert len(whole) == 3
    assert isinstance(damage, Damage)
    assert damage.kind is DamageKind.TORN
    assert "10 bytes" in damage.detail


def test_tells_zeros_from_garbage(path: Path) -> None:
    whole = b"".join(log())
    *_, zeros = inspect(path, whole + bytes(3_000_000))
    assert isinstance(zeros, Damage)
    assert (zeros.kind, zeros.position) == (DamageKind.ZEROS, len(whole))
    *_, garbage = inspect(path, whole + bytes(3_000_000) + b"\1")
    assert isinstance(garbage, Damage)
    assert (garbage.kind, garbage.position) == (DamageKind.CORRUPT, len(whole))


def test_a_wrong_checksum_is_the_fault_of_its_batch_and_the_rest_is_shown(path: Path) -> None:
    batches = [bytearray(each) for each in log()]
    batches[1][-1] ^= 1
    found = inspect(path, b"".join(batches))
    assert [each.is_crc_valid for each in found if isinstance(each, BatchFacts)] == [True, False, True]
    assert isinstance(found[1], BatchFacts)
    assert "checksum" in str(found[1].fault)


def test_offsets_that_go_back_are_a_fault(path: Path) -> None:
    first, second, _ = log()
    _, again = inspect(path, second + first)
    assert isinstance(again, BatchFacts)
    assert "begins with offset 0, and the batch before it ends with 3" in str(again.fault)


def test_a_codec_that_nobody_knows_is_a_fault(path: Path) -> None:
    data = bytearray(log(1)[0])
    struct.pack_into(">h", data, 21, 7)
    set_checksum(data)
    facts = facts_of(path, bytes(data))
    assert facts.compression_type is None
    assert facts.is_crc_valid
    assert "codec has number 7" in str(facts.fault)


def test_a_batch_larger_than_what_is_read_at_once_is_checked_in_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_inspection, "_PIECE_BYTES", 512)
    data = batch(0, [NOW_MS], b"v" * 5_000).data
    assert facts_of(path, data).is_crc_valid
    damaged = bytearray(data)
    damaged[4_000] ^= 1
    assert not facts_of(path, bytes(damaged)).is_crc_valid


def test_what_is_written_meanwhile_counts_once_it_is_whole(path: Path) -> None:
    """The size that was asked for at first ends within the second batch; then the rest of it is there."""
    first, second, _ = log()
    path.write_bytes(first + second)

    class Growing(RealFiles):
        __slots__ = ("asked",)

        def __init__(self) -> None:
            self.asked = 0

        def size(self, descriptor: int) -> int:
            self.asked += 1
            return len(first) + 20 if self.asked == 1 else super().size(descriptor)

    with opened(path) as descriptor:
        found = list(inspect_batches(Growing(), descriptor))
    assert [type(each) for each in found] == [BatchFacts, BatchFacts]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_reads_messages_of_the_old_formats(path: Path, magic: int, codec: CompressionType) -> None:
    records = [Record(number, NOW_MS if magic else -1, b"k", b"v%d" % number) for number in range(3)]
    data = bytes(write_messages(magic, records, Compression(codec)))
    found = [each for each in inspect(path, data) if isinstance(each, BatchFacts)]
    assert [each.magic for each in found] == [magic] * len(found)
    assert sum(each.record_count or 0 for each in found) == 3
    assert (found[0].base_offset, found[-1].last_offset) == (0, 2)
    assert all(each.is_crc_valid and each.fault is None for each in found)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    *_, last = inspect(path, bytes(damaged))
    assert isinstance(last, BatchFacts)
    assert (last.is_crc_valid, last.record_count) == (False, None)


def test_gives_the_batch_itself_for_its_records(path: Path) -> None:
    path.write_bytes(b"".join(log()))
    with opened(path) as descriptor:
        second = list(inspect_batches(RealFiles(), descriptor))[1]
        assert isinstance(second, BatchFacts)
        assert [record.offset for record in read_batch(RealFiles(), descriptor, second).records()] == [2, 3]
