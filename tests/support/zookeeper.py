"""Real ZooKeeper servers (3.8.4, from Apache Kafka's jars) as oracles.

One alone, or an ensemble whose members can be killed and restarted.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.apache_kafka_jars import class_path
from tests.support.java import java
from tests.support.java_archives import start_options
from tests.support.ports import free_port
from tests.support.processes import ServerProcess
from tests.support.waiting import wait_until

READY_TIMEOUT_SECONDS = 120.0
# A short life on a shared machine: start fast, stay small, with log files of 1 MiB at first instead of 64 MiB.
FAST_START_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.preAllocSize=1024")

_LOG_CONFIGURATION = """log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{1} - %m%n
"""


def four_letter_word(port: int, word: str, timeout_seconds: float = 5.0) -> str:
    """Sends one of `ruok`, `srvr`, `mntr`, ...

    to 127.0.0.1 and returns the whole answer; `OSError` when nobody answers.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds) as connection:
        connection.settimeout(timeout_seconds)
        connection.sendall(word.encode())
        answer = bytearray()
        while chunk := connection.recv(65_536):
            answer += chunk
    return answer.decode()


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """Where one member of an ensemble is found by the others."""

    server_id: int
    quorum_port: int
    election_port: int


class ZooKeeperServer:
    """One ZooKeeper server. Its data stay in `directory` from start to start."""

    def __init__(
        self,
        directory: Path,
        *,
        configuration: Mapping[str, object] | None = None,
        java_options: Sequence[str] = FAST_START_OPTIONS,
        server_id: int | None = None,
        members: Sequence[EnsembleMember] = (),
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.server_id = server_id
        name = "zookeeper" if server_id is None else f"zookeeper-{server_id}"
        self._write_files(configuration or {}, members)
        self.process = ServerProcess(
            name,
            [
                java().executable,
                *java_options,
                *start_options("zookeeper"),
                "-Djava.awt.headless=true",
                "-Dfile.encoding=UTF-8",
                f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}",
                "-cp",
                class_path(),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                directory / "zoo.cfg",
            ],
            directory / "zookeeper.log",
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> None:
        """Starts it and, unless `wait` is False, waits until it serves; a member of an ensemble: leads or follows."""
        self.process.start()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        wait_until(self._serves, f"{self.process.name} serves", timeout_seconds, self.process.log_tail)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL; `start` brings it back on the same port with what it had written."""
        self.process.kill()

    def mode(self) -> str | None:
        """`standalone`, `leader`, `follower`, or None while it does not serve."""
        try:
            # A server that is starting may take the connection and never answer on it.
            answer = four_letter_word(self.port, "srvr", timeout_seconds=0.5)
        except OSError:
            return None
        return next((line.split(": ")[1] for line in answer.splitlines() if line.startswith("Mode: ")), None)

    def _serves(self) -> bool:
        if not self.process.is_running:
            raise RuntimeError(f"{self.process.name} ended with {self.process.exit_status}\n{self.process.log_tail()}")
        return self.mode() is not None

    def _write_files(self, configuration: Mapping[str, object], members: Sequence[EnsembleMember]) -> None:
        data_directory = self.directory / "data"
        data_directory.mkdir(parents=True, exist_ok=True)
        entries: dict[str, object] = {
            "tickTime": 500,
            "initLimit": 20,
            "syncLimit": 10,
            # Session time-outs are otherwise bound to 2 to 20 ticks.
            "minSessionTimeout": 500,
            "maxSessionTimeout": 60_000,
            "dataDir": data_directory,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        entries |= {
            f"server.{member.server_id}": f"127.0.0.1:{member.quorum_port}:{member.election_port}" for member in members
        }
        entries |= configuration
        (self.directory / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in entries.items()))
        (self.directory / "log4j.properties").write_text(_LOG_CONFIGURATION)
        if self.server_id is not None:
            (data_directory / "myid").write_text(str(self.server_id))


class ZooKeeperEnsemble:
    """Several ZooKeeper servers that elect a leader among them."""

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        configuration: Mapping[str, object] | None = None,
        java_options: Sequence[str] = FAST_START_OPTIONS,
    ) -> None:
        members = [EnsembleMember(server_id, free_port(), free_port()) for server_id in range(1, size + 1)]
        self.servers = tuple(
            ZooKeeperServer(
                directory / f"zookeeper-{member.server_id}",
                configuration=configuration,
                java_options=java_options,
                server_id=member.server_id,
                members=members,
            )
            for member in members
        )

    @property
    def addresses(self) -> str:
        """The connection string: `host:port` of every member, comma-separated."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Starts all members and waits until each leads or follows."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_until_ready()

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def leader(self) -> ZooKeeperServer:
        """The member that leads; waits for an election to end."""
        return wait_until(self._leader, "the ensemble has a leader", READY_TIMEOUT_SECONDS, self.log_tails)

    def followers(self) -> tuple[ZooKeeperServer, ...]:
        """The members that follow now."""
        return tuple(server for server in self.servers if server.mode() == "follower")

    def log_tails(self) -> str:
        return "\n".join(server.process.log_tail() for server in self.servers)

    def _leader(self) -> ZooKeeperServer | None:
        return next(
            (server for server in self.servers if server.process.is_running and server.mode() == "leader"), None
        )


@contextlib.contextmanager
def zookeeper(
    directory: Path,
    *,
    configuration: Mapping[str, object] | None = None,
    java_options: Sequence[str] = FAST_START_OPTIONS,
) -> Iterator[ZooKeeperServer]:
    """One ZooKeeper alone, serving on 127.0.0.1, stopped at the end. `configuration` overrides entries of zoo.cfg."""
    server = ZooKeeperServer(directory, configuration=configuration, java_options=java_options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def zookeeper_ensemble(
    directory: Path, size: int = 3, *, configuration: Mapping[str, object] | None = None
) -> Iterator[ZooKeeperEnsemble]:
    """An ensemble that has elected its leader; its members are killed at the end."""
    ensemble = ZooKeeperEnsemble(directory, size, configuration=configuration)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.stop()
