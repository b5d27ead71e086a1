"""What the next start makes of a replica that was on its way to another log directory: each row of the table."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.directory_files import read_replacement_marker, write_replacement_marker
from barnabas.log.manager.start_up import DuplicateLogError
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.testing.simulated_disk import FaultRule
from barnabas.testing.simulation import Simulation
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

WithBroker = Callable[..., Any]
FUTURE = f"flights-0.{'ab' * 16}-future"


async def one_log(broker: LogBroker) -> None:
    log = broker.log()
    log.append_as_leader(records(b"one"), 0)
    log.append_as_leader(records(b"two"), 0)
    await broker.written(log)


@pytest.fixture
def one(with_broker: WithBroker, tmp_path: Path) -> Path:
    with_broker(one_log, directories=2)
    assert (tmp_path / "logs-0" / "flights-0").exists()
    return tmp_path / "logs-0"


@pytest.fixture
def two(one: Path) -> Path:
    return one.parent / "logs-1"


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def mark(directory: Path, other: Path) -> None:
    write_replacement_marker(RealFiles(), str(directory), str(other))


def marker(directory: Path) -> str | None:
    return read_replacement_marker(RealFiles(), str(directory))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def test_a_copy_beside_the_current_log_stays_one_and_its_marker_goes(
    with_broker: WithBroker, one: Path, two: Path
) -> None:
    copied(one / "flights-0", two / FUTURE)
    mark(two / FUTURE, one)

    async def main(broker: LogBroker) -> None:
        assert broker.log().directory == str(one / "flights-0")
        future = broker.manager.future_logs[FLIGHTS]
        assert future.directory == str(two / FUTURE)
        assert future.log_end_offset == 2
        assert marker(two / FUTURE) is None

    with_broker(main, directories=2)


@pytest.mark.parametrize("marked", [0, 1])
def test_of_two_current_ones_that_with_the_marker_stays(
    with_broker: WithBroker, one: Path, two: Path, marked: int
) -> None:
    copied(one / "flights-0", two / "flights-0")
    places = [one, two]
    mark(places[marked] / "flights-0", places[1 - marked])

    async def main(broker: LogBroker) -> None:
        assert broker.log().directory == str(places[marked] / "flights-0")
        assert broker.log().log_end_offset == 2
        assert marker(places[marked] / "flights-0") is None
        (given_up,) = names(places[1 - marked])
        assert given_up.endswith("-delete")

    with_broker(main, directories=2)


@pytest.mark.parametrize("is_marked", [False, True], ids=["no marker", "two markers"])
def test_two_current_ones_that_nobody_can_choose_from_are_refused(
    with_broker: WithBroker, one: Path, two: Path, is_marked: bool
) -> None:
    copied(one / "flights-0", two / "flights-0")
    if is_marked:
        mark(two / "flights-0", one)
        mark(one / "flights-0", two)
    with pytest.raises(DuplicateLogError):
        with_broker(one_log, directories=2)
    assert names(one) == names(two) == ["flights-0"]


def test_a_complete_copy_alone_becomes_the_current_log(with_broker: WithBroker, one: Path, two: Path) -> None:
    mark(one / "flights-0", two)
    (one / "flights-0").rename(one / FUTURE)

    async def main(broker: LogBroker) -> None:
        assert broker.log(is_new=False).directory == str(one / "flights-0")
        assert broker.log().log_end_offset == 2
        assert marker(one / "flights-0") is None
        assert not broker.manager.future_logs

    with_broker(main, directories=2)


def test_a_copy_alone_that_may_lack_anything_is_left_alone(with_broker: WithBroker, one: Path, two: Path) -> None:
    (one / "flights-0").rename(one / FUTURE)

    async def main(broker: LogBroker) -> None:
        assert not broker.manager.logs
        assert not broker.manager.future_logs
        assert any("left alone" in line for line in broker.lines)

    with_broker(main, directories=2)
    assert names(one) == [FUTURE]
    assert names(two) == []


def test_a_complete_copy_waits_for_the_directory_in_which_the_current_log_may_be(
    with_broker: WithBroker, one: Path, two: Path
) -> None:
    mark(one / "flights-0", two)
    (one / "flights-0").rename(one / FUTURE)
    two.rename(two.with_name("away"))
    two.write_text("a file where a directory should be")

    async def main(broker: LogBroker) -> None:
        assert len(broker.manager.offline_directories) == 1
        with pytest.raises(KafkaError) as caught:
            broker.log(is_new=False)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    with_broker(main, directories=2)
    assert names(one) == [FUTURE]
    assert marker(one / FUTURE) == str(two)


async def moved(broker: LogBroker) -> None:
    manager = broker.manager
    current = broker.log()
    (other,) = (each for each in manager.directories if each is not current.log_directory)
    future = manager.create_future_log(current, other)
    for batch in await broker.batches(current):
        future.append_as_follower(batch)
    await manager.prepare_replacement(FLIGHTS)
    assert manager.replace_current(FLIGHTS) is future


def test_a_log_that_has_moved_goes_on_where_it_is(with_broker: WithBroker, one: Path, two: Path) -> None:
    async def main(broker: LogBroker) -> None:
        old = broker.log()
        await moved(broker)
        log = broker.log()
        assert old.is_closed
        assert log.directory == str(two / "flights-0")
        assert all(segment.path.startswith(log.directory) for segment in log.segments)
        log.append_as_leader(records(b"three"), 0)
        await broker.written(log)
        assert [record.value for record in await broker.records(log)] == [b"one", b"two", b"three"]
        async with asyncio.timeout(60):  # the loop goes on meanwhile, and a busy machine's disk takes its time
            while marker(two / "flights-0") is not None:
                await asyncio.sleep(0.01)
        await broker.manager.delete_given_up_logs()
        assert names(one) == []

    async def again(broker: LogBroker) -> None:
        assert broker.log().directory == str(two / "flights-0")
        assert broker.log().log_end_offset == 3

    with_broker(main, again, directories=2, config=LogConfig(file_delete_delay_ms=0))


def test_a_log_whose_old_directory_fails_at_the_rename_goes_on_in_the_new_one(
    with_broker: WithBroker, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_rename(_files: RealFiles, old: str, new: str) -> None:
        if old == str(one / "flights-0"):
            raise OSError(errno.EIO, "broken", old)
        os.replace(old, new)

    monkeypatch.setattr(RealFiles, "rename", failing_rename)

    async def main(broker: LogBroker) -> None:
        await moved(broker)
        log = broker.log()
        log.append_as_leader(records(b"three"), 0)
        await broker.written(log)
        assert broker.manager.directories[0].is_offline
        assert [record.value for record in await broker.records(log)] == [b"one", b"two", b"three"]
        for _ in range(20):
            await asyncio.sleep(0)
        # The old log is put away by now, and its gauges had the same names.
        assert gauges(broker)["LogEndOffset"] == 3

    async def when_the_disk_is_back(broker: LogBroker) -> None:
        assert broker.log().log_end_offset == 3

    with_broker(main, directories=2)
    assert names(one) == names(two) == ["flights-0"]
    assert marker(two / "flights-0") == str(one)
    monkeypatch.undo()
    with_broker(when_the_disk_is_back, directories=2)


@pytest.mark.parametrize(
    ("writes", "failing"),
    [("loop", "fsync_directory"), ("offload", "fsync_directory"), ("offload", "rename")],
)
@pytest.mark.parametrize("is_back", [False, True])
def test_a_new_directory_that_fails_before_its_name_is_durable_takes_no_log_along(
    writes: str, failing: str, is_back: bool
) -> None:
    """Nothing that came after the swap counts; so the old log is whole, and the next start is to find it."""
    one, two = "/data/one", "/data/two"
    settings = LogSettings(directory_patience_ms=0, directory_writes=writes)

    async def moves(host: Host) -> None:
        async with log_broker(host, one, two, settings=settings, is_clean=False) as broker:
            await one_log(broker)
            current, manager = broker.log(), broker.manager
            assert current.log_directory.path == one
            future = manager.create_future_log(current, manager.directories[1])
            for batch in await broker.batches(current):
                future.append_as_follower(batch)
            await future.wait_written()
            await manager.prepare_replacement(FLIGHTS)
            machine.disk.fault_rules.append(FaultRule(frozenset({failing}), f"{two}*"))
            assert manager.replace_current(FLIGHTS) is future
            await asyncio.sleep(1)
            assert [each.path for each in manager.offline_directories] == [two]
            with pytest.raises(KafkaError) as caught:  # there would be two logs of one partition at the next start
                broker.log(is_new=True)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    async def starts_again(host: Host) -> None:
        machine.disk.fault_rules.clear()
        directories = (one, two) if is_back else (one,)
        async with log_broker(host, *directories, settings=settings, is_clean=False) as broker:
            assert [record.value for record in await broker.records(broker.log())] == [b"one", b"two"]

    with Simulation(1) as simulation:
        machine = simulation.machine("broker")
        simulation.run_on(machine, moves)
        machine.crash()
        simulation.run_on(machine, starts_again)


def test_a_log_that_was_deleted_meanwhile_is_not_kept_for_a_directory_that_fails() -> None:
    one, two = "/data/one", "/data/two"

    async def main(host: Host) -> None:
        async with log_broker(host, one, two, is_clean=False) as broker:
            await one_log(broker)
            machine.disk.slow_paths[two] = 1_000.0
            await moved(broker)
            deletion = asyncio.create_task(broker.manager.delete_log(FLIGHTS))
            await asyncio.sleep(0)
            machine.disk.fault_rules.append(FaultRule(frozenset({"fsync_directory"}), f"{two}*"))
            await asyncio.wait([deletion])
            await asyncio.sleep(60)
            assert isinstance(deletion.exception(), KafkaError)
            assert [each.path for each in broker.manager.offline_directories] == [two]
            assert not machine.disk.find(f"{one}/flights-0")

    with Simulation(1) as simulation:
        machine = simulation.machine("broker")
        simulation.run_on(machine, main, limit_seconds=500.0)


def test_where_a_deleted_log_had_moved_from_tells_of_it_no_more() -> None:
    """Else a topic that is made anew there would, after a crash, start where the deleted one did."""
    one, two = "/data/one", "/data/two"

    async def main(host: Host) -> None:
        async with log_broker(host, one, two, is_clean=False) as broker:
            await one_log(broker)
            log, former = broker.log(), broker.manager.directories[0]
            log.increase_high_watermark(2)
            log.delete_records_to(1)
            await log.flush()
            await former.write_log_start_offsets({FLIGHTS: 1})
            await former.write_recovery_points({FLIGHTS: 2})
            manager, (_, other) = broker.manager, broker.manager.directories
            future = manager.create_future_log(log, other)
            await future.truncate_fully_and_start_at(1)
            for batch in await broker.batches(log):
                future.append_as_follower(batch)
            await manager.prepare_replacement(FLIGHTS)
            machine.disk.slow_paths[one] = 1_000.0
            assert manager.replace_current(FLIGHTS) is future
            await manager.delete_log(FLIGHTS)
            assert FLIGHTS not in former.read_log_start_offsets()
            assert FLIGHTS not in former.read_recovery_points()

    with Simulation(1) as simulation:
        machine = simulation.machine("broker")
        simulation.run_on(machine, main, limit_seconds=500.0)


def gauges(broker: LogBroker) -> dict[str, float]:
    """What the gauges of logs say, by name and, for a copy on its way, by Kafka's tag."""
    found: dict[str, float] = {}
    for name, metric in broker.metrics:
        if name.type == "Log":
            gauge: Any = metric
            found[f"{name.name}{' is-future' if ('is-future', 'true') in name.tags else ''}"] = gauge.read()
    return found


