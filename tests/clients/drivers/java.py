"""Apache Kafka's own Java clients, by the command-line tools that come with it, transactions also without a tool."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients.drivers import java_transactions
from tests.clients.drivers.model import Capability, Place, Record
from tests.support.apache_kafka import (
    CONFIG_COMMAND,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSUMER_GROUP_COMMAND,
    TOPIC_COMMAND,
    run_tool,
)
from tests.support.apache_kafka_jars import class_path
from tests.support.java import JavaMissing, java
from tests.support.waiting import wait_until

TIMEOUT_SECONDS = 60.0
_QUIET_MS = 10_000
_NULL = "<null>"
_SEPARATOR = "\t"
_GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
_MESSAGE_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
_VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"


def reason_to_skip() -> str | None:
    """What is missing here."""
    try:
        java()
    except JavaMissing as error:
        return str(error)
    return None


class JavaMember:
    """Apache Kafka's verifiable consumer: it says what it is assigned and what it gets, and commits."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self._assigned: frozenset[int] = frozenset()
        self._received: list[tuple[Place, bytes | None]] = []
        self._process = subprocess.Popen(
            [
                *(java().executable, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", class_path(), _VERIFIABLE_CONSUMER, "--bootstrap-server", bootstrap_servers),
                *("--topic", topic, "--group-id", group, "--reset-policy", "earliest", "--verbose"),
                *("--session-timeout", "10000"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def assigned(self) -> frozenset[int]:
        return self._assigned

    def received(self) -> list[tuple[Place, bytes | None]]:
        return list(self._received)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        finally:
            self._process.kill()
            self._thread.join(TIMEOUT_SECONDS)
            if self._process.stdout is not None:
                self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            match said["name"]:
                case "partitions_assigned":
                    self._assigned |= frozenset(each["partition"] for each in said["partitions"])
                case "partitions_revoked":
                    self._assigned -= frozenset(each["partition"] for each in said["partitions"])
                case "record_data":
                    place = Place(said["partition"], said["offset"])
                    self._received.append((place, said["value"].encode()))


class JavaClient:
    """Each call by the tool that does it."""

    name: ClassVar[str] = "Java"
    missing: ClassVar[Mapping[Capability, str]] = {}

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        lines = [_SEPARATOR.join((_headers(each), _text(each.key), _text(each.value))) for each in records]
        self._run(
            CONSOLE_PRODUCER,
            *("--topic", topic, "--compression-codec", compression, "--request-required-acks", "all"),
            *("--producer-property", "max.request.size=2000000", "--producer-property", "enable.idempotence=true"),
            *_properties(
                **{"parse.headers": "true", "parse.key": "true", "null.marker": _NULL, "key.separator": _SEPARATOR},
                **{"headers.delimiter": _SEPARATOR},
            ),
            standard_input="".join(f"{line}\n" for line in lines),
        )

    def read(self, topic: str, count: int, *, partition: int = 0) -> list[Record]:
        said = self._run(
            CONSOLE_CONSUMER,
            *("--topic", topic, "--partition", str(partition), "--offset", "earliest"),
            *("--max-messages", str(count), "--timeout-ms", str(_QUIET_MS)),
            *("--consumer-property", "max.partition.fetch.bytes=2000000"),
            *_properties(
                **{"print.headers": "true", "print.key": "true", "null.literal": _NULL, "key.separator": _SEPARATOR},
                **{"headers.separator": ","},
            ),
        )
        return [_record(line, partition) for line in said.splitlines() if _SEPARATOR in line]

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        found = self._offsets(topic, timestamp_ms).get(partition, -1)
        end = self._offsets(topic, -1)[partition]
        return found if 0 <= found < end else None

    def join(self, topic: str, group: str) -> JavaMember:
        return JavaMember(self._bootstrap_servers, topic, group)

    def transactional(self, transactional_id: str, timeout_ms: int = 60_000) -> java_transactions.JavaTransactions:
        return java_transactions.JavaTransactions(self._bootstrap_servers, transactional_id, timeout_ms)

    def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        return java_transactions.read_committed(self._bootstrap_servers, topic, partition)

    def copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        run_tool(
            _MESSAGE_COPIER,
            [
                *("--broker-list", self._bootstrap_servers, "--input-topic", source, "--input-partition", "0"),
                *("--output-topic", target, "--consumer-group", group, "--transactional-id", transactional_id),
                *("--max-messages", str(count), "--transaction-size", "5", "--enable-random-aborts"),
                *("--group-mode", "--use-group-metadata"),
            ],
            timeout_seconds=TIMEOUT_SECONDS,
        )

    def administer(self, topic: str) -> None:
        self._run(TOPIC_COMMAND, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
        wait_until(lambda: topic in self._run(TOPIC_COMMAND, "--list").split(), f"{topic} is listed", TIMEOUT_SECONDS)
        entity = ("--entity-type", "topics", "--entity-name", topic)
        self._run(CONFIG_COMMAND, "--alter", *entity, "--add-config", "retention.ms=86400000")
        wait_until(
            lambda: "retention.ms=86400000" in self._run(CONFIG_COMMAND, "--describe", *entity),
            "retention.ms is set",
            TIMEOUT_SECONDS,
        )
        self._run(TOPIC_COMMAND, "--alter", "--topic", topic, "--partitions", "3")
        wait_until(
            lambda: "PartitionCount: 3" in self._run(TOPIC_COMMAND, "--describe", "--topic", topic),
            f"{topic} has 3 partitions",
            TIMEOUT_SECONDS,
        )
        self._run(CONSUMER_GROUP_COMMAND, "--list")
        self._run(TOPIC_COMMAND, "--delete", "--topic", topic)
        wait_until(lambda: topic not in self._run(TOPIC_COMMAND, "--list").split(), f"{topic} is gone", TIMEOUT_SECONDS)

    def _offsets(self, topic: str, time: int) -> dict[int, int]:
        said = self._run(_GET_OFFSETS, "--topic", topic, "--time", str(time))
        found = {}
        for line in said.splitlines():
            _, partition, offset = line.rsplit(":", 2)
            if offset:
                found[int(partition)] = int(offset)
        return found

    def _run(self, main_class: str, *arguments: str | Path, standard_input: str | None = None) -> str:
        everything = ("--bootstrap-server", self._bootstrap_servers, *arguments)
        return run_tool(main_class, everything, standard_input=standard_input, timeout_seconds=TIMEOUT_SECONDS)


def _properties(**properties: str) -> list[str]:
    return [word for name, value in properties.items() for word in ("--property", f"{name}={value}")]


def _text(value: bytes | None) -> str:
    return _NULL if value is None else value.decode()


def _headers(record: Record) -> str:
    return ",".join(f"{name}:{value.decode()}" for name, value in record.headers) or _NULL


def _record(line: str, partition: int) -> Record:
    headers, key, value = line.split(_SEPARATOR)
    pairs = [] if headers == "NO_HEADERS" else [pair.split(":", 1) for pair in headers.split(",")]
    return Record(
        None if value == _NULL else value.encode(),
        None if key == _NULL else key.encode(),
        tuple((name, text.encode()) for name, text in pairs),
        partition=partition,
    )
