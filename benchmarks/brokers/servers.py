"""Clusters to be measured: Apache Kafka 3.9.1 with a ZooKeeper, and ours with the embedded coordinator.

Both are told the same in `server.properties`. Java gets the flags of Kafka's own start scripts.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.ports import free_port
from tests.support.processes import ServerProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import brokers_known_at
from tests.support.zookeeper import ZooKeeperServer

BARNABAS = "Barnabas"
KAFKA = "Apache Kafka"
KINDS = (BARNABAS, KAFKA)

KAFKA_JAVA_OPTIONS = (
    *(
        "-Xmx1G",
        "-Xms1G",
        "-server",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
    ),
    *("-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15"),
)
ZOOKEEPER_JAVA_OPTIONS = ("-Xmx512M", "-Xms512M", *KAFKA_JAVA_OPTIONS[2:])
START_SECONDS_MAX = 60.0
PROGRAM = "barnabas.cli"
SWITCHABLE = "benchmarks.brokers.switchable"
"""In its place, for brokers whose authorizer is taken out and put back while they run."""
_OF_ALL_THREADS = 2
"""Of a clock's number (CPUCLOCK_SCHED): what all threads of that process have had of processors."""
_PROPERTIES = {
    "num.network.threads": 3,
    "num.io.threads": 8,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.enable": "false",
    "message.max.bytes": 2_000_000,
    "replica.fetch.max.bytes": 2_000_000,
    "zookeeper.session.timeout.ms": 18_000,
}


class Broker(Protocol):
    """A broker process, of whichever kind."""

    port: int
    process: ServerProcess


class BarnabasBroker:
    """One `barnabas broker`."""

    def __init__(
        self,
        directory: Path,
        zookeeper_connect: str,
        broker_id: int,
        overrides: dict[str, object],
        port: int,
        program: str = PROGRAM,
    ) -> None:
        self.port = port
        directory.mkdir(parents=True, exist_ok=True)
        entries = {
            "broker.id": broker_id,
            "zookeeper.connect": zookeeper_connect,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": directory / "logs",
            **overrides,
        }
        properties = directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in entries.items()))
        command: list[str | Path] = [sys.executable, "-m", program, "broker", properties]
        # A shell that keeps Python from storing compiled modules would have every start compile them all.
        environment = {"PYTHONDONTWRITEBYTECODE": ""}
        self.process = ServerProcess(f"barnabas-{broker_id}", command, directory / "server.log", environment)


class Cluster:
    """So many brokers of one kind and what they coordinate by; `start` and `stop`, once each."""

    def __init__(
        self,
        kind: str,
        directory: Path,
        broker_count: int,
        *,
        with_zookeeper: bool = False,
        properties: Mapping[str, object] = MappingProxyType({}),
        secured_ports: Mapping[int, int] = MappingProxyType({}),
        program: str = PROGRAM,
    ) -> None:
        """`with_zookeeper` has ours coordinate by ZooKeeper too; `properties` go before the usual ones; brokers in
        `secured_ports` listen there for TLS as well, for which `properties` have the key. Brokers of ours are run by
        `program`.
        """
        self._program = program
        self._secured_ports = secured_ports
        self._properties = properties
        self.kind = kind
        self.broker_count = broker_count
        self._directory = directory
        self._coordinator: EmbeddedCoordinator | ZooKeeperServer
        if kind == BARNABAS and not with_zookeeper:
            self._coordinator = EmbeddedCoordinator(directory / "coordinator")
        else:
            self._coordinator = ZooKeeperServer(directory / "zookeeper", java_options=ZOOKEEPER_JAVA_OPTIONS)
        self.brokers: list[Broker] = [self._broker(broker_id) for broker_id in range(broker_count)]

    def _broker(self, broker_id: int) -> Broker:
        directory = self._directory / f"broker-{broker_id}"
        overrides: dict[str, object] = {
            **_PROPERTIES,
            "offsets.topic.replication.factor": min(3, self.broker_count),
            "default.replication.factor": min(3, self.broker_count),
            **self._properties,
        }
        address, port = self._coordinator.address, free_port()
        if broker_id in self._secured_ports:
            secured = f"SSL://127.0.0.1:{self._secured_ports[broker_id]}"
            overrides["listeners"] = f"PLAINTEXT://127.0.0.1:{port},{secured}"
        if self.kind == BARNABAS:
            return BarnabasBroker(directory, address, broker_id, overrides, port, self._program)
        return ApacheKafkaBroker(
            directory, address, broker_id, overrides=overrides, java_options=KAFKA_JAVA_OPTIONS, port=port
        )

    @property
    def coordinator_address(self) -> str:
        return self._coordinator.address

    def start_coordinator(self) -> None:
        self._coordinator.start()

    def start(self) -> None:
        """Starts everything and waits until every broker knows all."""
        self.start_coordinator()
        for broker in self.brokers:
            broker.process.start()
        self.wait_until_complete()

    def wait_until_complete(self) -> None:
        for broker in self.brokers:
            wait_until(
                functools.partial(self._is_complete_at, broker),
                f"{broker.process.name} knows {self.broker_count} brokers",
                START_SECONDS_MAX,
                broker.process.log_tail,
            )

    def _is_complete_at(self, broker: Broker) -> bool:
        if not broker.process.is_running:
            raise RuntimeError(f"{broker.process.name} ended\n{broker.process.log_tail()}")
        return len(brokers_known_at(broker.port)) == self.broker_count

    def cpu_seconds(self) -> float:
        """User and system time of all brokers so far."""
        return sum(cpu_seconds(broker.process.process_id) for broker in self.brokers)

    def stop(self) -> None:
        """Kills everything."""
        for broker in self.brokers:
            broker.process.kill()
        self._coordinator.kill()


@contextlib.contextmanager
def cluster(
    kind: str,
    directory: Path,
    broker_count: int,
    *,
    with_zookeeper: bool = False,
    properties: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[Cluster]:
    """A started cluster, killed at the end; `properties` go before the usual ones."""
    made = Cluster(kind, directory, broker_count, with_zookeeper=with_zookeeper, properties=properties)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def cpu_seconds(process_id: int) -> float:
    """User and system time of a process so far (Linux), to the nanosecond, where `/proc` counts in steps of 10 ms."""
    return time.clock_gettime(~process_id << 3 | _OF_ALL_THREADS)
