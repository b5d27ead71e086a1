"""kafkajs: a client in pure JavaScript, brought by npm into `.cache`."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from barnabas.pipelines.ivy import locked
from tests.clients.drivers.model import Capability, Place, Record
from tests.clients.drivers.process_transactions import ProcessTransactions

VERSION = "2.2.4"
TIMEOUT_SECONDS = 60.0
_PROGRAM = Path(__file__).with_suffix(".js")
_DIRECTORY = Path(__file__).resolve().parents[3] / ".cache" / f"kafkajs-{VERSION}"
_ONLY_GZIP = "kafkajs brings gzip only; other codecs are plug-ins of others"


def reason_to_skip() -> str | None:
    """What is missing here."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "kafkajs needs Node.js and npm: install them (Debian: apt-get install nodejs npm)"
    return None


class KafkajsMember:
    """A group member in a process of its own."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._assigned: frozenset[int] = frozenset()
        self._received: list[tuple[Place, bytes | None]] = []
        self._process = subprocess.Popen(
            _command("join", options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), text=True
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def assigned(self) -> frozenset[int]:
        return self._assigned

    def received(self) -> list[tuple[Place, bytes | None]]:
        return list(self._received)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        finally:
            self._process.kill()
            self._thread.join(TIMEOUT_SECONDS)
            self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "assigned" in said:
                self._assigned = frozenset(said["assigned"])
            else:
                self._received.append((Place(said["partition"], said["offset"]), _bytes(said["value"])))


class KafkajsClient:
    """kafkajs' producer, consumer and admin client, each call by a process of its own."""

    name: ClassVar[str] = "kafkajs"
    missing: ClassVar[Mapping[Capability, str]] = {
        Capability.SNAPPY: _ONLY_GZIP,
        Capability.LZ4: _ONLY_GZIP,
        Capability.ZSTD: _ONLY_GZIP,
        Capability.READ_OTHERS: _ONLY_GZIP,
    }

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers.split(",")

    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        sent = [
            {
                "key": _base64(record.key),
                "value": _base64(record.value),
                "partition": record.partition,
                "headers": [(name, _base64(value)) for name, value in record.headers],
                "timestamp": record.timestamp_ms,
            }
            for record in records
        ]
        self._run("produce", topic=topic, records=sent, compression=compression)

    def read(self, topic: str, count: int, *, partition: int = 0) -> list[Record]:
        said = self._run("read", topic=topic, count=count, partition=partition, group=f"read-{uuid.uuid4()}")
        return [
            Record(
                _bytes(each["value"]),
                _bytes(each["key"]),
                tuple((name, base64.b64decode(value)) for name, value in each["headers"]),
                each["timestamp"],
                partition,
            )
            for each in said
        ]

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        (found,) = self._run("offsetAt", topic=topic, timestamp=timestamp_ms, partition=partition)
        return None if found is None else int(found)

    def join(self, topic: str, group: str) -> KafkajsMember:
        return KafkajsMember({"bootstrapServers": self._bootstrap_servers, "topic": topic, "group": group})

    def administer(self, topic: str) -> None:
        self._run("administer", topic=topic)

    def transactional(self, transactional_id: str, timeout_ms: int = 60_000) -> ProcessTransactions:
        options = {
            "bootstrapServers": self._bootstrap_servers,
            "transactionalId": transactional_id,
            "timeoutMs": timeout_ms,
        }
        return ProcessTransactions(self.name, _command("transact", options), _environment())

    def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        said = self._run("readCommitted", topic=topic, partition=partition, group=f"read-{uuid.uuid4()}")
        return [base64.b64decode(value) for value in said]

    def copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        options = {"transactionalId": transactional_id, "timeoutMs": 60_000}
        self._run("copy", source=source, target=target, group=group, count=count, **options)

    def _run(self, command: str, **options: Any) -> list[Any]:
        done = subprocess.run(
            _command(command, {"bootstrapServers": self._bootstrap_servers, **options}),
            capture_output=True,
            env=_environment(),
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"kafkajs {command}: {done.stderr[-4000:]}"
        return [json.loads(line) for line in done.stdout.splitlines()]


def _command(command: str, options: dict[str, Any]) -> list[str]:
    # Large values go by a file: an argument is limited to 128 KiB on Linux.
    text = json.dumps(options)
    if len(text) > 100_000:
        path = directory() / f"options-{uuid.uuid4()}.json"
        path.write_text(text)
        text = json.dumps({"file": str(path)})
    return ["node", str(_PROGRAM), command, text]


def _environment() -> dict[str, str]:
    return {**os.environ, "NODE_PATH": str(directory() / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


@functools.cache
def directory() -> Path:
    """Where kafkajs is, fetched by npm the first time."""
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    with locked(_DIRECTORY / "lock", lambda: None):
        if not (_DIRECTORY / "node_modules" / "kafkajs").is_dir():
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(_DIRECTORY)]
            subprocess.run([*command, f"kafkajs@{VERSION}"], check=True, timeout=300)
    return _DIRECTORY


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
