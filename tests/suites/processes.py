"""The processes of suites: each with an end in time, and its output in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

BOOTSTRAP_VARIABLE = "BARNABAS_SUITE_BOOTSTRAP"
PORT_VARIABLE = "BARNABAS_SUITE_PORT"
"""With the name of a transport behind it: where a broker speaks that."""
KEYS_VARIABLE = "BARNABAS_SUITE_KEYS"
"""A directory with what clients trust."""
WANTED_VARIABLE = "BARNABAS_SUITE_TESTS"
"""A file with the names of the tests to run, one a line; without it all are."""


def run_bounded(
    command: Sequence[str | Path],
    directory: Path,
    log: Path,
    *,
    seconds_max: float,
    environment: Mapping[str, str],
) -> int | None:
    """The exit status; None when it was ended after `seconds_max`, with everything that it had started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def plain_environment() -> dict[str, str]:
    """This process's variables without those that test runners look at."""
    return {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
