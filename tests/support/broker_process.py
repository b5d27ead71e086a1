"""Brokers as processes of their own, started by their command line as a user would, on a coordinator of either kind."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.ports import free_port
from tests.support.processes import ServerProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import metadata
from tests.support.zookeeper import ZooKeeperEnsemble

READY_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 60.0
# Of either coordinator: as in tests/support/zookeeper.py. Sessions may be as short as two ticks.
ZOOKEEPER_TICK_MS = 500
_SOURCE_DIRECTORY = Path(__file__).resolve().parents[2] / "src"
_COMMAND = (sys.executable, "-m", "barnabas.cli", "broker")
_DEFAULTS: Mapping[str, object] = {
    "zookeeper.session.timeout.ms": 6_000,
    "group.initial.rebalance.delay.ms": 0,
    "controlled.shutdown.retry.backoff.ms": 200,
    # Disks of machines that run tests may take seconds to sync.
    "barnabas.log.dir.patience.ms": 60_000,
}


class Coordinator(Protocol):
    """What a cluster needs of its coordinator."""

    @property
    def address(self) -> str:
        """The connection string."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether every process of it runs."""
        ...

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None:
        """SIGKILL to a process that leads; `start` brings it back."""
        ...

    def log_tail(self) -> str: ...


class EmbeddedOfBrokers:
    """The embedded coordinator, for brokers."""

    def __init__(self, directory: Path) -> None:
        self._server = EmbeddedCoordinator(directory, options=("--tick-time", str(ZOOKEEPER_TICK_MS)))
        self.address = self._server.address
        self.process = self._server.process

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    def log_tail(self) -> str:
        return self._server.process.log_tail()


class _Ensemble:
    """Three servers of Apache ZooKeeper; the one that leads is the one to be killed."""

    def __init__(self, directory: Path) -> None:
        self._ensemble = ZooKeeperEnsemble(directory)
        self.address = self._ensemble.addresses
        self._started = False

    @property
    def is_running(self) -> bool:
        return all(server.process.is_running for server in self._ensemble.servers)

    def start(self) -> None:
        if not self._started:
            self._ensemble.start()
            self._started = True
            return
        for server in self._ensemble.servers:
            if not server.process.is_running:
                server.start(wait=False)
        self._ensemble.leader()

    def stop(self) -> None:
        self._ensemble.stop()

    def kill(self) -> None:
        self._ensemble.leader().kill()

    def log_tail(self) -> str:
        return self._ensemble.log_tails()


