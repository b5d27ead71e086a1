"""All logs of a broker: directories, start and stop, deletion, failures of a disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_host import real_host
from barnabas.log.directories.directory_files import LogDirectoryLockedError, read_partition_metadata
from barnabas.log.manager import log_manager, log_tasks
from barnabas.log.manager.log_manager import NoLogDirectoryError
from barnabas.log.manager.start_up import DuplicateLogError
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.support.writes import WRITES
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, log_settings, records

WithBroker = Callable[..., Any]
TOPIC_ID = Uuid(bytes(range(16)))


async def fill(broker: LogBroker, number: int = 0, count: int = 3) -> None:
    log = broker.log(FLIGHTS._replace(partition=number))
    for _ in range(count):
        log.append_as_leader(records(b"value"), 0)
    await broker.written(log)


def test_spreads_logs_over_the_directories_and_finds_them_again(with_broker: WithBroker) -> None:
    async def write(broker: LogBroker) -> None:
        for number in range(6):
            await fill(broker, number)
        counts = [
            sum(log.log_directory is directory for log in broker.manager.logs.values())
            for directory in broker.manager.directories
        ]
        assert counts == [3, 3]

    async def read(broker: LogBroker) -> None:
        assert sorted(tp.partition for tp in broker.manager.logs) == list(range(6))
        assert all(log.log_end_offset == 3 for log in broker.manager.logs.values())
        assert all(directory.was_clean for directory in broker.manager.directories)

    with_broker(write, read, directories=2)


def test_takes_the_sign_of_a_clean_stop_first_and_gives_its_epoch(with_broker: WithBroker, tmp_path: Path) -> None:
    async def stop_with_epoch(broker: LogBroker) -> None:
        await broker.manager.close(77)

    async def started(broker: LogBroker) -> None:
        assert broker.manager.previous_broker_epoch == 77
        assert not (tmp_path / "logs-0" / ".kafka_cleanshutdown").exists()

    async def again(broker: LogBroker) -> None:
        assert broker.manager.previous_broker_epoch == -1
        assert not broker.manager.directories[0].was_clean

    with_broker(stop_with_epoch, started, is_clean=False)
    with_broker(again, is_clean=False)


def test_a_directory_belongs_to_one_broker(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        other = log_broker(broker.host, broker.manager.directories[0].path)
        with pytest.raises(LogDirectoryLockedError, match="in use"):
            await other.__aenter__()

    with_broker(main)


def test_a_partition_in_two_directories_is_refused(with_broker: WithBroker, tmp_path: Path) -> None:
    async def nothing(_: LogBroker) -> None:
        raise RuntimeError("not reached")

    for number in range(2):
        (tmp_path / f"logs-{number}" / "flights-0").mkdir(parents=True)
    with pytest.raises(DuplicateLogError, match="remove one of them"):
        with_broker(nothing, directories=2)


def test_a_directory_that_cannot_be_made_is_offline_and_the_others_go_on(
    with_broker: WithBroker, tmp_path: Path
) -> None:
    async def main(broker: LogBroker) -> None:
        manager = broker.manager
        assert [directory.path for directory in manager.offline_directories] == [str(tmp_path / "logs-0")]
        await fill(broker)
        assert manager.logs[FLIGHTS].log_directory is manager.live_directories[0]
        other = FLIGHTS._replace(partition=9)
        with pytest.raises(KafkaError) as caught:
            broker.log(other, is_new=False)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert [directory.path for directory in manager.offline_directories] == [str(tmp_path / "logs-0")]

    async def unreached(_: LogBroker) -> None:
        raise RuntimeError("not reached")

    (tmp_path / "logs-0").write_text("a file")
    with_broker(main, directories=2)
    with pytest.raises(NoLogDirectoryError, match="no log directory can be used"):
        with_broker(unreached)


def test_a_failed_write_takes_the_directory_offline_with_its_logs(with_broker: WithBroker) -> None:
    class FailingFiles(RealFiles):
        """Writes nothing into the first directory any more."""

        __slots__ = ()
        doomed: set[int] = set()  # noqa: RUF012

        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            descriptor = super().open(path, flags, mode)
            self.note(descriptor, path)
            return descriptor

        def open_as(self, descriptor: int, path: str, flags: int) -> None:
            super().open_as(descriptor, path, flags)
            self.note(descriptor, path)

        def note(self, descriptor: int, path: str) -> None:
            if "inner/logs-0" in path:
                self.doomed.add(descriptor)
            else:
                self.doomed.discard(descriptor)  # the number of a file that was closed

        def pwrite(self, descriptor: int, data: Any, offset: int, /) -> int:
            if descriptor in self.doomed:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return RealFiles.pwrite(descriptor, data, offset)

    async def main(tmp_path: Path) -> None:
        async with real_host("broker-1", asyncio.get_running_loop()) as host:
            failing = replace(host, files=FailingFiles())
            FailingFiles.doomed.clear()
            paths = [str(tmp_path / f"logs-{number}") for number in range(2)]
            async with log_broker(failing, *paths) as broker:
                for number in range(4):
                    log = broker.log(FLIGHTS._replace(partition=number))
                    log.append_as_leader(records(b"value"), 0)
                    if log.log_directory.path == paths[0]:
                        with pytest.raises(KafkaError) as caught:
                            await broker.written(log)
                        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
                        assert log.is_offline
                    else:
                        await broker.written(log)
                assert broker.offline == [paths[0]]
                assert {log.log_directory.path for log in broker.manager.logs.values()} == {paths[1]}
                assert len(broker.manager.logs) == 3

    async def outer(broker: LogBroker) -> None:
        await main(Path(broker.manager.directories[0].path) / "inner")

    with_broker(outer)


@pytest.fixture
def put_away_two_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "_PUT_AWAY_PER_TURN", 2)


def gauge_count(broker: LogBroker) -> int:
    return sum(name.type == "Log" for name, _ in broker.metrics)


@pytest.mark.usefixtures("put_away_two_per_turn")
def test_a_directory_with_many_logs_fails_at_once_and_they_are_put_away_in_later_turns(
    with_broker: WithBroker,
) -> None:
    async def main(broker: LogBroker) -> None:
        for number in range(18):
            await fill(broker, number, 1)
        first, second = broker.manager.directories
        gone = [log for log in broker.manager.logs.values() if log.log_directory is first]
        broker.manager.fail_directory(first, OSError(errno.EIO, "broken"))
        assert len(gone) == len(broker.manager.logs) == 9
        assert all(log.log_directory is second for log in broker.manager.logs.values())
        for log in gone:
            assert log.is_offline
            with pytest.raises(KafkaError) as caught:
                log.append_as_leader(records(b"value"), 0)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        left = []
        while gauge_count(broker) > 4 * 9:
            left.append((gauge_count(broker) - 4 * 9) // 4)
            assert sum(log.segments.active._descriptor is not None for log in gone) == left[-1]
            await asyncio.sleep(0)
        assert left == [9, 7, 5, 3, 1]
        assert broker.offline == [first.path]

    with_broker(main, directories=2)


@pytest.mark.usefixtures("put_away_two_per_turn")
def test_a_partition_that_comes_back_while_its_old_log_is_put_away_keeps_its_gauges(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        for number in range(12):
            await fill(broker, number, 1)
        first, second, third = broker.manager.directories
        gone = {log.partition: log for log in broker.manager.logs.values() if log.log_directory is first}
        broker.manager.fail_directory(first, OSError(errno.EIO, "broken"))
        for partition, old in gone.items():
            log = broker.log(partition)
            assert log is not old
            assert old.segments.active._descriptor is None
        back = broker.log(next(iter(gone)))
        name = f"kafka.log:type=Log,name=LogEndOffset,topic=flights,partition={back.partition.partition}"
        back.append_as_leader(records(b"one"), 0)
        back.append_as_leader(records(b"two"), 0)
        await broker.written(back)
        for _ in range(20):
            await asyncio.sleep(0)
        gauge: Any = {str(each): metric for each, metric in broker.metrics}[name]
        assert gauge.read() == 2
        assert gauge_count(broker) == 4 * 12
        # Two more fail, one while the logs of the other are put away.
        broker.manager.fail_directory(second, OSError(errno.EIO, "broken"))
        again = {log.partition for log in broker.manager.logs.values()}
        await asyncio.sleep(0)
        broker.manager.fail_directory(third, OSError(errno.EIO, "broken"))
        assert again
        assert not broker.manager.logs
        while gauge_count(broker):
            await asyncio.sleep(0)

    with_broker(main, directories=3)


@pytest.mark.usefixtures("put_away_two_per_turn")
def test_a_broker_that_stops_puts_away_all_logs_of_a_failed_directory(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        for number in range(9):
            await fill(broker, number, 1)
        gone = list(broker.manager.logs.values())
        broker.manager.fail_directory(broker.manager.directories[0], OSError(errno.EIO, "broken"))
        await broker.manager.close()
        assert gauge_count(broker) == 0
        assert all(log.segments.active._descriptor is None for log in gone)

    with_broker(main)


def test_a_deleted_log_is_gone_at_once_and_its_files_later(with_broker: WithBroker, tmp_path: Path) -> None:
    async def main(broker: LogBroker) -> None:
        await fill(broker)
        old = broker.manager.logs[FLIGHTS]
        old.append_as_leader(records(b"pending"), 0)
        errors: list[KafkaError | None] = []
        broker.manager.write_queue.when_written(old, errors.append)
        await broker.manager.delete_log(FLIGHTS)
        assert [error.code for error in errors if error] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert broker.manager.get_log(FLIGHTS) is None
        await fill(broker, count=1)
        assert broker.manager.logs[FLIGHTS].log_end_offset == 1
        names = sorted(path.name for path in (tmp_path / "logs-0").iterdir() if path.is_dir())
        assert names[0] == "flights-0"
        assert names[1].startswith("flights-0.")
        assert names[1].endswith("-delete")
        await broker.manager.delete_given_up_logs()
        assert [path.name for path in (tmp_path / "logs-0").iterdir() if path.is_dir()] == ["flights-0"]

    async def after(broker: LogBroker) -> None:
        assert broker.manager.logs[FLIGHTS].log_end_offset == 1

    with_broker(main, after, config=LogConfig(file_delete_delay_ms=0))


def test_deleting_very_many_logs_gives_way(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "_DELETED_PER_TURN", 2)

    async def main(broker: LogBroker) -> None:
        manager = broker.manager
        partitions = [FLIGHTS._replace(partition=number) for number in range(9)]
        for partition in partitions:
            broker.log(partition)
        deletion = asyncio.create_task(manager.delete_logs(partitions))
        await asyncio.sleep(0)
        left = [len(manager.logs)]
        # Another deletes one meanwhile, and it comes back: that is not what was to be deleted.
        await manager.delete_log(partitions[-1])
        again = broker.log(partitions[-1])
        await deletion
        assert left == [7]
        assert dict(manager.logs) == {partitions[-1]: again}
        assert not again.is_closed

        for partition in partitions:
            broker.log(partition)
        deletion = asyncio.create_task(manager.delete_logs(partitions))
        left = []
        while manager.logs:
            await asyncio.sleep(0)
            left.append(len(manager.logs))
        assert left == [7, 5, 3, 1, 0]
        await deletion

    with_broker(main)


@pytest.mark.parametrize("fails_between", [True, False], ids=["between two pieces", "at a rename"])
def test_a_directory_that_fails_while_logs_are_deleted_keeps_no_log_of_another(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails_between: bool
) -> None:
    monkeypatch.setattr(log_manager, "_DELETED_PER_TURN", 2)
    synced: list[str] = []
    fsync_directory = RealFiles.fsync_directory

    def noting_fsync(files: RealFiles, path: str) -> None:
        synced.append(path)
        fsync_directory(files, path)

    def failing_rename(_files: RealFiles, old: str, new: str) -> None:
        if not fails_between and "logs-0" in old and new.endswith("-delete"):
            raise OSError(errno.EIO, "broken", old)
        os.rename(old, new)

    monkeypatch.setattr(RealFiles, "fsync_directory", noting_fsync)
    monkeypatch.setattr(RealFiles, "rename", failing_rename)

    async def main(broker: LogBroker) -> None:
        manager = broker.manager
        partitions = [FLIGHTS._replace(partition=number) for number in range(8)]
        logs = [broker.log(partition) for partition in partitions]
        deletion = asyncio.create_task(manager.delete_logs(partitions))
        await asyncio.sleep(0)
        synced.clear()
        if fails_between:
            manager.directories[0].fail(OSError(errno.EIO, "broken"))
        with pytest.raises(KafkaError) as caught:
            await deletion
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not manager.logs
        assert all(log.is_closed for log in logs)
        assert [directory.path for directory in manager.offline_directories] == [str(tmp_path / "logs-0")]
        if fails_between or WRITES == "loop":  # by a queue, a log is deleted before its rename can fail
            assert [log.is_offline for log in logs].count(True) == (3 if fails_between else 4)
        assert str(tmp_path / "logs-1") in synced
        while gauge_count(broker):
            await asyncio.sleep(0)

    with_broker(main, directories=2)


def test_a_deletion_goes_on_after_a_restart(with_broker: WithBroker, tmp_path: Path) -> None:
    async def main(broker: LogBroker) -> None:
        await fill(broker)
        await broker.manager.delete_log(FLIGHTS)

    async def after(broker: LogBroker) -> None:
        assert not broker.manager.logs
        await broker.manager.delete_given_up_logs()
        assert not [path for path in (tmp_path / "logs-0").iterdir() if path.is_dir()]

    with_broker(main, after, settings=log_settings(segment_delete_delay_ms=0), is_clean=False)


def test_segments_that_were_given_up_are_removed_later(with_broker: WithBroker, tmp_path: Path) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        for _ in range(20):
            log.append_as_leader(records(b"x" * 50, timestamp_ms=1), 0)
        await broker.written(log)
        log.increase_high_watermark(20)
        await broker.manager.delete_old_segments()
        await log.log_directory.settle()  # by a queue, they get their names later
        assert [path.name for path in (tmp_path / "logs-0").glob("*/*.log")] == [f"{20:020d}.log"]
        while list((tmp_path / "logs-0").glob("*/*.deleted")):
            await asyncio.sleep(0.01)

    with_broker(main, config=LogConfig(segment_bytes=500, retention_ms=1, file_delete_delay_ms=1))


def test_the_topic_id_is_durable_before_the_first_acknowledgement(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log(topic_id=TOPIC_ID)
        assert read_partition_metadata(RealFiles(), log.directory) is None
        log.append_as_leader(records(b"value"), 0)
        await broker.written(log)
        assert read_partition_metadata(RealFiles(), log.directory) == TOPIC_ID
        with pytest.raises(ValueError, match="belongs to topic id"):
            log.assign_topic_id(Uuid(bytes(16)[:15] + b"!"))

    async def after(broker: LogBroker) -> None:
        assert broker.manager.logs[FLIGHTS].topic_id == TOPIC_ID

    with_broker(main, after)


def test_the_start_of_a_log_survives_a_crash_once_it_is_checkpointed(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        await fill(broker)
        log = broker.manager.logs[FLIGHTS]
        log.increase_high_watermark(3)
        log.delete_records_to(2)
        await broker.manager.checkpoint_log_start_offsets()

    async def after(broker: LogBroker) -> None:
        assert broker.manager.logs[FLIGHTS].log_start_offset == 2

    with_broker(main, after, is_clean=False)


def test_new_configs_act_at_once(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        await fill(broker)
        broker.manager.reconfigure("flights", LogConfig(segment_bytes=100))
        await fill(broker, count=2)
        assert broker.manager.logs[FLIGHTS].segment_count == 3
        broker.manager.reconfigure("others", LogConfig())
        assert broker.manager.logs[FLIGHTS].config.segment_bytes == 100

    with_broker(main)


@pytest.mark.parametrize("task", ["flush_dirty_logs", "delete_old_segments", "remove_expired_producers"])
def test_a_task_over_very_many_logs_gives_way(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """However little there is to do for each."""
    monkeypatch.setattr(log_tasks, "LOOKED_AT_PER_TURN", 2)

    async def main(broker: LogBroker) -> None:
        for number in range(9):
            broker.log(FLIGHTS._replace(partition=number))
        run = asyncio.create_task(getattr(broker.manager._tasks, task)())
        turns = 0
        while not run.done():
            await asyncio.sleep(0)
            turns += 1
        await run
        assert turns > 4

    with_broker(main)


def test_tasks_have_the_names_and_intervals_of_kafka(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        minute_ms = 60_000
        assert {name: task.period_ms for name, task in broker.scheduler.tasks.items()} == {
            "kafka-log-retention": 5 * minute_ms,
            "kafka-log-flusher": 365 * 24 * 60 * minute_ms,  # never, by default
            "kafka-recovery-point-checkpoint": minute_ms,
            "kafka-log-start-offset-checkpoint": minute_ms,
            "kafka-delete-logs": minute_ms,
            "PeriodicProducerExpirationCheck": 10 * minute_ms,
        }

    with_broker(main)


def test_gauges_come_and_go_with_the_logs(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        await fill(broker)
        found = {str(name): metric for name, metric in broker.metrics}
        gauge: Any = found["kafka.log:type=Log,name=LogEndOffset,topic=flights,partition=0"]
        assert gauge.read() == 3
        before = len(broker.metrics)
        await broker.manager.delete_log(FLIGHTS)
        assert len(broker.metrics) == before - 4

    with_broker(main)


def test_a_topic_made_anew_starts_where_it_starts_and_not_where_the_deleted_one_did(with_broker: WithBroker) -> None:
    """After a crash, too: the directory's checkpoints are told of the deletion, as Kafka's."""

    async def main(broker: LogBroker) -> None:
        await fill(broker)
        log = broker.manager.logs[FLIGHTS]
        log.increase_high_watermark(3)
        log.delete_records_to(2)
        await log.flush()
        await broker.manager.checkpoint_log_start_offsets()
        await broker.manager.checkpoint_recovery_points()
        await broker.manager.delete_log(FLIGHTS)
        await fill(broker)

    async def after(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)

    with_broker(main, after, is_clean=False)
