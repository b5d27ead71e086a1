"""`barnabas topic export` and `import` on a cluster in virtual time: to files and back, and what goes wrong between."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli import export_files, export_reading
from barnabas.cli.audit_places import find_audited
from barnabas.cli.audit_work import audit_one
from barnabas.cli.connection import CommandError
from barnabas.cli.edges import Edge
from barnabas.cli.export_files import Export, PartitionWriter, read_export
from barnabas.cli.starts import AtOffset
from barnabas.cli.topic_copying import Plan
from barnabas.cli.topic_exporting import ExportPlan, export
from barnabas.cli.topic_importing import import_topic
from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_host import RealHost, real_host
from barnabas.log.inspection.batch_inspection import Damage, inspect_batches
from barnabas.testing import SimulatedCluster
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done

RECORDS = [
    ProducerRecord(
        "s",
        None if number % 7 == 3 else b"value %d" % number,
        None if number % 5 == 2 else b"key %d" % number,
        ((b"h", b"%d" % number), (b"h", None)) if number % 3 == 0 else (),
        number % 2,
        1_600_000_000_000 + number * 1_001,
    )
    for number in range(60)
]


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=1) as running:
        running.create_topic("s", partitions=2)
        asked(running, lambda client: produced(client, RECORDS))
        yield running


def asked(cluster: SimulatedCluster, call: Callable[[Client], Any]) -> Any:
    settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")), request_timeout_ms=5_000)

    async def work() -> Any:
        async with Client(cluster.host, settings, logging.getLogger("tests.topic-export")) as client:
            return await call(client)

    return cluster.run(work)


async def produced(client: Client, records: list[ProducerRecord]) -> None:
    async with Producer(client) as producer:
        await asyncio.gather(*[await producer.send(record) for record in records])


def exported(cluster: SimulatedCluster, directory: Path, **changes: Any) -> Export:
    plan: dict[str, Any] = {
        "topic": "s", "numbers": None, "directory": directory, "first": Edge.EARLIEST, "last": Edge.LATEST,
        "reads_committed": True, "compression": "none",
    }  # fmt: skip
    asked(cluster, lambda client: export(client, ExportPlan(**(plan | changes)), as_json=True))
    found = read_export(directory)
    assert found is not None
    return found


def imported(
    cluster: SimulatedCluster,
    directory: Path,
    target: str = "t",
    *,
    keeps: bool = False,
    to: Path | None = None,
    **more: Any,
) -> None:
    plan: dict[str, Any] = {
        "source": "s", "numbers": None, "target": target, "first": Edge.EARLIEST, "last": Edge.LATEST,
        "follows": False, "keeps_partitions": True, "creates": True, "replication_factor": None,
        "copies_configs": False, "reads_committed": True, "compression": "none", "state_file": None,
        "transactional": None, "rate": None, "skips_deleted": False,
    }  # fmt: skip
    wanted = Plan(**(plan | more))
    asked(
        cluster,
        lambda client: import_topic(client, directory, wanted, keeps_offsets=keeps, offset_map=to, as_json=True),
    )


def all_of(cluster: SimulatedCluster, topic: str) -> list[Any]:
    """Each record with everything but the topic's name, by partition and offset."""
    return sorted(
        (each.partition.partition, each.offset, each.timestamp_ms, each.key or b"", each.value or b"", each.key is None,
         each.value is None, str(each.headers))
        for each in cluster.records(topic)
    )  # fmt: skip


def faults(directory: Path) -> int:
    """Of an audit of the export."""
    found = find_audited([str(directory)], (), "{}")
    return sum(audit_one(each, lambda _bytes: None, compares=True).findings.faults for each in found.partitions)


def test_all_of_a_record_goes_into_files_and_comes_back(cluster: SimulatedCluster, tmp_path: Path) -> None:
    found = exported(cluster, tmp_path / "x", compression="gzip")
    assert (found.is_complete, found.partition_count) == (True, 2)
    assert {number: (each.records, each.gaps) for number, each in found.partitions.items()} == {0: (30, 0), 1: (30, 0)}
    assert faults(tmp_path / "x") == 0
    imported(cluster, tmp_path / "x", keeps=True)
    assert all_of(cluster, "t") == all_of(cluster, "s")