class BrokerProcess:
    """One `barnabas broker`. Its data stay in `directory`, and its port is the same, from start to start."""

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        zookeeper_connect: str,
        *,
        overrides: Mapping[str, object] | None = None,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`overrides` are further lines of its `server.properties`, `environment` further variables."""
        self.directory = directory
        self.broker_id = broker_id
        self.port = free_port() if port is None else port
        directory.mkdir(parents=True, exist_ok=True)
        self.log_path = directory / "logs" / "server.log"
        properties = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "zookeeper.connect": zookeeper_connect,
            "log.dirs": directory / "data",
            "barnabas.logs.directory": directory / "logs",
            **_DEFAULTS,
            **(overrides or {}),
        }
        file = directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self.process = ServerProcess(
            f"broker-{broker_id}",
            [*_COMMAND, file],
            directory / "output.log",
            environment={"PYTHONPATH": str(_SOURCE_DIRECTORY), **(environment or {})},
            own_log_paths=[self.log_path],
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> None:
        """Starts it, and unless `wait` is False waits until it serves."""
        self.process.start()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        """Returns when it knows itself and a controller that is alive: clients can use it."""
        wait_until(self._serves, f"broker {self.broker_id} serves", timeout_seconds, self.log_tail)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        return self.process.stop(STOP_TIMEOUT_SECONDS)

    def kill(self) -> None:
        """SIGKILL; `start` brings it back with what it had written."""
        self.process.kill()

    def suspend(self) -> None:
        """SIGSTOP."""
        self.process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    def log_tail(self, lines: int = 40) -> str:
        """The ends of what it wrote to its log and to its standard error."""
        text = self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""
        tail = "\n".join(text.splitlines()[-lines:])
        return f"--- broker {self.broker_id}: end of {self.log_path}\n{tail}\n{self.process.log_tail(lines)}"

    def _serves(self) -> bool:
        if not self.process.is_running:
            raise RuntimeError(f"broker {self.broker_id} ended with {self.process.exit_status}\n{self.log_tail()}")
        answer = metadata(self.port)
        known = {broker.node_id for broker in answer.brokers}
        return {self.broker_id, answer.controller_id} <= known


class Brokers:
    """Several brokers on one coordinator, which `start` and `stop` together."""

    coordinator: Coordinator
    brokers: dict[int, BrokerProcess]

    def start(self) -> None:
        """Returns when every broker knows all the others."""
        self.coordinator.start()
        for broker in self.brokers.values():
            broker.start(wait=False)
        for broker in self.brokers.values():
            broker.wait_until_ready()
            wait_until(
                lambda: len(metadata(broker.port).brokers) == len(self.brokers),  # noqa: B023 - called in this turn
                f"broker {broker.broker_id} knows all brokers",
                READY_TIMEOUT_SECONDS,
                self.log_tails,
            )

    def stop(self) -> None:
        """Ends everything, the coordinator last."""
        for broker in self.brokers.values():
            broker.kill()
        self.coordinator.stop()

    def log_tails(self) -> str:
        """What all of them wrote last."""
        return "\n".join([self.coordinator.log_tail(), *(broker.log_tail() for broker in self.brokers.values())])


class BrokerCluster(Brokers):
    """Brokers 1 to `count` on one coordinator. `start` and `stop` all of it; each can be hurt by itself."""

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        coordinator: str,
        overrides: Mapping[str, object] | None = None,
        racks: Mapping[int, str] | None = None,
        log_directories: Sequence[str] = ("data",),
    ) -> None:
        """`coordinator` is "embedded", or "zookeeper" for an ensemble of three Apache ZooKeeper servers; `racks` are
        those of brokers that have one; `log_directories` are names below the directory of each broker."""
        kinds: Mapping[str, Callable[[Path], Coordinator]] = {"embedded": EmbeddedOfBrokers, "zookeeper": _Ensemble}
        self.coordinator = kinds[coordinator](directory / "coordinator")
        self.session_timeout_ms = int(str({**_DEFAULTS, **(overrides or {})}["zookeeper.session.timeout.ms"]))
        self.expiry_granularity = (
            1.0 if coordinator == "embedded" else 1.0 + ZOOKEEPER_TICK_MS / self.session_timeout_ms
        )
        """How much longer than its time-out a session may live, as a factor: ZooKeeper looks once per tick."""
        self.brokers = {
            broker_id: BrokerProcess(
                directory / f"broker-{broker_id}",
                broker_id,
                self.coordinator.address,
                overrides={
                    "log.dirs": ",".join(str(directory / f"broker-{broker_id}" / name) for name in log_directories),
                    **(overrides or {}),
                    **_rack(broker_id, racks or {}),
                },
            )
            for broker_id in range(1, count + 1)
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def check_that_none_exited_by_itself(self) -> None:
        """AssertionError unless every process that was not stopped or killed runs."""
        ended = [broker.log_tail() for broker in self.brokers.values() if not broker.process.is_running]
        if not self.coordinator.is_running:
            ended.append(self.coordinator.log_tail())
        assert not ended, "processes ended by themselves:\n" + "\n".join(ended)


def _rack(broker_id: int, racks: Mapping[int, str]) -> Mapping[str, object]:
    return {"broker.rack": racks[broker_id]} if broker_id in racks else {}


@contextlib.contextmanager
def broker_cluster(
    directory: Path,
    count: int,
    *,
    coordinator: str = "embedded",
    overrides: Mapping[str, object] | None = None,
    racks: Mapping[int, str] | None = None,
    log_directories: Sequence[str] = ("data",),
) -> Iterator[BrokerCluster]:
    """A running cluster; its processes are ended with the block."""
    cluster = BrokerCluster(
        *(directory, count), coordinator=coordinator, overrides=overrides, racks=racks, log_directories=log_directories
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
