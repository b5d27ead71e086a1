"""Apache Kafka 3.9.1 as an oracle: unmodified brokers in ZooKeeper mode, and the tools that come with it."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.apache_kafka_jars import KAFKA_VERSION, class_path
from tests.support.java import java
from tests.support.java_archives import start_options
from tests.support.ports import free_port
from tests.support.processes import ServerProcess
from tests.support.tool_server import ToolServers, needs_own_jvm
from tests.support.waiting import wait_until

READY_TIMEOUT_SECONDS = 180.0
TOOL_TIMEOUT_SECONDS = 180.0
SMALL_HEAP_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
DUMP_LOG_SEGMENTS = "kafka.tools.DumpLogSegments"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_PRODUCER = "kafka.tools.ConsoleProducer"
LEADER_ELECTION_COMMAND = "org.apache.kafka.tools.LeaderElectionCommand"
LOG_DIRS_COMMAND = "org.apache.kafka.tools.LogDirsCommand"
REASSIGN_COMMAND = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
CONSUMER_GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

_METADATA_KEY = 3
_METADATA_VERSION = 1
_LOG_CONFIGURATION = """log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_TOOL_LOG_CONFIGURATION = """log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n
"""

_tool_servers = ToolServers()


class ApacheKafkaBroker:
    """One unmodified broker. Its log directory stays in `directory` from start to start."""

    def __init__(
        self,
        directory: Path,
        zookeeper_connect: str,
        broker_id: int = 0,
        *,
        overrides: Mapping[str, object] | None = None,
        java_options: Sequence[str] = SMALL_HEAP_OPTIONS,
        version: str = KAFKA_VERSION,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` has further variables."""
        self.directory = directory
        self.broker_id = broker_id
        self.port = free_port() if port is None else port
        self._write_files(zookeeper_connect, overrides or {})
        self.process = ServerProcess(
            f"kafka-{broker_id}",
            [
                java().executable,
                *java_options,
                *start_options("kafka", version),
                "-Djava.awt.headless=true",
                f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}",
                "-cp",
                class_path(version),
                "kafka.Kafka",
                directory / "server.properties",
            ],
            directory / "server.log",
            environment,
        )

    @property
    def address(self) -> str:
        """`host:port` of its PLAINTEXT listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def log_directory(self) -> Path:
        """Its one `log.dirs`."""
        return self.directory / "logs"

    def start(self, wait: bool = True) -> None:
        """Starts it, and waits until it names itself in a Metadata answer unless `wait` is False."""
        self.process.start()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        wait_until(self._serves, f"{self.process.name} answers", timeout_seconds, self.process.log_tail)

    def stop(self) -> None:
        """Controlled shutdown (bounded)."""
        self.process.stop(60.0)

    def kill(self) -> None:
        """SIGKILL; `start` brings it back on the same port with the same log directory."""
        self.process.kill()

    def _serves(self) -> bool:
        if not self.process.is_running:
            raise RuntimeError(f"{self.process.name} ended with {self.process.exit_status}\n{self.process.log_tail()}")
        return self.broker_id in broker_ids_in_metadata(self.port)

    def _write_files(self, zookeeper_connect: str, overrides: Mapping[str, object]) -> None:
        self.log_directory.mkdir(parents=True, exist_ok=True)
        entries: dict[str, object] = {
            "broker.id": self.broker_id,
            "zookeeper.connect": zookeeper_connect,
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": self.log_directory,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "background.threads": 4,
            "offsets.topic.num.partitions": 3,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 3,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 16_777_216,
            "log.index.size.max.bytes": 1_048_576,
        }
        entries |= overrides
        (self.directory / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in entries.items()))
        (self.directory / "log4j.properties").write_text(_LOG_CONFIGURATION)


def broker_ids_in_metadata(port: int, timeout_seconds: float = 5.0) -> tuple[int, ...]:
    """The ids of the live brokers as the broker at 127.0.0.1 knows them; `OSError` when it does not answer.

    The bytes are written by hand (Metadata v1 without topics), so that waiting for an oracle does not rest on what the
    oracle checks.
    """
    body = struct.pack(">hhih", _METADATA_KEY, _METADATA_VERSION, 1, -1) + struct.pack(">i", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds) as connection:
        connection.settimeout(timeout_seconds)
        connection.sendall(struct.pack(">i", len(body)) + body)
        size_bytes = struct.unpack(">i", _receive(connection, 4))[0]
        answer = _receive(connection, size_bytes)
    count = struct.unpack_from(">i", answer, 4)[0]
    position, found = 8, []
    for _ in range(count):
        broker_id, host_bytes = struct.unpack_from(">ih", answer, position)
        position += 6 + host_bytes + 4
        rack_bytes = struct.unpack_from(">h", answer, position)[0]
        position += 2 + max(0, rack_bytes)
        found.append(broker_id)
    return tuple(found)


def run_tool(
    main_class: str,
    arguments: Sequence[str | Path],
    *,
    standard_input: str | None = None,
    timeout_seconds: float = TOOL_TIMEOUT_SECONDS,
    expected_status: int | None = 0,
) -> str:
    """Runs one of Apache Kafka's command-line tools and returns its standard output.

    An exit status other than `expected_status` raises `RuntimeError` with both outputs (None accepts any); more than
    `timeout_seconds` raises `subprocess.TimeoutExpired`.
    """
    done = tool_run(main_class, arguments, standard_input=standard_input, timeout_seconds=timeout_seconds)
    if expected_status is not None and done.status != expected_status:
        raise RuntimeError(f"{main_class} ended with {done.status}\n{done.output[-4000:]}\n{done.errors[-4000:]}")
    return done.output


@dataclass(frozen=True, slots=True)
class ToolRun:
    """How one of the tools ended, and what it wrote to standard output and standard error."""

    status: int
    output: str
    errors: str


def tool_run(
    main_class: str,
    arguments: Sequence[str | Path],
    *,
    standard_input: str | None = None,
    timeout_seconds: float = TOOL_TIMEOUT_SECONDS,
) -> ToolRun:
    """Runs one of Apache Kafka's command-line tools, however it ends; more than `timeout_seconds` raises
    `subprocess.TimeoutExpired`. Most run in a JVM that is there already.
    """
    configuration = Path(class_path().removesuffix("/*") + "-tools-log4j.properties")
    if not configuration.exists() or configuration.read_text() != _TOOL_LOG_CONFIGURATION:
        with tempfile.NamedTemporaryFile("w", dir=configuration.parent, delete=False) as new:
            new.write(_TOOL_LOG_CONFIGURATION)
        Path(new.name).replace(configuration)  # another tool that starts now reads the whole of it
    option = f"-Dlog4j.configuration=file:{configuration}"
    if not needs_own_jvm(main_class):
        return ToolRun(
            *_tool_servers.run(class_path(), [option], main_class, arguments, standard_input, timeout_seconds)
        )
    command = [
        *(java().executable, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", option),
        *("-cp", class_path(), main_class, *arguments),
    ]
    done = subprocess.run(
        command, input=standard_input, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
    return ToolRun(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def apache_kafka_broker(
    directory: Path,
    zookeeper_connect: str,
    broker_id: int = 0,
    *,
    overrides: Mapping[str, object] | None = None,
    java_options: Sequence[str] = SMALL_HEAP_OPTIONS,
) -> Iterator[ApacheKafkaBroker]:
    """One broker that answers on 127.0.0.1, killed at the end. `overrides` are entries of server.properties."""
    broker = ApacheKafkaBroker(directory, zookeeper_connect, broker_id, overrides=overrides, java_options=java_options)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return bytes(received)
