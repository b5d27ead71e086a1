"""`barnabas audit`: log directories of brokers and remote storage, read in place and held against each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from barnabas.cli.audit import command
from barnabas.cli.audit_places import Audited, find_audited, look_again
from barnabas.cli.audit_spark import audit_on_spark
from barnabas.cli.audit_work import audit_one
from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.checkpoints import write_offsets
from barnabas.log.directories.directory_files import MetaProperties, write_meta_properties, write_partition_metadata
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from barnabas.wire.topics import TopicPartition
from tests.support.waiting import wait_until
from tests.unit.cli.test_log import contents
from tests.unit.log.log_batches import batch

FILES = RealFiles()
SOURCE = str(Path(__file__).resolve().parents[3] / "src")
TOPIC_ID = Uuid(bytes(range(16)))
PARTITIONS = [TopicPartition("flights", number) for number in range(3)]


def audit(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def documents(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit("--json", *arguments).stdout.splitlines()]


def log_directory(directory: Path, node_id: int, *, cluster_id: str = "cluster", topic_id: Uuid = TOPIC_ID) -> Path:
    """One of a broker, with three partitions of a hundred records in two segments."""
    directory.mkdir()
    write_meta_properties(FILES, str(directory), MetaProperties(node_id, cluster_id, None))
    write_offsets(FILES, f"{directory}/replication-offset-checkpoint", dict.fromkeys(PARTITIONS, 100))
    for partition in PARTITIONS:
        path = directory / str(partition)
        path.mkdir()
        write_partition_metadata(FILES, str(path), topic_id)
        for base_offset in (0, 60):
            last = 60 if base_offset == 0 else 100
            data = b"".join(batch(at, [at, at]).data for at in range(base_offset, last, 2))
            (path / f"{base_offset:020d}.log").write_bytes(data)
    return directory


@pytest.fixture
def brokers(tmp_path: Path) -> list[Path]:
    return [log_directory(tmp_path / f"broker-{node_id}", node_id) for node_id in (1, 2, 3)]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_sound_replicas_are_told_as_that_and_left_as_they_were(brokers: list[Path]) -> None:
    before = [contents(each) for each in brokers]
    result = audit(*brokers)
    assert result.exit_code == 0, result.output
    assert "3 partitions, 9 replicas, " in result.output
    assert "nothing is wrong" in result.output
    assert [contents(each) for each in brokers] == before


def test_a_damaged_replica_is_named_with_file_and_offsets(brokers: list[Path]) -> None:
    path = brokers[1] / "flights-2" / f"{60:020d}.log"
    flip(path, 70)
    result = audit(*brokers)
    assert result.exit_code == 1
    assert f"! flights-2 offsets 60 to 61, broker 2 ({brokers[1]}): its checksum is " in result.output
    assert f"[{path}, byte 0]" in result.output
    assert "1 fault" in result.output
    *partitions, totals = documents(*brokers)
    assert totals == {
        "type": "totals",
        "partitions": 3,
        "replicas": 9,
        "size_bytes": sum(path.stat().st_size for each in brokers for path in each.rglob("*.log")),
        "batches": 450,
        "records": 900,
        "compared_batches": 150 ,
        "faults": 1,
    }  # fmt: skip
    (damaged,) = [each for each in partitions if each["faults"]]
    assert (damaged["topic"], damaged["partition"], damaged["topic_id"]) == ("flights", 2, str(TOPIC_ID))
    assert damaged["findings"][0]["kind"] == "checksum"
    assert damaged["replicas"][1]["high_watermark"] == 100


def test_one_topic_of_several_and_one_partition_directory_may_be_named(brokers: list[Path]) -> None:
    shutil.copytree(brokers[0] / "flights-0", brokers[0] / "weather-0")
    flip(brokers[0] / "weather-0" / f"{0:020d}.log", 70)
    assert audit("--topic", "flights", *brokers).exit_code == 0
    assert audit(brokers[0]).exit_code == 1
    found = documents(brokers[0] / "flights-1", brokers[2] / "flights-1")
    assert [(each["partition"], each["compared_batches"]) for each in found[:-1]] == [(1, 50)]
    assert found[0]["replicas"][0]["high_watermark"] == 100


def test_processes_find_what_one_finds(brokers: list[Path]) -> None:
    flip(brokers[2] / "flights-0" / f"{0:020d}.log", 70)

    def told(*arguments: object) -> list[Any]:
        return sorted(map(json.dumps, documents(*arguments, *brokers)))

    assert told("--processes", "2") == told("--processes", "1")


def test_replicas_of_a_former_topic_are_not_held_against_those_of_this_one(brokers: list[Path], tmp_path: Path) -> None:
    former = log_directory(tmp_path / "former", 4, topic_id=Uuid(bytes(16)[:-1] + b"\x09"))
    for path in former.rglob("*.log"):
        first = int(path.stem)
        data = (batch(at, [at, at], b"former").data for at in range(first, 60 if first == 0 else 100, 2))
        path.write_bytes(b"".join(data))
    assert audit(*brokers, former).exit_code == 0
    assert len(documents(*brokers, former)) == 6 + 1


def test_an_export_is_audited_by_itself(brokers: list[Path], tmp_path: Path) -> None:
    export = log_directory(tmp_path / "export", 1)
    (export / "meta.properties").unlink()
    for path in export.rglob("*.log"):
        first, last = int(path.stem), 60 if path.stem == "0" * 20 else 100
        path.write_bytes(batch(first, [1] * (last - first)).data)
    assert audit(*brokers, export).exit_code == 1
    (export / "export.json").touch()
    assert audit(*brokers, export).exit_code == 0
    flip(export / "flights-1" / f"{60:020d}.log", 70)
    assert audit(*brokers, export).exit_code == 1


def test_logs_of_two_clusters_are_refused(brokers: list[Path], tmp_path: Path) -> None:
    other = log_directory(tmp_path / "other", 1, cluster_id="another")
    result = audit(brokers[0], other)
    assert result.exit_code == 1
    assert "of cluster cluster" in result.stderr
    assert "of cluster another" in result.stderr


def test_garbage_beside_the_segments_is_a_fault_and_no_end(brokers: list[Path]) -> None:
    (brokers[0] / "replication-offset-checkpoint").write_bytes(b"\xff" * 100)
    (brokers[0] / "flights-1" / "partition.metadata").write_bytes(b"garbage")
    (brokers[0] / "flights-1" / f"{30:020d}.log.deleted").write_bytes(b"garbage")
    result = audit(*brokers)
    assert result.exit_code == 1
    assert "replication-offset-checkpoint" in result.output
    assert "partition.metadata" in result.output
    assert "2 faults" in result.output


def test_places_that_are_none_are_refused(tmp_path: Path, brokers: list[Path]) -> None:
    assert audit(tmp_path / "nothing").exit_code == 4
    (tmp_path / "empty").mkdir()
    assert audit(tmp_path / "empty").exit_code == 4
    assert audit("--topic", "nothing", brokers[0]).exit_code == 4
    assert audit(brokers[0] / "meta.properties").exit_code == 1
    assert audit("nothing://bucket").exit_code == 1
    assert audit().exit_code == 2


def test_without_partitions_no_spark_is_asked() -> None:
    assert audit_on_spark([], "spark://nowhere:1", compares=True) == []


def test_copies_in_remote_storage_are_held_against_the_brokers_logs(brokers: list[Path], tmp_path: Path) -> None:
    partition = TopicIdPartition(TOPIC_ID, PARTITIONS[0])
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, Uuid(bytes(16)[1:] + b"\x01")), 0, 59, 5, 1, 7, 100, {0: 0}
    )
    copy = tmp_path / "tier" / object_name(segment, ObjectKind.LOG)
    copy.parent.mkdir(parents=True)
    data = b"".join(batch(at, [at, at]).data for at in range(0, 60, 2))
    copy.write_bytes(data)
    for place in (tmp_path / "tier", f"file://{tmp_path}/tier"):
        assert audit(*brokers, place).exit_code == 0
    copy.write_bytes(data.replace(batch(20, [20, 20]).data, batch(20, [20, 21]).data))
    result = audit(*brokers, tmp_path / "tier")
    assert result.exit_code == 1
    assert "! flights-0 offsets 20 to 21" in result.output
    assert f"copies in {tmp_path}/tier" in result.output


def test_what_a_cleaner_does_meanwhile_is_no_fault(brokers: list[Path]) -> None:
    path = brokers[0] / "flights-0" / f"{0:020d}.log"
    path.write_bytes(b"".join(batch(at, [at, at]).data for at in (0, 2, 40, 58)))
    assert audit(*brokers).exit_code == 1
    cleaning = path.with_suffix(".log.cleaned")
    cleaning.touch()
    assert audit(*brokers).exit_code == 0
    cleaning.unlink()
    partitions = find_audited(list(map(str, brokers)), ["flights"], "{}").partitions
    write_offsets(FILES, f"{brokers[0]}/cleaner-offset-checkpoint", {PARTITIONS[0]: 60})
    assert not audit_one(partitions[0], lambda _bytes: None, compares=True).findings.faults, "it is looked at again"


@pytest.mark.parametrize(("changes", "is_sound"), [(3, True), (100, False)])
def test_a_partition_that_changes_all_the_time_is_read_again_some_times(
    brokers: list[Path], monkeypatch: pytest.MonkeyPatch, changes: int, is_sound: bool
) -> None:
    path = brokers[0] / "flights-0" / f"{0:020d}.log"
    whole, looks = path.read_bytes(), []
    path.write_bytes(whole[:-1] + b"\xff")
    partitions = find_audited(list(map(str, brokers)), ["flights"], "{}").partitions

    def looked(audited: Audited) -> Audited:
        looks.append(audited)
        if len(looks) == changes:
            path.write_bytes(whole)
        write_offsets(FILES, f"{brokers[0]}/replication-offset-checkpoint", {PARTITIONS[0]: 60 + len(looks)})
        return look_again(audited)

    monkeypatch.setattr("barnabas.cli.audit_work.look_again", looked)
    audit_of = audit_one(partitions[0], lambda _bytes: None, compares=True)
    assert (not audit_of.findings.faults, len(looks)) == (is_sound, 3 if is_sound else 4)


@pytest.mark.skipif(sys.platform != "linux", reason="children are found by /proc")
def test_processes_end_when_the_one_that_started_them_is_killed(brokers: list[Path]) -> None:
    for number in range(2):  # a pipe that nobody writes to: whoever opens it waits
        path = brokers[0] / f"flights-{number}" / f"{0:020d}.log"
        path.unlink()
        os.mkfifo(path)
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas.cli", "audit", "--processes", "2", str(brokers[0])],
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) >= 3, "two workers and their tracker")
        workers = children.read_text().split()
    finally:
        process.kill()
        process.wait(20)
    wait_until(lambda: not any(map(is_running, workers)), "the workers' end")


def is_running(process_id: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
