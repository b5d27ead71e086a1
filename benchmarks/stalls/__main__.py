"""A log directory whose disk stops answering for some seconds: who has to wait, of ours and of Apache Kafka 3.9.1.

    python -m benchmarks.stalls [--seconds N ...] [--kinds KIND ...] [--disk calls|device] [--producers N]

Three brokers with default time-outs; broker 1 is the controller and has two log directories, one of which does not
answer for so many seconds: every system call on it waits, or its device takes no write any more, which needs root and
lets what goes to the page cache wait only some time later (`tests.support.failing_disks`, `StalledDisk` and
`HungDisk`). Partitions with one replica are on
broker 1 alone, those with three on all. Meanwhile one client each, with one request in flight, which turns to whoever
leads after two seconds without an answer, does what a row says, and a number of producers write to the directory that
stalls. A row has the longest time that its client was without a success; the last rows have what became of the
session of broker 1, of the controller and of the replicas in sync. Mapped index files do not stall for Java.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.layout.controller import CONTROLLER_PATH
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import CreateTopicsRequest, FetchRequest, ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from benchmarks.brokers.servers import BARNABAS, KINDS
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.broker_process import BrokerProcess
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.failing_disks import FailingDisk, HungDisk, StalledDisk
from tests.support.raw_zookeeper import Operation, RawSession, read
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, controller_port, leader_port, metadata
from tests.support.zookeeper import ZooKeeperServer

BROKERS = (1, 2, 3)
ALONE, COPIED = "alone", "copied"
PARTITIONS = 8
START_SECONDS_MAX = 90.0
REQUEST_SECONDS = 2.0
PAUSE_SECONDS = 0.02
LOOK_SECONDS = 0.1
BEFORE_SECONDS = 3.0
AFTER_SECONDS = 15.0
DISKS: dict[str, Callable[[Path], FailingDisk]] = {"calls": StalledDisk, "device": HungDisk}
_PROPERTIES: dict[str, object] = {
    "offsets.topic.num.partitions": 1,
    "log.cleaner.enable": "false",
    "num.io.threads": 8,
    "zookeeper.session.timeout.ms": 18_000,
    "barnabas.log.dir.patience.ms": 1_000,
}
_CREATE_VERSION, _PRODUCE_VERSION, _FETCH_VERSION = 5, 8, 11


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="See who waits for a disk that stops answering.")
    parser.add_argument("--seconds", type=float, nargs="*", default=[10.0, 60.0])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--disk", choices=DISKS, default="calls")
    parser.add_argument("--producers", type=int, default=16, help="to the directory that stalls, acks=1")
    parser.add_argument("--properties", nargs="*", default=[], help="further ones of all brokers, as KEY=VALUE")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    found: dict[str, dict[str, str]] = {}
    properties = _PROPERTIES | dict(pair.split("=", 1) for pair in given.properties)
    for seconds, kind in itertools.product(given.seconds, given.kinds):
        with tempfile.TemporaryDirectory() as directory:
            found[f"{kind}, {seconds:.0f} s"] = measure(
                kind, Path(directory), DISKS[given.disk], seconds, given.producers, properties
            )
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps(found))
    return 0


def measure(
    kind: str,
    directory: Path,
    disk_of: Callable[[Path], FailingDisk],
    seconds: float,
    producers: int,
    properties: Mapping[str, object],
) -> dict[str, str]:
    """One cluster, one stall: what each row says."""
    disk = disk_of(directory / "stalls")
    setting = Setting(kind, directory, disk, properties)
    try:
        setting.start()
        works, stalls = directory / "works", disk.directory
        alone, alone_stalled = setting.partition_in(works, ALONE), setting.partition_in(stalls, ALONE)
        copied, copied_stalled = setting.partition_in(works, COPIED), setting.partition_in(stalls, COPIED)
        clients = [
            Client("produce acks=1, the other directory", lambda: setting.produce(ALONE, alone, 1)),
            Client("fetch, the other directory", lambda: setting.fetch(ALONE, alone)),
            Client("produce acks=all, the other directory", lambda: setting.produce(COPIED, copied, -1)),
            Client("produce acks=all, the stalled directory", lambda: setting.produce(COPIED, copied_stalled, -1)),
            Client("metadata of broker 1", lambda: metadata(setting.ports[1])),
            Client("metadata of broker 2", lambda: metadata(setting.ports[2])),
        ]
        others = [Client("", lambda: setting.produce(ALONE, alone_stalled, 1)) for _ in range(producers)]
        watcher = Watcher(setting)
        for each in (*clients, *others):
            wait_until(each.succeeds, each.what, START_SECONDS_MAX)
        for runner in (*clients, *others, watcher):
            runner.start()
        time.sleep(BEFORE_SECONDS)
        disk.fail()
        time.sleep(seconds)
        disk.repair()
        time.sleep(AFTER_SECONDS)
        for runner in (*clients, *others, watcher):
            runner.end()
        return {client.what: f"{client.longest_seconds:.1f} s" for client in clients} | watcher.found()
    finally:
        setting.stop()
        disk.close()


class Setting:
    """The cluster of one measurement."""

    def __init__(self, kind: str, directory: Path, disk: FailingDisk, properties: Mapping[str, object]) -> None:
        coordinator = EmbeddedCoordinator if kind == BARNABAS else ZooKeeperServer
        self._coordinator = coordinator(directory / "coordinator")
        log_directories = f"{directory / 'works'},{disk.directory}"
        self._brokers: dict[int, BrokerProcess | ApacheKafkaBroker] = {}
        for broker_id in BROKERS:
            overrides = {**properties, **({"log.dirs": log_directories} if broker_id == 1 else {})}
            environment = disk.environment if broker_id == 1 else None
            made = BrokerProcess if kind == BARNABAS else ApacheKafkaBroker
            self._brokers[broker_id] = made(
                directory / f"broker-{broker_id}",
                broker_id=broker_id,
                zookeeper_connect=self._coordinator.address,
                overrides=overrides,
                environment=environment,
            )
        self.ports = {broker_id: broker.port for broker_id, broker in self._brokers.items()}
        self.coordinator_port = self._coordinator.port
        builder = RecordBatchBuilder()
        builder.append(offset=0, timestamp_ms=int(time.time() * 1000), key=None, value=bytes(100))
        self._batch = bytes(builder.build())

    def start(self) -> None:
        self._coordinator.start()
        for broker in self._brokers.values():  # broker 1 becomes the controller
            broker.start()
        wait_until(lambda: len(metadata(self.ports[1]).brokers) == len(BROKERS), "all are known", START_SECONDS_MAX)
        for name, replicas in ((ALONE, [1]), (COPIED, [1, 2, 3])):
            assignment = [
                CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=replicas)
                for number in range(PARTITIONS)
            ]
            topic = CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=assignment
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
            (result,) = call(controller_port(self.ports[1]), ApiKey.CREATE_TOPICS, _CREATE_VERSION, request).topics
            if result.error_code:
                raise RuntimeError(f"topic {name} was not created: {result.error_code}")
        wait_until(lambda: self.in_sync() == len(BROKERS), "all are in sync", START_SECONDS_MAX)

    def stop(self) -> None:
        for broker in self._brokers.values():
            broker.kill()
        self._coordinator.kill()

    def partition_in(self, directory: Path, topic: str) -> int:
        """One whose log on broker 1 is there."""
        return min(int(path.name.rpartition("-")[2]) for path in directory.glob(f"{topic}-*"))

    def in_sync(self) -> int:
        """The least number of replicas in sync of the partitions with three, as broker 2 knows it."""
        (found,) = metadata(self.ports[2], [COPIED]).topics
        return min((len(each.isr_nodes) for each in found.partitions), default=0)

    def produce(self, topic: str, partition: int, acks: int) -> bool:
        data = ProduceRequest.PartitionProduceData(index=partition, records=self._batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=acks,
            timeout_ms=30_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        port = leader_port(self.ports[2], topic, partition)
        ((answer,),) = (
            each.partition_responses
            for each in call(port, ApiKey.PRODUCE, _PRODUCE_VERSION, request, REQUEST_SECONDS).responses
        )
        return not answer.error_code

    def fetch(self, topic: str, partition: int) -> bool:
        asked = FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1000)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1000,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[asked])],
        )
        port = leader_port(self.ports[2], topic, partition)
        answer = call(port, ApiKey.FETCH, _FETCH_VERSION, request, REQUEST_SECONDS)
        return not answer.error_code and not answer.responses[0].partitions[0].error_code


class Client:
    """A thread that does one thing again and again."""

    def __init__(self, what: str, act: Callable[[], object]) -> None:
        self.what = what
        self.longest_seconds = 0.0
        self._act = act
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def succeeds(self) -> bool:
        """Does it once."""
        try:
            return bool(self._act())
        except (OSError, IndexError):
            return False

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        succeeded = time.monotonic()
        while not self._ending.wait(PAUSE_SECONDS):
            success = self.succeeds()
            now = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - succeeded)
            if success:
                succeeded = now


class Watcher(Client):
    """Looks at what the cluster thinks of broker 1."""

    def __init__(self, setting: Setting) -> None:
        super().__init__("the cluster's view", self._look)
        self._setting = setting
        self._session = RawSession(setting.coordinator_port, timeout_ms=40_000)
        self._registrations: set[int] = set()
        self._is_gone = False
        self._controllers: set[int] = set()
        self._least_in_sync = len(BROKERS)

    def found(self) -> dict[str, str]:
        return {
            "session of broker 1": "expired" if self._is_gone or len(self._registrations) > 1 else "kept",
            "controller": "moved" if len(self._controllers) > 1 else "stayed",
            "least replicas in sync": str(self._least_in_sync),
        }

    def _look(self) -> bool:
        if not self._session.is_connected:
            self._session.connect()
        registered = self._session.call(read(Operation.EXISTS, broker_id_path(1)))
        if registered.error:
            self._is_gone = True
        else:
            self._registrations.add(registered.body.czxid)
        controller = self._session.call(read(Operation.EXISTS, CONTROLLER_PATH))
        if not controller.error:
            self._controllers.add(controller.body.czxid)
        self._least_in_sync = min(self._least_in_sync, self._setting.in_sync())
        self._ending.wait(LOOK_SECONDS)
        return True


def table(found: dict[str, dict[str, str]]) -> str:
    """The rows, with a column for each measurement."""
    names = list(next(iter(found.values())))
    lines = [f"| longest without success | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(each[name] for each in found.values())} |" for name in names]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
