"""Log directories that really fail under brokers with three of them each, while idempotent producers (acks=all) and a
group run: what was led from there is led elsewhere within a second, and nothing acknowledged is lost.

Every way to fail by default, and the same once more, with another role, in `make test-cluster`; `.ci/run` has two ways.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.coordination.layout.notifications import LOG_DIR_EVENTS_PATH
from tests.support.broker_process import BrokerCluster, BrokerProcess
from tests.support.by_night import by_night
from tests.support.failing_disks import BrokenDisk, FailingDisk, FullDisk, NotPermittedError, ReadOnlyDisk
from tests.support.raw_zookeeper import Operation, RawSession, read
from tests.support.waiting import wait_until, where_others_work
from tests.support.wire_calls import create_topic, leaders, metadata
from tests.support.workload import Workload

LONG = os.environ.get("BARNABAS_LONG_FAILURES") == "1"
READ_ONLY = "a minute, and no commit says that it has found what a broken disk has not"
OTHER_ROLE = "half a minute for each, and no commit says that one has found anything"
BROKERS = (1, 2, 3)
DIRECTORIES = 3
PARTITIONS = 18
TOPIC = "records"
PATIENCE_SECONDS = 60.0
# A quiet machine needs less than one; the rest is for one that is slow, and more where it is busy.
MOVED_SECONDS = 10.0
"""In which what was led from a failed directory has to be led elsewhere."""
OVERRIDES = {
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "replica.lag.time.max.ms": 3_000,
}
SEGMENT_BYTES = 1024 * 1024


class Setting:
    """Three brokers, the log directories of one of which are on a disk that is to fail: one of them, or all."""

    def __init__(self, directory: Path, broker_id: int, disk: FailingDisk, *, all_fail: bool) -> None:
        self.disk = disk
        self.broker_id = broker_id
        self.all_fail = all_fail
        self.cluster = BrokerCluster(directory, len(BROKERS), coordinator="embedded", overrides=OVERRIDES)
        own = directory / f"broker-{broker_id}"
        if all_fail:
            self.directories = [disk.directory / f"data-{number}" for number in range(DIRECTORIES)]
        else:
            self.directories = [disk.directory, *(own / f"data-{number}" for number in range(1, DIRECTORIES))]
        former = self.cluster.brokers[broker_id]
        self.cluster.brokers[broker_id] = BrokerProcess(
            own,
            broker_id,
            self.cluster.coordinator.address,
            overrides={**OVERRIDES, "log.dirs": ",".join(map(str, self.directories))},
            port=former.port,
            environment=disk.environment,
        )

    @property
    def failing(self) -> list[Path]:
        """The log directories that fail."""
        return self.directories if self.all_fail else self.directories[:1]

    @property
    def broker(self) -> BrokerProcess:
        """Whose disk fails."""
        return self.cluster.brokers[self.broker_id]

    @property
    def other_port(self) -> int:
        """Of a broker whose disk does not fail."""
        return next(broker.port for broker in self.cluster.brokers.values() if broker is not self.broker)

    def start(self) -> None:
        """Broker 1 is the controller."""
        self.cluster.coordinator.start()
        self.cluster.brokers[1].start()
        for broker in self.cluster.brokers.values():
            if broker.broker_id != 1:
                broker.start()
        self.wait_until(lambda: len(metadata(self.other_port).brokers) == len(BROKERS), "all brokers are known")
        create_topic(
            self.other_port,
            TOPIC,
            PARTITIONS,
            len(BROKERS),
            **{"min.insync.replicas": "2", "segment.bytes": str(SEGMENT_BYTES)},
        )
        self.wait_until(self.in_sync_everywhere, "all replicas are in sync")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, PATIENCE_SECONDS, self.cluster.log_tails)

    def in_sync_everywhere(self) -> bool:
        (found,) = metadata(self.other_port, [TOPIC]).topics
        return [len(partition.isr_nodes) for partition in found.partitions] == [len(BROKERS)] * PARTITIONS

    def partitions_in_failing_directories(self) -> set[int]:
        return {
            int(path.name.rpartition("-")[2]) for directory in self.failing for path in directory.glob(f"{TOPIC}-*")
        }

    def led_by_others(self, partitions: set[int]) -> bool:
        found = leaders(self.other_port, TOPIC)
        return len(found) == PARTITIONS and all(found[number] != self.broker_id for number in partitions)

    def not_in_sync_here(self) -> set[int]:
        """The partitions in whose ISR the broker is not."""
        (found,) = metadata(self.other_port, [TOPIC]).topics
        return {each.partition_index for each in found.partitions if self.broker_id not in each.isr_nodes}

    def announcements(self) -> tuple[str, ...]:
        session = RawSession(int(self.cluster.coordinator.address.rpartition(":")[2]))
        session.connect()
        try:
            names: tuple[str, ...] = session.call(read(Operation.GET_CHILDREN, LOG_DIR_EVENTS_PATH)).body
        finally:
            session.close()
        return names


@contextlib.contextmanager
def running(
    directory: Path, broker_id: int, kind: Callable[[Path], FailingDisk], *, all_fail: bool = False
) -> Iterator[tuple[Setting, Workload]]:
    """The cluster under load; the test is skipped where the machine does not permit what the disk needs."""
    try:
        disk = kind(directory / "disk")
    except NotPermittedError as error:
        pytest.skip(str(error))
    try:
        setting = Setting(directory, broker_id, disk, all_fail=all_fail)
        try:
            setting.start()
            workload = Workload(setting.cluster.bootstrap_servers, TOPIC, PARTITIONS)
            workload.start()
            try:
                progress(workload, 500)
                yield setting, workload
            finally:
                workload.abandon()
        finally:
            setting.cluster.stop()
    finally:
        disk.close()


def progress(workload: Workload, records: int) -> None:
    target = workload.acknowledged_count + records
    wait_until(
        lambda: workload.acknowledged_count >= target or workload.failures,
        f"{records} more acknowledged",
        PATIENCE_SECONDS,
    )
    assert not workload.failures, workload.failures[:3]


def fail_and_see_others_lead(setting: Setting, affected: set[int]) -> None:
    assert any(leader == setting.broker_id for leader in leaders(setting.other_port, TOPIC).values())
    setting.disk.fail()
    failed = time.monotonic()
    setting.wait_until(lambda: setting.led_by_others(affected), "others lead what was in the failed directory")
    took = time.monotonic() - failed
    assert took <= where_others_work(MOVED_SECONDS), setting.cluster.log_tails()
    assert "Telling the controller that" in setting.broker.log_path.read_text()
    setting.wait_until(lambda: not setting.announcements(), "the announcement is gone")
    print(f"led elsewhere after {took * 1000:.0f} ms")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "broker_id"),
    [
        *((BrokenDisk, 1), (FullDisk, 2)),
        pytest.param(ReadOnlyDisk, 2, marks=pytest.mark.night(READ_ONLY)),
        *(
            pytest.param(kind, role, marks=pytest.mark.night(OTHER_ROLE))
            for kind, role in ((BrokenDisk, 2), (FullDisk, 1))
            if LONG
        ),
    ],
)
def test_what_was_led_from_a_failed_directory_is_led_elsewhere_within_a_second(
    tmp_path: Path, kind: Callable[[Path], FailingDisk], broker_id: int
) -> None:
    with running(tmp_path, broker_id, kind) as (setting, workload):
        controller = metadata(setting.other_port).controller_id
        assert controller == 1
        affected = setting.partitions_in_failing_directories()
        before = leaders(setting.other_port, TOPIC)
        led = {number for number in affected if before[number] == broker_id}
        assert led, "nothing was led from the directory, so the test would show nothing"
        fail_and_see_others_lead(setting, affected)
        setting.wait_until(lambda: setting.not_in_sync_here() == affected, "its replicas there are in no ISR")
        after = leaders(setting.other_port, TOPIC)
        assert {number: after[number] for number in after if number not in led} == {
            number: before[number] for number in before if number not in led
        }, "who led from a directory that works leads still"
        assert metadata(setting.other_port).controller_id == controller
        progress(workload, 500)
        setting.broker.kill()
        setting.broker.start()  # with locks, checkpoints and meta.properties that cannot be read or written
        setting.wait_until(lambda: setting.not_in_sync_here() == affected, "the other directories are in sync again")
        progress(workload, 500)
        assert setting.broker.stop() == 0
        setting.disk.repair()
        setting.broker.start()
        setting.wait_until(setting.in_sync_everywhere, "the repaired directory is in sync")
        setting.cluster.check_that_none_exited_by_itself()
        workload.finish()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker_id", [1, *by_night(OTHER_ROLE, 2)] if LONG else [1])
def test_a_broker_all_of_whose_directories_fail_ends_and_the_others_lead(tmp_path: Path, broker_id: int) -> None:
    with running(tmp_path, broker_id, BrokenDisk, all_fail=True) as (setting, workload):
        affected = set(range(PARTITIONS))
        assert setting.partitions_in_failing_directories() == affected
        fail_and_see_others_lead(setting, affected)
        wait_until(lambda: not setting.broker.process.is_running, "the broker has ended", PATIENCE_SECONDS)
        assert setting.broker.process.exit_status == 1
        assert "Every log directory is offline" in setting.broker.process.log_tail(1)
        progress(workload, 500)
        setting.disk.repair()
        setting.broker.start()
        setting.wait_until(setting.in_sync_everywhere, "the broker is in sync again")
        workload.finish()