def test_gaps_are_told_and_new_offsets_are_written_down(
    cluster: SimulatedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(cluster, lambda client: deleted(client, 10))
    found = exported(cluster, tmp_path / "x", last=AtOffset(25))
    assert [(each.first_offset, each.end_offset, each.gaps) for each in found.partitions.values()] == [(10, 25, 0)] * 2
    with pytest.raises(CommandError, match="goes on at 0, and the export at 10"):
        imported(cluster, tmp_path / "x", keeps=True)
    assert all_of(cluster, "t") == []
    imported(cluster, tmp_path / "x", to=tmp_path / "map")
    assert [json.loads(line) for line in sorted((tmp_path / "map").read_text().splitlines())] == [
        {"partition": number, "offset": 10, "target_partition": number, "target_offset": 0} for number in (0, 1)
    ]
    assert "partition 0 by -10, partition 1 by -10" in capsys.readouterr().err
    assert [each[3:] for each in all_of(cluster, "t")] == [each[3:] for each in all_of(cluster, "s") if each[1] < 25]


def test_offsets_behind_an_aborted_transaction_cannot_be_kept(cluster: SimulatedCluster, tmp_path: Path) -> None:
    asked(cluster, aborted)
    asked(cluster, lambda client: produced(client, RECORDS))
    found = exported(cluster, tmp_path / "x")
    assert (found.partitions[0].records, found.partitions[0].end_offset, found.partitions[0].gaps) == (60, 62, 1)
    assert faults(tmp_path / "x") == 0
    ahead = exported(cluster, tmp_path / "ahead", first=AtOffset(30))
    assert [each.gaps for each in ahead.partitions.values()] == [1, 0], "ahead of the first record"
    with pytest.raises(CommandError, match="lacks offsets in between"):
        imported(cluster, tmp_path / "x", keeps=True)
    imported(cluster, tmp_path / "x", creates=True)
    assert [each[2:] for each in all_of(cluster, "t")] == [each[2:] for each in all_of(cluster, "s")]


async def aborted(client: Client) -> None:
    async with TransactionalProducer(client, "n") as producer:
        await producer.begin()
        await (await producer.send(ProducerRecord("s", b"never", partition=0)))
        await producer.abort()


async def deleted(client: Client, offset: int) -> None:
    async with Admin(client) as admin:
        await admin.delete_records({TopicPartition("s", number): offset for number in range(2)})


@pytest.mark.parametrize("kept", [0, 1, 40, 100, 400])
def test_an_export_that_was_cut_off_goes_on_there(cluster: SimulatedCluster, tmp_path: Path, kept: int) -> None:
    whole = exported(cluster, tmp_path / "whole")
    found = exported(cluster, tmp_path / "x")
    found.is_complete = False
    found.write(tmp_path / "x")
    path = tmp_path / "x" / "s-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:kept])
    assert exported(cluster, tmp_path / "x").partitions == whole.partitions
    imported(cluster, tmp_path / "x", keeps=True)
    assert all_of(cluster, "t") == all_of(cluster, "s")
    with pytest.raises(CommandError, match="has a complete export"):
        exported(cluster, tmp_path / "x")


def test_a_full_disk_ends_an_export_which_goes_on_when_there_is_room(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    left = [300]

    def short(descriptor: int, data: Any) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(CommandError, match="No space left on device; the same command goes on"):
        exported(cluster, tmp_path / "x")
    with pytest.raises(CommandError, match="is not complete"):
        imported(cluster, tmp_path / "x")
    monkeypatch.undo()
    exported(cluster, tmp_path / "x")
    imported(cluster, tmp_path / "x", keeps=True)
    assert all_of(cluster, "t") == all_of(cluster, "s")


def test_what_is_damaged_is_cut_off_only_where_brokers_still_have_it(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "_BATCH_BYTES", 300)
    found = exported(cluster, tmp_path / "x")
    found.is_complete = False
    found.write(tmp_path / "x")
    (log,) = (tmp_path / "x" / "s-0").glob("*.log")
    whole = bytearray(log.read_bytes())
    whole[len(whole) // 2] ^= 1
    log.write_bytes(whole)
    asked(cluster, lambda client: deleted(client, 29))
    with pytest.raises(
        CommandError, match=r"log is damaged at byte \d+, and stays as it is: offsets \d+ to 28 .* were d"
    ):
        exported(cluster, tmp_path / "x")
    assert log.read_bytes() == whole


def test_what_is_damaged_and_still_there_is_read_again(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "_BATCH_BYTES", 300)
    found = exported(cluster, tmp_path / "x")
    found.is_complete = False
    found.write(tmp_path / "x")
    (log,) = (tmp_path / "x" / "s-0").glob("*.log")
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2] + b"\x00" * 50 + whole[len(whole) // 2 :])
    assert {each.records for each in exported(cluster, tmp_path / "x").partitions.values()} == {30}
    assert faults(tmp_path / "x") == 0


@pytest.mark.parametrize("damage", ["cut off", "flipped", "removed", "longer"])
def test_nothing_is_written_of_an_export_that_is_damaged(
    cluster: SimulatedCluster, tmp_path: Path, damage: str
) -> None:
    exported(cluster, tmp_path / "x")
    path = tmp_path / "x" / "s-1" / f"{0:020d}.log"
    data = path.read_bytes()
    match damage:
        case "cut off":
            path.write_bytes(data[:-1])
        case "flipped":
            path.write_bytes(data[:-5] + b"\xff" + data[-4:])
        case "removed":
            path.unlink()
        case _:
            path.write_bytes(data + b"garbage")
    with pytest.raises(CommandError, match=r"the export is damaged: s-1: .*; nothing was written"):
        imported(cluster, tmp_path / "x")
    assert damage == "longer" or faults(tmp_path / "x")


def test_a_partition_whose_records_are_all_deleted_is_no_damage(cluster: SimulatedCluster, tmp_path: Path) -> None:
    async def delete(client: Client) -> None:
        async with Admin(client) as admin:
            await admin.delete_records({TopicPartition("s", 1): 30})

    asked(cluster, delete)
    found = exported(cluster, tmp_path / "x")
    assert (found.partitions[1].first_offset, found.partitions[1].records) == (30, 0)
    assert not faults(tmp_path / "x")
    imported(cluster, tmp_path / "x")
    assert all_of(cluster, "t") == all_of(cluster, "s")


def test_records_that_the_export_does_not_tell_of_are_damage(cluster: SimulatedCluster, tmp_path: Path) -> None:
    exported(cluster, tmp_path / "x", first=AtOffset(5), last=AtOffset(5))
    exported(cluster, tmp_path / "y")
    (tmp_path / "x" / "s-1" / f"{0:020d}.log").write_bytes((tmp_path / "y" / "s-1" / f"{0:020d}.log").read_bytes())
    with pytest.raises(CommandError, match=r"s-1: it has 30 records up to 30, and not 0 up to 0; nothing"):
        imported(cluster, tmp_path / "x")


def test_files_are_read_off_the_loop_and_ctrl_c_ends_that(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = exported(cluster, tmp_path / "x")
    begun, ended = threading.Event(), threading.Event()

    def endless(_replicas: object, passed: Callable[[int], None]) -> None:
        begun.set()
        try:
            while True:
                passed(1)
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr(export_reading, "audit_partition", endless)

    stopped_when(begun, lambda host: export_reading.verify(host, tmp_path / "x", found))
    assert ended.wait(60)


def test_what_is_there_already_is_counted_off_the_loop_and_ctrl_c_ends_that(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = exported(cluster, tmp_path / "x")
    begun, ended = threading.Event(), threading.Event()

    def endless(_files: object, _descriptor: int) -> Iterator[Damage]:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
                yield batch
        finally:
            ended.set()

    path = tmp_path / "x" / "s-0" / f"{0:020d}.log"
    with path.open("rb") as opened:
        batch: Any = next(inspect_batches(RealFiles(), opened.fileno()))
    monkeypatch.setattr(export_files, "inspect_batches", endless)
    writer = PartitionWriter(
        tmp_path / "x", TopicPartition("s", 0), found.partitions[0], Compression(CompressionType.NONE)
    )
    stopped_when(begun, lambda host: writer.recover(host, tmp_path / "x"))
    assert ended.wait(60)


def stopped_when(begun: threading.Event, work: Callable[[RealHost], Coroutine[Any, Any, None]]) -> None:
    """Runs the work, and cancels it when it has begun."""

    async def main() -> None:
        async with real_host("client", asyncio.get_running_loop()) as host:
            working = host.loop.create_task(work(host))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working

    asyncio.run(main())


def test_files_that_are_no_export_are_refused(cluster: SimulatedCluster, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is no export"):
        imported(cluster, tmp_path)
    exported(cluster, tmp_path / "x")
    sound = json.loads((tmp_path / "x" / "export.json").read_text())
    for bad in (
        b"\xff", b"[" * 100_000, b"{}", json.dumps(sound | {"version": 2}).encode(),
        json.dumps(sound | {"partitions": {"7": sound["partitions"]["0"]}}).encode(),
        json.dumps(sound | {"topic": "../x"}).encode(),
    ):  # fmt: skip
        (tmp_path / "x" / "export.json").write_bytes(bad)
        with pytest.raises(CommandError, match="is not what"):
            imported(cluster, tmp_path / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis").touch()
    with pytest.raises(CommandError, match="is not empty, and no export"):
        exported(cluster, tmp_path / "full")


def test_a_second_export_is_imported_behind_the_first_and_neither_twice(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    state = str(tmp_path / "state")
    exported(cluster, tmp_path / "one", last=AtOffset(10))
    exported(cluster, tmp_path / "three", first=AtOffset(20))
    imported(cluster, tmp_path / "one", state_file=state)
    exported(cluster, tmp_path / "two", first=AtOffset(5), last=AtOffset(20))
    imported(cluster, tmp_path / "two", state_file=state)
    imported(cluster, tmp_path / "three", state_file=state)
    for again in ("three", "one"):
        imported(cluster, tmp_path / again, state_file=state)
    assert json.loads((tmp_path / "state").read_text())["offsets"] == {"0": 30, "1": 30}
    assert all_of(cluster, "t") == all_of(cluster, "s")
    other = str(tmp_path / "other")
    imported(cluster, tmp_path / "one", "u", state_file=other)
    with pytest.raises(CommandError, match="import the one between them first"):
        imported(cluster, tmp_path / "three", "u", state_file=other)


def test_transactions_keep_how_far_it_is(cluster: SimulatedCluster, tmp_path: Path) -> None:
    exported(cluster, tmp_path / "x")
    imported(cluster, tmp_path / "x", transactional="n")
    imported(cluster, tmp_path / "x", transactional="n")
    assert [each[3:] for each in all_of(cluster, "t")] == [each[3:] for each in all_of(cluster, "s")]


def test_another_export_at_the_same_time_is_refused(cluster: SimulatedCluster, tmp_path: Path) -> None:
    with export_files.locked(tmp_path / "x"), pytest.raises(CommandError, match="another command writes"):
        exported(cluster, tmp_path / "x")


def test_options_that_exclude_each_other_are_refused(barnabas: Callable[..., Done], tmp_path: Path) -> None:
    assert barnabas("topic", "import", str(tmp_path), "--keep-offsets", "--transactional", "n").status == 2
    assert barnabas("topic", "import", str(tmp_path), "--keep-offsets", "--partitions", "key").status == 2
    assert barnabas("topic", "import", str(tmp_path)).status == 4
    assert barnabas("topic", "export", "s:x", str(tmp_path)).status == 2
