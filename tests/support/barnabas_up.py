"""`barnabas up` as a process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import tail

SOURCE = Path(__file__).resolve().parents[2] / "src"
READY_SECONDS = 60.0
STOP_SECONDS = 45.0


class Up:
    """One `barnabas up --json`."""

    def __init__(self, directory: Path, brokers: int, *arguments: str, wait: bool = True) -> None:
        self.directory = directory
        self._errors = directory.parent / f"{directory.name}.err"
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "barnabas.cli", "up", "--json"),
                    *("--brokers", str(brokers), "--data", str(directory), "--port", "0"),
                    *arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                start_new_session=True,
            )
        if wait:
            self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            self.kill()
            raise AssertionError(f"not ready: {tail(self._errors)}")
        self.said: dict[str, Any] = json.loads(line)

    @property
    def bootstrap_servers(self) -> str:
        return str(self.said["bootstrap_servers"])

    @property
    def ports(self) -> list[int]:
        return [int(address.rpartition(":")[2]) for address in self.bootstrap_servers.split(",")]

    @property
    def process_ids(self) -> list[int]:
        """Of the coordinator and the brokers."""
        return [self.said["coordinator"]["process_id"], *(broker["process_id"] for broker in self.said["brokers"])]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self._close()

    def kill(self) -> None:
        """SIGKILL to the supervisor alone: its processes must end by themselves."""
        self.process.kill()
        self.process.wait(10)
        self._close()

    def _close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def errors(self) -> str:
        return tail(self._errors)


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
