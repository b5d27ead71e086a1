"""`barnabas log dump`: what files hold, for people and for programs, and nothing of them changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from barnabas.cli.log import command
from barnabas.cli.log_dump import LogDumper
from barnabas.cli.log_report import LogReport
from barnabas.client.subscription_bytes import write_assignment
from barnabas.coordinators.group.records import CommittedOffset, offset_key, offset_value
from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.checkpoints import EpochEntry, write_epochs, write_offsets
from barnabas.log.directories.directory_files import (
    MetaProperties,
    write_clean_shutdown,
    write_meta_properties,
    write_partition_metadata,
)
from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry
from barnabas.log.producers.producer_snapshots import write_snapshot
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.log.segments.segment import Segment, SegmentConfig
from barnabas.wire.codec import encode_prefixed
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.messages import GroupMetadataKey, GroupMetadataValue
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.unit.log.log_batches import batch

FILES = RealFiles()
NOW_MS = 1_700_000_000_000
TOPIC_ID = Uuid(bytes(range(16)))


def dump(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["dump", *map(str, arguments)])


def documents(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump("--json", *arguments).stdout.splitlines()]


def of_type(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for each in found if each["type"] == name]


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    """A log directory with one partition that has everything: thirty batches and a transaction that was aborted."""
    directory = tmp_path / "logs"
    partition = directory / "flights-3"
    partition.mkdir(parents=True)
    write_meta_properties(FILES, str(directory), MetaProperties(4, "cluster", TOPIC_ID))
    write_clean_shutdown(FILES, str(directory), 77)
    write_offsets(FILES, f"{directory}/replication-offset-checkpoint", {TopicPartition("flights", 3): 63})
    write_partition_metadata(FILES, str(partition), TOPIC_ID)
    write_epochs(FILES, f"{partition}/leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(5, 20)])
    segment = Segment(FILES, str(partition), 0, SegmentConfig(index_interval_bytes=200), created_ms=0)
    segment.create()
    for number in range(30):
        one = batch(segment.next_offset, [NOW_MS + number, NOW_MS + number])
        segment.append(one.data, one.last_offset, one.max_timestamp_ms)
    builder = RecordBatchBuilder(
        base_offset=60, producer_id=9, producer_epoch=1, base_sequence=0, is_transactional=True
    )
    builder.append(NOW_MS + 50, b"\xff", None, ((b"h", b"1"),))
    segment.append(builder.build(), 60, NOW_MS + 50)
    marker = EndTransactionMarker(ControlRecordType.ABORT, 2)
    control = end_transaction_batch(marker, timestamp_ms=NOW_MS + 51, producer_id=9, producer_epoch=1, base_offset=61)
    segment.append(control, 61, NOW_MS + 51)
    segment.transaction_index.append(AbortedTransaction(9, 60, 61, 60))
    segment.close()
    write_snapshot(FILES, str(partition), 62, [ProducerSnapshotEntry(9, 1, 0, 60, 0, NOW_MS, 2, -1)])
    return directory


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()}


def test_a_partition_directory_is_shown_file_by_file_and_left_as_it_was(log_directory: Path) -> None:
    before = contents(log_directory)
    result = dump("--verify", "--records", log_directory / "flights-3")
    assert result.exit_code == 0, result.output
    assert contents(log_directory) == before
    kinds = [each["kind"] for each in of_type(documents(log_directory / "flights-3"), "file")]
    assert kinds == [
        "partition_metadata", "leader_epochs", "segment", "offset_index", "time_index", "transaction_index",
        "producer_snapshot",
    ]  # fmt: skip
    assert "! " not in result.output
    assert "32 batches with 62 records, offsets 0 to 61" in result.output
    assert f"topic id {TOPIC_ID}" in result.output
    assert "leader epoch 5, start offset 20" in result.output
    assert "producer 9, epoch 1, last sequence 0, last offset 60" in result.output
    assert result.output.count(", 0 mismatches") == 3


def test_batches_and_records_are_told_with_all_that_they_have(log_directory: Path) -> None:
    found = documents("--records", log_directory / "flights-3" / f"{0:020d}.log")
    assert found[0] == {
        "type": "file",
        "path": f"{log_directory}/flights-3/{0:020d}.log",
        "kind": "segment",
        "size_bytes": (log_directory / "flights-3" / f"{0:020d}.log").stat().st_size,
        "base_offset": 0,
    }
    transactional, control = of_type(found, "batch")[-2:]
    assert (transactional["is_transactional"], transactional["is_control"]) == (True, False)
    assert (transactional["producer_id"], transactional["producer_epoch"], transactional["last_sequence"]) == (9, 1, 0)
    assert (control["base_offset"], control["is_control"], control["is_crc_valid"]) == (61, True, True)
    record, marker = of_type(found, "record")[-2:]
    assert record == {
        "type": "record",
        "offset": 60,
        "timestamp_ms": NOW_MS + 50,
        "key_base64": "/w==",
        "value": None,
        "headers": [{"key": "h", "value": "1"}],
    }
    assert marker["decoded"] == {"type": "marker", "marker": "abort", "coordinator_epoch": 2}
    assert of_type(found, "totals") == [
        {
            "type": "totals",
            "batches": 32,
            "records": 62,
            "first_offset": 0,
            "last_offset": 61,
            "faulty_position": None,
        }
    ]


def test_a_log_directory_shows_its_own_files_and_names_its_partitions(log_directory: Path) -> None:
    found = documents(log_directory)
    assert [each["kind"] for each in of_type(found, "file")] == [
        "clean_shutdown", "meta_properties", "high_watermarks",
    ]  # fmt: skip
    assert {"type": "entry", "topic": "flights", "partition": 3, "offset": 63} in found
    assert {"type": "entry", "broker_id": 4, "cluster_id": "cluster", "directory_id": str(TOPIC_ID)} in found
    (partition,) = of_type(found, "partition")
    assert (partition["directory"], partition["segments"], partition["topic_id"]) == ("flights-3", 1, str(TOPIC_ID))
    assert dump(log_directory).exit_code == 0


def test_a_torn_tail_is_told_with_its_place_and_ends_with_1(log_directory: Path) -> None:
    log = log_directory / "flights-3" / f"{0:020d}.log"
    whole = of_type(documents(log), "batch")
    os.truncate(log, log.stat().st_size - 5)
    result = dump(log)
    assert result.exit_code == 1
    place = whole[-1]["position"]
    assert f"! torn from byte {place} on" in result.output
    (damage,) = of_type(documents(log), "damage")
    assert (damage["kind"], damage["position"]) == ("torn", place)


def test_a_batch_with_a_wrong_checksum_is_told_and_its_records_are_not_trusted(log_directory: Path) -> None:
    log = log_directory / "flights-3" / f"{0:020d}.log"
    second = of_type(documents(log), "batch")[1]
    data = bytearray(log.read_bytes())
    data[second["position"] + 70] ^= 1
    log.write_bytes(data)
    found = documents("--records", log)
    assert [each["is_crc_valid"] for each in of_type(found, "batch")].index(False) == 1
    assert of_type(found, "totals")[0]["faulty_position"] == second["position"]
    assert 2 not in [each["offset"] for each in of_type(found, "record")]
    result = dump(log)
    assert result.exit_code == 1
    assert f"cuts it off at byte {second['position']}" in result.output


def test_an_index_that_does_not_fit_is_found_only_where_that_is_wanted(log_directory: Path) -> None:
    index = log_directory / "flights-3" / f"{0:020d}.index"
    data = bytearray(index.read_bytes())
    data[7] ^= 1
    index.write_bytes(data)
    assert dump(index).exit_code == 0
    result = dump("--verify", index)
    assert result.exit_code == 1
    assert "! entry 0 does not fit the log" in result.output
    (mismatch,) = of_type(documents("--verify", index), "mismatch")
    assert mismatch["number"] == 0


def test_an_index_without_its_log_cannot_be_verified(log_directory: Path) -> None:
    (log_directory / "flights-3" / f"{0:020d}.log").unlink()
    result = dump("--verify", log_directory / "flights-3" / f"{0:020d}.index")
    assert result.exit_code == 1
    assert "no log beside it" in result.output


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("leader-epoch-checkpoint", b"0\n2\n1 1\n"),
        ("replication-offset-checkpoint", b"7\n"),
        ("partition.metadata", b"version: 0\n"),
        ("meta.properties", b"version=1\n"),
        ("00000000000000000005.snapshot", b"\0\1garbage-garbage"),
        ("00000000000000000005.txnindex", b"\0\1" + bytes(32)),
    ],
)
def test_small_files_that_make_no_sense_are_damaged(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    result = dump(tmp_path / name)
    assert result.exit_code == 1
    assert "\n! " in result.output


def test_what_is_not_there_ends_with_4(tmp_path: Path) -> None:
    result = dump(tmp_path / "nothing")
    assert result.exit_code == 4
    assert "no such file" in result.stderr
    result = dump(tmp_path)
    assert result.exit_code == 4
    assert "neither a log directory nor a partition directory" in result.stderr


def test_a_file_with_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = dump(tmp_path / "notes.txt")
    assert result.exit_code == 1
    assert "is not named like a file of a log directory" in result.stderr


def test_records_of_consumer_offsets_are_decoded(tmp_path: Path) -> None:
    partition = tmp_path / "__consumer_offsets-7"
    partition.mkdir()
    assigned = write_assignment([TopicPartition("flights", 3)])
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        members=[GroupMetadataValue.MemberMetadata(member_id="m", client_id="c", assignment=assigned)],
    )
    builder = RecordBatchBuilder()
    committed = CommittedOffset(42, 1, "", NOW_MS)
    builder.append(NOW_MS, offset_key("g", TopicPartition("flights", 3)), offset_value(committed, 3))
    builder.append(NOW_MS, encode_prefixed(GroupMetadataKey(group="g"), 2), encode_prefixed(group, 3))
    builder.append(NOW_MS, encode_prefixed(GroupMetadataKey(group="g"), 2), None)
    (partition / f"{0:020d}.log").write_bytes(builder.build())
    offset, alive, dead = [each["decoded"] for each in of_type(documents("--records", partition), "record")]
    assert offset["type"] == "offset"
    assert offset["key"] == {"group": "g", "topic": "flights", "partition": 3}
    assert offset["value"]["offset"] == 42
    assert alive["value"]["members"][0]["assignment"]["assigned_partitions"] == [
        {"topic": "flights", "partitions": [3]}
    ]
    assert (dead["type"], dead["value"]) == ("group", None)


def test_what_is_deleted_meanwhile_is_left_out(log_directory: Path) -> None:
    class Deleting(RealFiles):
        __slots__ = ()

        def list_directory(self, path: str) -> list[str]:
            names = super().list_directory(path)
            (log_directory / "flights-3" / f"{0:020d}.index").unlink()
            return names

    report = LogReport(as_json=True)
    LogDumper(Deleting(), report, shows_records=False, verifies=False).dump(str(log_directory / "flights-3"))
    assert not report.is_damaged


def test_a_partition_that_is_deleted_meanwhile_is_left_out(
    log_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Deleting(RealFiles):
        __slots__ = ()

        def list_directory(self, path: str) -> list[str]:
            names = super().list_directory(path)
            (log_directory / "flights-3").rename(log_directory / "gone")
            return names

    report = LogReport(as_json=True)
    LogDumper(Deleting(), report, shows_records=False, verifies=False).dump(str(log_directory))
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found
    assert of_type(found, "partition") == []


def test_names_play_no_tricks_with_the_terminal(tmp_path: Path) -> None:
    builder = RecordBatchBuilder()
    builder.append(NOW_MS, b"\x1b[2J", "\u202ea".encode())
    (tmp_path / f"{0:020d}.log").write_bytes(builder.build())
    output = dump("--records", tmp_path / f"{0:020d}.log").stdout
    assert all(line.isprintable() for line in output.splitlines())
