"""`barnabas pipeline run` as a process of its own, read line by line, for tests of whole runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import wait_until

RUN_SECONDS_MAX = 240.0

# The command, whose first batches are as ever, and for a later one a job of Spark does not come to its end: what is
# done to the run then is done in the middle of that batch, however fast or slow the machine is.
_HELD_IN_BATCH = """
from barnabas.cli.entry import run
from barnabas.pipelines import parquet_sink

write = parquet_sink.write_hidden


def write_or_wait(frame, directory, batch_id, *more):
    if batch_id >= {first}:
        frame.sparkSession.sql("SELECT java_method('java.lang.Thread', 'sleep', 3600000L) FROM range(1)").collect()
    return write(frame, directory, batch_id, *more)


parquet_sink.write_hidden = write_or_wait
run()
"""
# The command, which gets to know that Java is there only when it has been told to stop.
HELD_AT_START = (
    "-c",
    """
from barnabas.cli.entry import run
from barnabas.pipelines import jvm

find = jvm._gateway


def find_when_told_to_stop(process, options, stop):
    stop.wait()
    return find(process, options, stop)


jvm._gateway = find_when_told_to_stop
run()
""",
)


def held_in_batch(first: int) -> tuple[str, str]:
    """A program for `PipelineProcess`: no batch from this one on is written into a Parquet table."""
    return "-c", _HELD_IN_BATCH.format(first=first)


class PipelineProcess:
    """One run with --json; standard error goes to a file beside the pipeline."""

    def __init__(
        self,
        path: Path,
        bootstrap_servers: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "barnabas.cli"),
        seconds_max: float = RUN_SECONDS_MAX,
    ) -> None:
        """`program` is how Python starts the command."""
        self._errors_path = path.with_suffix(".stderr")
        command = [sys.executable, "-P", *program, "pipeline", "run", str(path), "--json"]
        with self._errors_path.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, "--bootstrap-server", bootstrap_servers, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )
        # A run that hangs ends its test by what it has said so far.
        self._watch = threading.Timer(seconds_max, self._process.kill)
        self._watch.daemon = True
        self._watch.start()

    def lines(self) -> Iterator[dict[str, Any]]:
        """The documents that it prints, until it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def batches(self, count: int) -> list[dict[str, Any]]:
        """The next finished batches; fails when the run ends before."""
        found = []
        for line in self.lines():
            found.append(line)
            if len(found) == count:
                return found
        raise AssertionError(f"the run ended with status {self._process.wait()}: {self.errors()}")

    def kill(self) -> None:
        """kill -9 of the Python process alone."""
        self._process.kill()
        self.wait()

    def terminate(self) -> None:
        """SIGTERM to the Python process alone."""
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT to the Python process alone."""
        self._process.send_signal(signal.SIGINT)

    def until_said(self, text: str) -> None:
        """Returns when it has written that to standard error; fails when it ends before."""
        wait_until(lambda: text in self.errors() or self._process.poll() is not None, text, RUN_SECONDS_MAX)
        assert text in self.errors(), f"status {self._process.poll()}: {self.errors()}"

    def wait(self) -> int:
        """The exit status."""
        status = self._process.wait(RUN_SECONDS_MAX)
        self._watch.cancel()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status

    def finish(self) -> list[dict[str, Any]]:
        """The documents up to the end of a run that succeeds."""
        found = list(self.lines())
        status = self.wait()
        assert status == 0, f"status {status}: {self.errors()}"
        return found

    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return self._errors_path.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.wait()


def java_processes(state_directory: Path) -> list[int]:
    """Java processes, still there, that were started for a run with this state."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                status = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if os.fsencode(str(state_directory)) in command and b"SparkSubmit" in command and status != "Z":
                found.append(int(entry.name))
    return found
