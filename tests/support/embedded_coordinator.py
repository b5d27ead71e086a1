"""Barnabas' embedded coordinator as a process of its own, started by its command line as a user would."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import ServerProcess
from tests.support.waiting import wait_until
from tests.support.zookeeper import four_letter_word

READY_TIMEOUT_SECONDS = 60.0
_SOURCE_DIRECTORY = Path(__file__).resolve().parents[2] / "src"
COMMAND = (sys.executable, "-c", "from barnabas.cli.main import main; main()", "coordinator")


class EmbeddedCoordinator:
    """One `barnabas coordinator`. Its data stay in `directory` from start to start."""

    def __init__(self, directory: Path, *, port: int | None = None, options: Sequence[str] = ()) -> None:
        self.directory = directory
        self.port = free_port() if port is None else port
        directory.mkdir(parents=True, exist_ok=True)
        self.process = ServerProcess(
            "coordinator",
            [*COMMAND, "--data", directory / "data", "--port", str(self.port), *options],
            directory / "coordinator.log",
            environment={"PYTHONPATH": str(_SOURCE_DIRECTORY)},
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> None:
        """Starts it, and waits until it answers `ruok` unless `wait` is False."""
        self.process.start()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        wait_until(self._serves, "the coordinator serves", timeout_seconds, self.process.log_tail)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL; `start` brings it back on the same port with what it had written."""
        self.process.kill()

    def _serves(self) -> bool:
        if not self.process.is_running:
            raise RuntimeError(f"the coordinator ended with {self.process.exit_status}\n{self.process.log_tail()}")
        return four_letter_word(self.port, "ruok", timeout_seconds=1.0).strip() == "imok"


@contextlib.contextmanager
def embedded_coordinator(directory: Path, *, options: Sequence[str] = ()) -> Iterator[EmbeddedCoordinator]:
    """One coordinator that serves on 127.0.0.1, stopped at the end. `options` are further arguments of the command."""
    server = EmbeddedCoordinator(directory, options=options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
