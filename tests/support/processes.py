"""Servers as child processes.

Each has its own process group and its log in a file, and is ended by its id whatever happens to the tests.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import long_turns
from tests.support.waiting import wait_until

LOG_TAIL_LINES = 40
SUSPENSION_SECONDS = 60.0
END_SECONDS = 30.0

# Ends the process groups that are still alive when the tests are gone, even when they were killed with SIGKILL: its
# standard input then reaches its end.
_REAPER_PROGRAM = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class _Reaper:
    """One watching child per test process, started with the first server."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def tell(self, sign: str, group: int) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-c", _REAPER_PROGRAM],
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                atexit.register(self.end)
            if self._process.stdin is not None:
                self._process.stdin.write(f"{sign}{group}\n")
                self._process.stdin.flush()

    def end(self) -> None:
        """In order, with the tests: a child that is left with its pipe is a warning, printed amid what pytest says."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=END_SECONDS)


_reaper = _Reaper()
_running: list[ServerProcess] = []


class ServerProcess:
    """A server under test: `start`, `stop` (SIGTERM), `kill` (SIGKILL), and `start` again with the same command.

    Standard output and error are appended to `log_path`. Not thread-safe; every wait is bounded.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        *,
        own_log_paths: Sequence[Path] = (),
    ) -> None:
        """`own_log_paths` are files that the server itself writes its log to."""
        self.name = name
        self.command = [str(argument) for argument in command]
        self.log_path = log_path
        self.log_paths = (log_path, *own_log_paths)
        self._environment = None if environment is None else {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        """The id of the running process; `RuntimeError` when it does not run."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs or before it was started; negative for a signal."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Starts it and returns at once; waiting for readiness is the caller's, who knows the protocol."""
        if self.is_running:
            raise RuntimeError(f"{self.name} runs already (process {self.process_id})")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._environment,
            )
        _reaper.tell("+", self._process.pid)
        if self not in _running:
            _running.append(self)
        for path in self.log_paths:
            long_turns.follow(self.name, path)

    def kill(self) -> None:
        """SIGKILL to the whole process group, as a crash would; returns when it is gone. No-op when it does not run."""
        self._end(signal.SIGKILL, 60.0)

    def stop(self, timeout_seconds: float = 60.0) -> int:
        """SIGTERM, then SIGKILL after `timeout_seconds`.

        Returns the exit status (negative for a signal); 0 when it never ran.
        """
        return self._end(signal.SIGTERM, timeout_seconds)

    def suspend(self) -> None:
        """SIGSTOP: the process keeps its connections and its files and does nothing until `resume`.

        Returns when all its threads stand: on a loaded machine some run on for milliseconds after the signal was sent,
        enough to win an election.
        """
        os.killpg(self.process_id, signal.SIGSTOP)
        wait_until(self._stands_or_is_gone, f"{self.name} stands", SUSPENSION_SECONDS)

    def resume(self) -> None:
        """SIGCONT after `suspend`."""
        os.killpg(self.process_id, signal.SIGCONT)

    def _stands_or_is_gone(self) -> bool:
        """Looks only: neither the stop nor an exit is taken from who waits for it."""
        looked = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process_id, looked) is not None

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the log, under a headline with the name and the path."""
        return f"--- {self.name}: end of {self.log_path}\n{tail(self.log_path, lines)}"

    def _end(self, first_signal: signal.Signals, timeout_seconds: float) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            os.killpg(process.pid, first_signal)
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60.0)
        self._kill_rest_of_group(process.pid)
        _reaper.tell("-", process.pid)
        if self in _running:
            _running.remove(self)
        return process.returncode

    @staticmethod
    def _kill_rest_of_group(group: int) -> None:
        """A server may have children (a cleaner, a compiler); they do not outlive it."""
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return


def running_servers() -> tuple[ServerProcess, ...]:
    """The servers started and not yet ended, in order of their start: what a failing test shows the logs of."""
    return tuple(_running)


def tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last `lines` lines of a text file; an empty string when there is no such file."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - 400 * lines))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def resident_memory_bytes(process_id: int) -> int:
    """Resident memory of one process, from /proc (Linux)."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
