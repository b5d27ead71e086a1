"""Loading a partition directory that is not as it was left."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.metrics import Gauge
from barnabas.kernel.real_files import RealFiles
from barnabas.log.manager import start_up
from barnabas.log.manager.log_loader import LoadProgress, load_log
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire.record_batch import RecordBatch
from tests.support.waiting import wait_until
from tests.unit.log.log_broker import FLIGHTS, LogBroker, records

WithBroker = Callable[..., Any]
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100)
COUNT = 40
MANY_LOGS = 60
FILES_OF_A_BROKER = 3
"""The lock of its log directory, and what is written while it starts."""
FILES_OF_A_LOG = 6


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "logs-0" / "flights-0"


async def write(broker: LogBroker) -> None:
    """Some segments, of one idempotent producer."""
    log = broker.log()
    now_ms = broker.host.clock.time_ms()
    for number in range(COUNT):
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number, "timestamp_ms": now_ms + number}
        log.append_as_leader(records(b"%d" % number, **fields), number // 15)
    await broker.written(log)
    log.increase_high_watermark(COUNT)


async def find_everything(broker: LogBroker) -> list[str]:
    """Checks that nothing is missing; returns the warnings."""
    log = broker.manager.logs[FLIGHTS]
    assert [record.offset for record in await broker.records(log)] == list(range(COUNT))
    assert [entry.start_offset for entry in log.leader_epochs.entries] == [0, 15, 30]
    (producer,) = log.producers
    assert producer.last_sequence == COUNT - 1
    return [line for line in broker.lines if line.startswith("WARNING") and "cleaner" not in line]


def logs_of(directory: Path) -> list[Path]:
    found = sorted(directory.glob("*.log"))
    assert len(found) > 3
    return found


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize(
    ("is_clean", "damage"), [(True, None), (True, b""), (True, b"\xff" * 25), (False, None), (False, b"\xff" * 25)]
)
def test_indexes_and_snapshots_that_are_missing_or_damaged_are_made_again(
    with_broker: WithBroker, directory: Path, is_clean: bool, suffix: str, damage: bytes | None
) -> None:
    with_broker(write, config=CONFIG, is_clean=is_clean)
    # Without any snapshot a clean stop means that there are no producers, so the first is kept.
    for path in sorted(directory.glob(f"*{suffix}"))[1:]:
        path.unlink() if damage is None else path.write_bytes(damage)
    warnings = with_broker(find_everything, config=CONFIG)
    assert bool(warnings) or not is_clean or damage == b"" or suffix == ".snapshot"
    assert not with_broker(find_everything, config=CONFIG)


def test_indexes_without_a_log_are_removed(with_broker: WithBroker, directory: Path) -> None:
    with_broker(write, config=CONFIG)
    stray = directory / f"{77:020d}.index"
    stray.touch()
    (warning,) = with_broker(find_everything, config=CONFIG)
    assert "whose log file is missing" in warning
    assert not stray.exists()


def test_after_a_crash_nothing_behind_damage_is_kept(with_broker: WithBroker, directory: Path) -> None:
    with_broker(write, config=CONFIG, is_clean=False)
    damaged = logs_of(directory)[2]
    data = bytearray(damaged.read_bytes())
    first = RecordBatch(data)
    data[first.size_bytes + 70] ^= 1
    damaged.write_bytes(data)

    async def check(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        end = int(damaged.stem) + 1
        assert log.log_end_offset == end
        assert [record.offset for record in await broker.records(log)] == list(range(end))
        (producer,) = log.producers
        assert producer.last_sequence == end - 1
        assert all(int(path.stem) <= end for path in directory.glob("*.snapshot"))

    with_broker(check, config=CONFIG)


def test_after_a_crash_a_hole_between_segments_ends_the_log(with_broker: WithBroker, directory: Path) -> None:
    with_broker(write, config=CONFIG, is_clean=False)
    missing = logs_of(directory)[2]
    missing.unlink()

    async def check(broker: LogBroker) -> None:
        assert broker.manager.logs[FLIGHTS].log_end_offset == int(missing.stem)

    with_broker(check, config=CONFIG)


def test_tells_how_many_segments_are_to_be_recovered_yet(
    with_broker: WithBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    batches: list[int] = []

    class NotingProgress(LoadProgress):
        def __setattr__(self, name: str, value: int) -> None:
            super().__setattr__(name, value)
            (batches if name == "batches_read" else told).append(value)

    async def look(broker: LogBroker) -> list[float]:
        load = broker.manager.start_up
        assert (load.logs_found, load.logs_loaded, load.batches_read) == (1, 1, batches[-1])
        assert load.work_done == 1 + batches[-1]
        named = [metric for name, metric in broker.metrics if name.name == "remainingSegmentsToRecover"]
        return [metric.read() for metric in named if isinstance(metric, Gauge)]

    with_broker(write, config=CONFIG, is_clean=False)
    monkeypatch.setattr(start_up, "LoadProgress", NotingProgress)
    gauges = with_broker(look, config=CONFIG)
    assert told == [0, *range(len(logs_of(directory)), 0, -1), 0]
    assert batches == [*range(batches[-1] + 1)]
    assert batches[-1] >= len(logs_of(directory))
    assert gauges
    assert not any(gauges)


@pytest.mark.parametrize(("is_clean", "at_once"), [(False, 2), (True, 1)])
def test_after_a_crash_two_logs_of_a_directory_are_recovered_side_by_side(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, is_clean: bool, at_once: int
) -> None:
    """Whatever `num.recovery.threads.per.data.dir` says, whose default is one."""
    logs = [FLIGHTS._replace(partition=number) for number in range(4)]
    lock = threading.Condition()
    under_way: list[int] = [0]

    def load(*arguments: Any) -> Any:
        with lock:
            under_way.append(under_way[-1] + 1)
            lock.notify_all()
            assert lock.wait_for(lambda: max(under_way) >= at_once, timeout=10.0)
        loaded = load_log(*arguments)
        with lock:
            under_way.append(under_way[-1] - 1)
        return loaded

    async def write_all(broker: LogBroker) -> None:
        for partition in logs:
            broker.log(partition).append_as_leader(records(b"value"), 0)
            await broker.written(broker.log(partition))

    async def check(broker: LogBroker) -> None:
        assert {partition: log.log_end_offset for partition, log in broker.manager.logs.items()} == dict.fromkeys(
            logs, 1
        )

    with_broker(write_all, is_clean=is_clean)
    monkeypatch.setattr(start_up, "load_log", load)
    with_broker(check)
    assert max(under_way) == at_once


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_where_one_of_two_recoveries_side_by_side_fails_the_directory_is_offline_and_the_others_are_there(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    """The other one ends first, whole; none is begun any more; and the next start finds everything."""
    logs = [FLIGHTS._replace(partition=number) for number in range(8)]
    failed, begun = threading.Event(), list[str]()

    def load(files: Any, request: Any, *others: Any) -> Any:
        if not request.directory.startswith(str(tmp_path / "logs-0")):
            return load_log(files, request, *others)
        begun.append(request.directory)
        if len(begun) == 1:
            wait_until(lambda: len(begun) == 2, "another is recovered beside it", 10.0)
            failed.set()
            raise OSError(code, os.strerror(code), request.directory)
        assert failed.wait(10.0)
        return load_log(files, request, *others)

    async def write_all(broker: LogBroker) -> None:
        for partition in logs:
            broker.log(partition).append_as_leader(records(b"value"), 0)
            await broker.written(broker.log(partition))

    async def check(broker: LogBroker) -> dict[str, int]:
        for log in broker.manager.logs.values():
            assert log.log_end_offset == 1
            assert not log.log_directory.is_offline
        found = [log.directory for log in broker.manager.logs.values()]
        return {str(path.name): sum(each.startswith(str(path)) for each in found) for path in tmp_path.glob("logs-*")}

    with_broker(write_all, is_clean=False, directories=2)
    monkeypatch.setattr(start_up, "load_log", load)
    descriptors = len(os.listdir("/proc/self/fd"))
    assert with_broker(check, is_clean=False, directories=2) == {"logs-0": 0, "logs-1": 4}
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(begun) == 2
    monkeypatch.undo()
    assert with_broker(check, directories=2) == {"logs-0": 4, "logs-1": 4}


def test_what_is_below_the_recovery_point_is_not_read_again(with_broker: WithBroker, directory: Path) -> None:
    """Damage there goes unseen until somebody reads it, as in Kafka: it was synced; reading all would take hours."""

    async def write_and_sync(broker: LogBroker) -> None:
        await write(broker)
        await broker.manager.logs[FLIGHTS].flush()
        await broker.manager.checkpoint_recovery_points()

    async def check(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_end_offset, log.recovery_point) == (COUNT, COUNT)

    with_broker(write_and_sync, config=CONFIG, is_clean=False)
    first = logs_of(directory)[0]
    data = bytearray(first.read_bytes())
    data[70] ^= 1
    first.write_bytes(data)
    with_broker(check, config=CONFIG)


def test_after_a_clean_stop_nothing_is_read_again_for_the_producers_whom_the_snapshot_has(
    with_broker: WithBroker, directory: Path
) -> None:
    """A start takes the time of the indexes, however many batches the last segment has."""
    with_broker(write, config=CONFIG)
    last = logs_of(directory)[-1]
    data = bytearray(last.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    # Nothing could be found behind a batch of this size: whoever went through the segment would say so.
    data[second + 8 : second + 12] = b"\xff" * 4
    last.write_bytes(data)

    async def check(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert log.log_end_offset == COUNT
        (producer,) = log.producers
        assert producer.last_sequence == COUNT - 1
        assert not [line for line in broker.lines if line.startswith("WARNING") and "cleaner" not in line]

    with_broker(check, config=CONFIG)


def test_a_log_that_ends_before_its_start_begins_anew(with_broker: WithBroker, tmp_path: Path) -> None:
    with_broker(write, config=CONFIG)
    (tmp_path / "logs-0" / "log-start-offset-checkpoint").write_text("0\n1\nflights 0 90\n")

    async def check(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (90, 90, 0)
        assert log.append_as_leader(records(b"more"), 3).first_offset == 90

    with_broker(check, config=CONFIG)


@pytest.mark.parametrize("is_clean", [False, True])
def test_open_files_do_not_grow_with_the_logs(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    """A start has the files of one log open at a time, and none of those that have nothing to do."""
    is_open: set[int] = set()
    most = 0
    open_file, close_file = RealFiles.open, RealFiles.close

    def open_counted(self: RealFiles, path: str, flags: int, mode: int = 0o644) -> int:
        nonlocal most
        descriptor = open_file(self, path, flags, mode)
        is_open.add(descriptor)
        most = max(most, len(is_open))
        return descriptor

    def close_counted(descriptor: int) -> None:
        is_open.discard(descriptor)
        close_file(descriptor)

    async def fill(broker: LogBroker) -> None:
        for number in range(MANY_LOGS):
            log = broker.log(FLIGHTS._replace(partition=number))
            log.append_as_leader(records(b"value"), 0)
            await broker.written(log)

    async def look(broker: LogBroker) -> int:
        assert len(broker.manager.logs) == MANY_LOGS
        assert all(log.log_end_offset == 1 for log in broker.manager.logs.values())
        return len(is_open)

    with_broker(fill, is_clean=is_clean)
    monkeypatch.setattr(RealFiles, "open", open_counted)
    monkeypatch.setattr(RealFiles, "close", staticmethod(close_counted))
    left = with_broker(look, is_clean=False)
    assert left <= FILES_OF_A_BROKER
    assert most <= FILES_OF_A_BROKER + FILES_OF_A_LOG
