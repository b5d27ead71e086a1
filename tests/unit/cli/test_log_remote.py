"""`barnabas log dump` of what brokers have copied to remote storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.kernel.host import Files
from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_files import RealFiles
from barnabas.tiered import stored_files
from barnabas.tiered.object_names import ObjectKind, object_name, parse_object_name, parse_prefix, partition_prefix
from barnabas.tiered.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from barnabas.tiered.storage import FsspecStore, RemoteStore, StorageConfigError, open_store, put_file
from barnabas.wire.topics import TopicPartition
from tests.unit.cli import test_log
from tests.unit.cli.test_log import TOPIC_ID, documents, dump, of_type
from tests.unit.tiered.test_storage import MemoryFiles

log_directory = test_log.log_directory
PARTITION = TopicIdPartition(TOPIC_ID, TopicPartition("flights", 3))
KINDS = ["segment", "offset_index", "time_index", "transaction_index", "producer_snapshot", "leader_epochs"]


def copied(number: int) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(PARTITION, Uuid(number.to_bytes(16, "big")))
    return RemoteLogSegmentMetadata(segment_id, 0, 61, 5, 1, 7, 100, {0: 0, 5: 20})


def copy(store: RemoteStore, log_directory: Path, number: int) -> None:
    partition = log_directory / "flights-3"
    for kind in ObjectKind:
        local = {
            ObjectKind.LEADER_EPOCHS: "leader-epoch-checkpoint",
            ObjectKind.PRODUCER_SNAPSHOT: f"{62:020d}.snapshot",
        }.get(kind, f"{0:020d}{kind}")
        put_file(store, object_name(copied(number), kind), RealFiles(), f"{partition}/{local}")


@pytest.fixture(params=["file", "path", "fsspec"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log_directory: Path) -> str:
    """Where two copies of a segment are."""
    if request.param != "fsspec":
        store = open_store(RealFiles(), f"file://{tmp_path}/tier")
        url = f"file://{tmp_path}/tier" if request.param == "file" else f"{tmp_path}/tier"
    else:
        objects = MemoryFiles()
        url, store = "s3://bucket/tier", FsspecStore(objects, "bucket/tier")

        def opened(_files: Files, at: str, options: str) -> RemoteStore:
            assert options == '{"anon": true}'
            return FsspecStore(objects, at.removeprefix("s3://"))

        monkeypatch.setattr(stored_files, "open_store", opened)
    for number in (2, 1):
        copy(store, log_directory, number)
    return url


OPTIONS = ("--storage-options", '{"anon": true}')


def test_a_partition_is_shown_copy_by_copy_and_its_indexes_fit(place: str) -> None:
    at = f"{place}/{partition_prefix(PARTITION)}/"
    result = dump("--verify", "--records", *OPTIONS, at)
    assert result.exit_code == 0, result.output
    assert "! " not in result.output
    assert result.output.count("32 batches with 62 records, offsets 0 to 61") == 2
    assert result.output.count(", 0 mismatches") == 6
    assert result.output.count("leader epoch 5, start offset 20") == 2
    assert result.output.count("producer 9, epoch 1, last sequence 0, last offset 60") == 2
    files = of_type(documents(*OPTIONS, at), "file")
    assert [each["kind"] for each in files] == KINDS * 2
    assert all(each["base_offset"] == 0 for each in files)
    ids = [str(copied(number).segment_id.id) for number in (1, 2) for _ in KINDS]
    assert all(segment_id in each["path"] for segment_id, each in zip(ids, files, strict=True))


def test_one_object_and_all_partitions(place: str) -> None:
    name = object_name(copied(1), ObjectKind.LOG)
    found = documents(*OPTIONS, f"{place}/{name}")
    assert [each["base_offset"] for each in of_type(found, "file")] == [0]
    assert of_type(found, "totals")[0]["records"] == 62
    (partition,) = of_type(documents(*OPTIONS, place), "partition")
    assert (partition["directory"], partition["segments"]) == (partition_prefix(PARTITION), 2)
    assert partition["topic_id"] == str(TOPIC_ID)


def test_what_is_not_there_or_cannot_be_used_is_told(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = f"{place}/{object_name(copied(3), ObjectKind.LOG)}"
    assert dump(*OPTIONS, missing).exit_code
    assert dump(*OPTIONS, f"{place}/nothing").exit_code

    def refuse(*_: object) -> RemoteStore:
        raise StorageConfigError("install fsspec")

    monkeypatch.setattr(stored_files, "open_store", refuse)
    assert "install fsspec" in dump("s3://bucket/tier").output


def test_names_are_read_back_and_others_are_none() -> None:
    assert parse_prefix(partition_prefix(PARTITION)) == PARTITION
    for kind in ObjectKind:
        assert parse_object_name(object_name(copied(1), kind).rpartition("/")[2]) == (0, kind)
    for name in ("flights-3", "flights-AAAAAAAAAAAAAAAAAAAAA!-3", f"-{TOPIC_ID}-1", f"flights-{TOPIC_ID}-x"):
        assert parse_prefix(name) is None
    for name in (f"{0:020d}.log", f"{0:020d}-short.log", f"{0:020d}-{TOPIC_ID}.other", f"{0:019d}-{TOPIC_ID}.log"):
        assert parse_object_name(name) is None
