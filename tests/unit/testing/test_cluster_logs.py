"""`barnabas.testing.cluster_logs`: logs read from a simulated disk, while they grow and after a loss of power."""

from __future__ import annotations

import os

from barnabas.testing.cluster_history import RecordId
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.simulated_disk import SimulatedDisk
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulation import Simulation
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition

EVENTS = TopicPartition("events", 0)
DIRECTORIES = ("/one", "/two")


def batch(base_offset: int, *numbers: int) -> bytes:
    builder = RecordBatchBuilder(base_offset=base_offset, partition_leader_epoch=3)
    for number in numbers:
        builder.append(1_000, None, RecordId(1, number).value())
    return bytes(builder.build())


def append(files: SimulatedFiles, name: str, data: bytes) -> None:
    files.make_directories("/two/events-0")
    descriptor = files.open(f"/two/events-0/{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while data:
        data = data[files.write(descriptor, data) :]
    files.close(descriptor)


def disk_and_files(simulation: Simulation) -> tuple[SimulatedDisk, SimulatedFiles]:
    disk = simulation.machine("broker").disk
    return disk, SimulatedFiles(disk, "test", lambda _seconds: None)


def test_reads_on_as_the_log_grows_over_segments_up_to_an_offset() -> None:
    with Simulation(1) as simulation:
        disk, files = disk_and_files(simulation)
        log = StoredLog(disk, DIRECTORIES, EVENTS)
        assert log.read() == ()
        append(files, f"{0:020}.log", batch(0, 0, 1) + batch(2, 2))
        assert log.exists
        assert not StoredLog(disk, DIRECTORIES, TopicPartition("other", 0)).exists
        assert [(one.base_offset, one.last_offset, one.leader_epoch) for one in log.read(2)] == [(0, 1, 3)]
        assert log.end_offset == 2
        append(files, f"{0:020}.log", batch(3, 3)[:-4])
        append(files, f"{0:020}.index", b"whatever")
        assert [one.base_offset for one in log.read()] == [2], "what is not whole is not there yet"
        append(files, f"{0:020}.log", batch(3, 3)[-4:])
        append(files, f"{4:020}.log", batch(4, 4))
        assert [one.base_offset for one in log.read()] == [3, 4]
        assert log.read() == ()
        records = StoredLog(disk, DIRECTORIES, EVENTS).records()
        assert [stored.record for stored in records] == [RecordId(1, number) for number in range(5)]
        assert [stored.offset for stored in records] == list(range(5))


def test_finds_where_the_first_damage_begins() -> None:
    with Simulation(1) as simulation:
        disk, files = disk_and_files(simulation)
        log = StoredLog(disk, DIRECTORIES, EVENTS)
        assert log.surviving_end_offset() == 0
        append(files, f"{0:020}.log", batch(0, 0) + batch(1, 1))
        append(files, f"{2:020}.log", batch(2, 2))
        assert log.surviving_end_offset() == 3
        append(files, f"{2:020}.log", bytes(100))
        assert log.surviving_end_offset() == 3
        append(files, f"{3:020}.log", batch(3, 3))
        assert log.surviving_end_offset() == 3, "nothing that follows counts"
        damaged = bytearray(batch(1, 1))
        damaged[-1] ^= 1
        descriptor = files.open(f"/two/events-0/{0:020}.log", os.O_WRONLY)
        files.pwrite(descriptor, bytes(damaged), len(batch(0, 0)))
        files.close(descriptor)
        assert log.surviving_end_offset() == 1


def test_finds_what_no_sync_has_covered_yet() -> None:
    with Simulation(1) as simulation:
        disk, files = disk_and_files(simulation)
        log = StoredLog(disk, DIRECTORIES, EVENTS)
        assert log.synced_end_offset() is None
        name = f"/two/events-0/{0:020}.log"
        append(files, f"{0:020}.log", batch(0, 0, 1))
        assert log.synced_end_offset() == 0
        descriptor = files.open(name, os.O_WRONLY)
        files.fsync(descriptor)
        files.close(descriptor)
        assert log.synced_end_offset() is None
        append(files, f"{0:020}.log", batch(2, 2))
        append(files, f"{3:020}.log", batch(3, 3))
        assert log.synced_end_offset() == 2
