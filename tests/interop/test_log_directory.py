"""The files of a partition directory, as Apache Kafka's own DumpLogSegments reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.files import write_new
from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry, format_snapshot
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.log.segments.segment import Segment, SegmentConfig
from tests.support.apache_kafka import DUMP_LOG_SEGMENTS, run_tool
from tests.unit.log.log_batches import batch

BASE = 7_000_000_000
BATCHES = 60
PER_BATCH = 3


@pytest.fixture(scope="module")
def partition_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment of sixty batches with all its files, and a producer snapshot."""
    directory = tmp_path_factory.mktemp("logs") / "flights-0"
    directory.mkdir()
    files = RealFiles()
    segment = Segment(files, str(directory), BASE, SegmentConfig(index_interval_bytes=500), created_ms=0)
    segment.create()
    for number in range(BATCHES):
        first_ms = 1_700_000_000_000 + number
        one = batch(segment.next_offset, [first_ms + each for each in range(PER_BATCH)])
        segment.append(one.data, one.last_offset, one.max_timestamp_ms)
    segment.transaction_index.append(AbortedTransaction(11, BASE + 3, BASE + 30, BASE + 2))
    segment.close()
    entries = [
        ProducerSnapshotEntry(42, 3, 17, BASE + 5, 2, 1_700_000_000_000, -1, -1),
        ProducerSnapshotEntry(43, 0, -1, -1, 0, 1_700_000_000_001, 9, BASE + 8),
    ]
    write_new(files, f"{directory}/{BASE:020d}.snapshot", format_snapshot(entries))
    return directory


def dump(directory: Path, suffix: str, *options: str) -> str:
    return run_tool(DUMP_LOG_SEGMENTS, ["--files", directory / f"{BASE:020d}{suffix}", *options])


def test_kafka_reads_every_record_of_the_log(partition_directory: Path) -> None:
    dumped = dump(partition_directory, ".log", "--print-data-log")
    offsets = [int(found) for found in re.findall(r"\| offset: (\d+) ", dumped)]
    assert offsets == list(range(BASE, BASE + BATCHES * PER_BATCH))
    assert dumped.count("isvalid: true") == BATCHES


def test_kafka_finds_the_offset_index_right(partition_directory: Path) -> None:
    dumped = dump(partition_directory, ".index", "--index-sanity-check")
    assert "passed sanity check" in dumped
    dumped = dump(partition_directory, ".index")
    entries = [(int(offset), int(at)) for offset, at in re.findall(r"offset: (\d+) position: (\d+)", dumped)]
    assert len(entries) > 5
    assert "Mismatches" not in dumped


def test_kafka_finds_the_time_index_right(partition_directory: Path) -> None:
    dumped = dump(partition_directory, ".timeindex")
    entries = [(int(time), int(offset)) for time, offset in re.findall(r"timestamp: (\d+) offset: (\d+)", dumped)]
    assert entries[-1] == (1_700_000_000_000 + BATCHES - 1 + PER_BATCH - 1, BASE + BATCHES * PER_BATCH - 1)
    assert not re.search("mismatch|out of order|Found", dumped, re.IGNORECASE)


def test_kafka_reads_the_transaction_index(partition_directory: Path) -> None:
    dumped = dump(partition_directory, ".txnindex")
    assert (
        f"version: 0 producerId: 11 firstOffset: {BASE + 3} lastOffset: {BASE + 30} lastStableOffset: {BASE + 2}"
        in dumped
    )


def test_kafka_reads_the_producer_snapshot(partition_directory: Path) -> None:
    dumped = dump(partition_directory, ".snapshot")
    first, second = re.findall(r"^producerId: .*$", dumped, re.MULTILINE)
    assert first.startswith(
        "producerId: 42 producerEpoch: 3 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty"
    )
    assert re.search(rf"lastSequence: 17\b.*\blastOffset: {BASE + 5}\b", first)
    assert second.startswith(
        f"producerId: 43 producerEpoch: 0 coordinatorEpoch: 9 currentTxnFirstOffset: OptionalLong[{BASE + 8}]"
    )