@pytest.mark.usefixtures("one", "two")
def test_a_copy_on_its_way_has_gauges_of_its_own(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        manager = broker.manager
        current = broker.log()
        of_current = gauges(broker)
        assert of_current["LogEndOffset"] == 2
        future = manager.create_future_log(current, manager.directories[1])
        assert gauges(broker) == {
            **of_current,
            "LogStartOffset is-future": 0,
            "LogEndOffset is-future": 0,
            "NumLogSegments is-future": 1,
            "Size is-future": 0,
        }
        future.append_as_follower(next(iter(await broker.batches(current))))
        await future.wait_written()
        assert gauges(broker)["LogEndOffset is-future"] == future.log_end_offset > 0
        await manager.delete_future_log(FLIGHTS)
        assert gauges(broker) == of_current
        await moved(broker)
        broker.log().append_as_leader(records(b"three"), 0)
        await broker.written(broker.log())
        assert gauges(broker).keys() == of_current.keys()
        assert gauges(broker)["LogEndOffset"] == 3
        manager.create_future_log(broker.log(), manager.directories[0])

    async def again(broker: LogBroker) -> None:
        assert gauges(broker)["LogEndOffset is-future"] == 0
        broker.manager.fail_directory(broker.manager.directories[0], OSError(errno.EIO, "broken"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any("is-future" in name for name in gauges(broker))

    with_broker(main, again, directories=2)


def test_a_deleted_partition_takes_its_copy_along(with_broker: WithBroker, one: Path, two: Path) -> None:
    async def main(broker: LogBroker) -> None:
        broker.manager.create_future_log(broker.log(), broker.manager.directories[1])
        await broker.manager.delete_log(FLIGHTS)
        assert not broker.manager.future_logs
        assert not broker.manager.logs
        assert all(name.endswith("-delete") for name in names(one) + names(two))

    with_broker(main, directories=2)


def test_a_log_is_made_in_the_directory_that_was_asked_for(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        second = broker.manager.directories[1]
        broker.manager.prefer_directory(FLIGHTS, second)
        assert broker.log().log_directory is second

    with_broker(main, directories=2)


def test_a_log_that_moves_back_at_once_keeps_its_marker_until_both_names_are_durable(
    with_broker: WithBroker, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    unlink, fsync_directory = RealFiles.unlink, RealFiles.fsync_directory

    def noting_unlink(path: str) -> None:
        unlink(path)
        if path.endswith("replacement-of"):
            steps.append(f"unmarked {Path(path).parent.parent.name}")

    def noting_fsync(files: RealFiles, path: str) -> None:
        fsync_directory(files, path)
        if path in (str(one), str(two)):
            steps.append(f"synced {Path(path).name}")

    async def main(broker: LogBroker) -> None:
        monkeypatch.setattr(RealFiles, "unlink", staticmethod(noting_unlink))
        monkeypatch.setattr(RealFiles, "fsync_directory", noting_fsync)
        await moved(broker)
        steps.clear()
        await moved(broker)
        assert steps.index("synced logs-1") < steps.index("synced logs-0") < steps.index("unmarked logs-1")
        assert broker.log().directory == str(one / "flights-0")

    with_broker(main, directories=2)
