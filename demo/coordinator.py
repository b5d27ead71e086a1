"""The embedded coordinator as a process that the demo starts, kills and starts again."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

READY_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 10.0
COMMAND = (sys.executable, "-m", "barnabas.cli", "coordinator")


class CoordinatorError(RuntimeError):
    """The coordinator did not come up."""


class CoordinatorProcess:
    """`barnabas coordinator` on a port of its own choice; `start` after `kill` brings it back on the same port."""

    def __init__(self, data_directory: Path) -> None:
        self.data_directory = data_directory
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Returns the seconds from exec until it said that it is ready. Raises CoordinatorError."""
        began = time.monotonic()
        self._process = subprocess.Popen(
            [*COMMAND, "--data", str(self.data_directory), "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output = self._process.stdout
        if output is None or not select.select([output], [], [], READY_SECONDS_MAX)[0]:
            raise CoordinatorError(f"the coordinator said nothing for {READY_SECONDS_MAX:.0f} s")
        line = output.readline().strip()
        _, ready, place = line.partition("ready on ")
        if not ready:
            raise CoordinatorError(line + output.read() or "the coordinator ended without a word")
        self.port = int(place.split(",")[0].rpartition(":")[2])
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL, and the end of the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when it has not ended within 10 s."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
