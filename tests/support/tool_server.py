"""Apache Kafka's command-line tools, one after the other in one JVM: starting a JVM and loading Kafka's classes takes
ten times what a tool then does.

`ToolServer.java` is the other side, compiled when it starts by the Janino that Spark brings. It takes, in big-endian
integers of four bytes and bytes of that length: how many words, the words (the class, then its arguments) and what
stands in the tool's standard input; and gives the exit status, standard output and standard error. When the tool
leaves, its clients are closed, admin clients that it left open too, and its shutdown hooks have run. Then a byte
follows: 1 where all its threads have ended. A JVM in which some run on is not used again. Classes of tools are loaded
anew for each: some count in static fields.

A tool that ends the JVM itself, or has hooks of the JVM, must have one of its own (`needs_own_jvm`).
"""

from __future__ import annotations

import atexit
import os
import selectors
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from barnabas.pipelines.spark_extra import pyspark_directory
from tests.support.java import java

_SOURCE = Path(__file__).with_name("ToolServer.java")
_COMPILER = "org.codehaus.janino.SimpleCompiler"
# The last lets it see what a thread runs: an admin client that the tool has left open.
_OPTIONS = (
    *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"),
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
_OWN_JVM = tuple(f"org.apache.kafka.tools.{name}" for name in ("Verifiable", "ReplicaVerificationTool"))
_CLEANING_SECONDS = 10.0
_CHUNK_BYTES = 1 << 16


class ToolServerGoneError(RuntimeError):
    """The JVM ended while a tool ran in it."""


def needs_own_jvm(main_class: str) -> bool:
    """Whether it calls `System.exit` or `Runtime.addShutdownHook` and not Kafka's `Exit`, as few do."""
    return main_class.startswith(_OWN_JVM)


class ToolServer:
    """Not thread-safe."""

    def __init__(self, class_path: str, *options: str) -> None:
        jars = pyspark_directory() / "jars"
        compiler = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # until `close`
        paths = os.pathsep.join(map(str, [class_path, *compiler]))
        command = [str(java().executable), *_OPTIONS, *options, "-cp", paths, _COMPILER, str(_SOURCE), "ToolServer"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._is_cleaning = False

    def run(
        self, main_class: str, arguments: Sequence[str | Path], standard_input: str | None, timeout_seconds: float
    ) -> tuple[int, str, str]:
        """Exit status, standard output and standard error. `TimeoutExpired` after `timeout_seconds`: the JVM then is
        of no more use, and to be closed.
        """
        until = time.monotonic() + timeout_seconds
        words = [main_class, *map(str, arguments)]
        request = [struct.pack(">i", len(words))]
        for part in (*(word.encode() for word in words), (standard_input or "").encode()):
            request += [struct.pack(">i", len(part)), part]
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"".join(request))
            self._process.stdin.flush()
            status = self._integer(until)
            output = self._read(self._integer(until), until)
            errors = self._read(self._integer(until), until)
        except BrokenPipeError as error:
            raise self._gone() from error
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(words, timeout_seconds) from error
        self._is_cleaning = True
        return status, output.decode(), errors.decode()

    def is_usable(self) -> bool:
        """Whether nothing of the tools that ran is left in it; waits until what is left has had the time to end."""
        if self._is_cleaning:
            try:
                self._is_cleaning = self._read(1, time.monotonic() + _CLEANING_SECONDS) != b"\1"
            except (TimeoutError, ToolServerGoneError):
                return False
        return not self._is_cleaning and self._process.poll() is None

    def close(self) -> None:
        """SIGKILL; a process that has ended does no harm."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._log):
            if file is not None:
                try:
                    file.close()
                except BrokenPipeError:
                    continue

    def _integer(self, until: float) -> int:
        (value,) = struct.unpack(">i", self._read(4, until))
        return int(value)

    def _read(self, count: int, until: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        read = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while len(read) < count:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                some = os.read(descriptor, min(count - len(read), _CHUNK_BYTES))
                if not some:
                    raise self._gone()
                read += some
        return bytes(read)

    def _gone(self) -> ToolServerGoneError:
        self._log.seek(0)
        said = self._log.read()[-4000:].decode("utf-8", "replace")
        return ToolServerGoneError(f"the JVM of the tools has ended: {said}")


class ToolServers:
    """Those of this process: one more is started where all that there are have a tool."""

    def __init__(self) -> None:
        self._idle: list[ToolServer] = []
        self._lock = threading.Lock()

    def run(
        self,
        class_path: str,
        options: Sequence[str],
        main_class: str,
        arguments: Sequence[str | Path],
        standard_input: str | None,
        timeout_seconds: float,
    ) -> tuple[int, str, str]:
        """As `ToolServer.run`; all calls have the same class path and options."""
        server = self._take() or ToolServer(class_path, *options)
        try:
            ended = server.run(main_class, arguments, standard_input, timeout_seconds)
        except BaseException:
            server.close()
            raise
        with self._lock:
            if not self._idle:
                atexit.register(self._close)
            self._idle.append(server)
        return ended

    def _take(self) -> ToolServer | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                server = self._idle.pop()
                if not self._idle:
                    atexit.unregister(self._close)
            if server.is_usable():
                return server
            server.close()

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().close()
