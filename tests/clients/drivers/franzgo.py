"""franz-go: a client in pure Go, tried with transactions only. Go brings and builds it, into `.cache`."""

from __future__ import annotations

import base64
import functools
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.clients.drivers.model import Capability, GroupMember, Record
from tests.clients.drivers.process_transactions import ProcessTransactions

VERSION = "1.20.6"
TIMEOUT_SECONDS = 120.0
BUILD_SECONDS = 600
_SOURCE = Path(__file__).resolve().parent / "franzgo"
_PROGRAM = Path(__file__).resolve().parents[3] / ".cache" / f"franz-go-{VERSION}" / "franzgo"
_REASON = "franz-go is tried with transactions only"


def reason_to_skip() -> str | None:
    """What is missing here."""
    if shutil.which("go") is None:
        return "franz-go needs Go 1.24 or newer: install it from go.dev (Debian: apt-get install golang-go)"
    return None


def copying(
    bootstrap_servers: str, source: str, target: str, group: str, transactional_id: str, timeout_ms: int
) -> list[str]:
    """The command of a process that copies a topic, as long as nothing goes wrong and for five minutes at most."""
    options = {
        "bootstrapServers": bootstrap_servers.split(","),
        "source": source,
        "target": target,
        "group": group,
        "transactionalId": transactional_id,
        "timeoutMs": timeout_ms,
        "count": 1 << 62,
        "batch": 50,
    }
    return [_program(), "copy", json.dumps(options)]


class FranzGoClient:
    """franz-go's transactional producer, its consumer of committed records, and its session that copies."""

    name: ClassVar[str] = "franz-go"
    missing: ClassVar[Mapping[Capability, str]] = {
        each: _REASON for each in Capability if each is not Capability.TRANSACTIONS
    }

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers.split(",")

    def transactional(self, transactional_id: str, timeout_ms: int = 60_000) -> ProcessTransactions:
        options = {
            "bootstrapServers": self._bootstrap_servers,
            "transactionalId": transactional_id,
            "timeoutMs": timeout_ms,
        }
        return ProcessTransactions(self.name, [_program(), "transact", json.dumps(options)])

    def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        return [base64.b64decode(value) for value in self._run("readCommitted", topic=topic, partition=partition)]

    def copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        options = {"transactionalId": transactional_id, "timeoutMs": 60_000, "batch": 5}
        self._run("copy", source=source, target=target, group=group, count=count, **options)

    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        raise NotImplementedError(_REASON)

    def read(self, topic: str, count: int, *, partition: int = 0) -> list[Record]:
        raise NotImplementedError(_REASON)

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        raise NotImplementedError(_REASON)

    def join(self, topic: str, group: str) -> GroupMember:
        raise NotImplementedError(_REASON)

    def administer(self, topic: str) -> None:
        raise NotImplementedError(_REASON)

    def _run(self, command: str, **options: Any) -> list[Any]:
        done = subprocess.run(
            [_program(), command, json.dumps({"bootstrapServers": self._bootstrap_servers, **options})],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"franz-go {command}: {done.stderr[-4000:]}"
        return [json.loads(line) for line in done.stdout.splitlines()]


@functools.cache
def _program() -> str:
    """The built program: anew where its source is younger."""
    written = max(path.stat().st_mtime for path in _SOURCE.iterdir())
    if not _PROGRAM.exists() or _PROGRAM.stat().st_mtime < written:
        _PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-buildvcs=false", "-o", str(_PROGRAM), "."]
        built = subprocess.run(command, cwd=_SOURCE, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if built.returncode:
            raise RuntimeError(f"franz-go could not be built: {built.stderr[-4000:]}")
    return str(_PROGRAM)
