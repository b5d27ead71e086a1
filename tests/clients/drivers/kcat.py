"""kcat: librdkafka on the command line."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tests.clients.drivers.model import Capability, Place, Record

TIMEOUT_SECONDS = 60.0
_KEY_SEPARATOR = "\t"
_ASSIGNED = re.compile(r"\[(\d+)\]")


def reason_to_skip() -> str | None:
    """What is missing here."""
    if shutil.which("kcat") is None:
        return "kcat is not here, and pip cannot bring it: install it (Debian: apt-get install kcat)"
    return None


class KcatMember:
    """`kcat -G`, which commits what it has printed when it ends."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self._assigned: frozenset[int] = frozenset()
        self._received: list[tuple[Place, bytes | None]] = []
        self._process = subprocess.Popen(
            [
                *("kcat", "-b", bootstrap_servers, "-G", group, "-u", "-J", "-X", "auto.offset.reset=earliest"),
                *("-X", "session.timeout.ms=10000", topic),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=self._read_records, daemon=True),
            threading.Thread(target=self._read_assignments, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def assigned(self) -> frozenset[int]:
        return self._assigned

    def received(self) -> list[tuple[Place, bytes | None]]:
        return list(self._received)

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(TIMEOUT_SECONDS)
        finally:
            self._process.kill()
            for thread in self._threads:
                thread.join(TIMEOUT_SECONDS)
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()

    def _read_records(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            value = None if said["payload"] is None else said["payload"].encode()
            self._received.append((Place(said["partition"], said["offset"]), value))

    def _read_assignments(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "rebalanced" in line:
                _, _, what = line.partition("): ")
                given = what.startswith("assigned")
                self._assigned = frozenset(int(number) for number in _ASSIGNED.findall(what)) if given else frozenset()


class KcatClient:
    """kcat's modes for producing, consuming, asking for offsets and group membership."""

    name: ClassVar[str] = "kcat"
    missing: ClassVar[Mapping[Capability, str]] = {
        Capability.NULLS: "kcat sends every empty key or value as null, or none of them",
        Capability.ADMIN: "kcat only lists",
        Capability.TRANSACTIONS: "kcat makes one transaction of all that it sends, and commits it",
    }

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        for (partition, headers), group in itertools.groupby(records, lambda each: (each.partition, each.headers)):
            lines = [b"%s%s%s\n" % (each.key or b"", _KEY_SEPARATOR.encode(), each.value or b"") for each in group]
            arguments = [
                *("-P", "-t", topic, "-p", str(partition), "-K", _KEY_SEPARATOR, "-z", compression),
                *("-X", "enable.idempotence=true", "-X", "message.max.bytes=2000000"),
            ]
            for name, value in headers:
                arguments += ["-H", f"{name}={value.decode()}"]
            self._run(arguments, b"".join(lines))

    def read(self, topic: str, count: int, *, partition: int = 0) -> list[Record]:
        arguments = ["-C", "-e", "-t", topic, "-p", str(partition), "-o", "beginning", "-c", str(count), "-J", "-q"]
        records = []
        for line in self._run(arguments).splitlines():
            said = json.loads(line)
            flat = said.get("headers", [])
            headers = tuple((name, value.encode()) for name, value in zip(flat[::2], flat[1::2], strict=True))
            key, value = said["key"], said["payload"]
            records.append(
                Record(
                    None if value is None else value.encode(),
                    None if key is None else key.encode(),
                    headers,
                    said["ts"],
                    partition,
                )
            )
        return records

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        said = self._run(["-Q", "-t", f"{topic}:{partition}:{timestamp_ms}"]).decode()
        offset = int(said.rpartition("offset ")[2])
        return offset if offset >= 0 else None

    def join(self, topic: str, group: str) -> KcatMember:
        return KcatMember(self._bootstrap_servers, topic, group)

    def administer(self, topic: str) -> None:
        raise NotImplementedError(self.missing[Capability.ADMIN])

    def _run(self, arguments: list[str], standard_input: bytes = b"") -> bytes:
        done = subprocess.run(
            ["kcat", "-b", self._bootstrap_servers, *arguments],
            input=standard_input,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr.decode()[-4000:]}"
        return done.stdout
