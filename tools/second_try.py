"""A second try for tests whose outcome may hang on real time: `python -m tools.second_try [ARGUMENTS OF PYTEST]`.

This is pytest, unless BARNABAS_SECOND_TRY is 1, which `.ci/run` and `.ci/nightly` set. Then, where at most three tests
failed, these are run once more, alone: in a new process, one after the other. When each of them passes, the exit status
is 0, and a file in `build/second-try` keeps what the first failures said: each is a fault to be traced. More failures,
and whatever else ends a run (a crash, a collection that failed, a usage error, Ctrl-C), keep pytest's exit status, as
does a test that does not pass in the second try, and a failure of what is deterministic: a simulation, a corpus of the
fuzzer, a property that Hypothesis tries.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pytest

ENV_VARIABLE: Final = "BARNABAS_SECOND_TRY"
FAILURES_MAX: Final = 3
DIRECTORY: Final = Path("build") / "second-try"
"""From where the tool is run: the project. One file for each run that passed in a second try."""
HEADING: Final = "Failed once and passed when tried again: each is a fault to be traced"
DETERMINISTIC: Final = ("tests/simulation/", "tests/fuzz/")
"""Where tests have no time, no processes and no randomness but a seed: what fails once there is a finding."""
DETERMINISTIC_MARK: Final = "hypothesis"
"""Hypothesis's own mark of its tests."""
LINES_MAX: Final = 200
"""Of the traceback of a failure, and of each text that was captured; the last ones."""
_RECORD: Final = "--record"
_PHASES: Final = ("setup", "call", "teardown")


@dataclass(slots=True)
class Outcome:
    """What became of one run of pytest, from its start to its end."""

    paths: list[str] = field(default_factory=list)
    """Those of the arguments that are no options, nor values of options."""
    failures: dict[str, str] = field(default_factory=dict)
    """By the test's id, what its first failure says; the texts of the first tests only."""
    passed: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Those of the failures that are of deterministic tests."""
    is_whole: bool = True
    """Whether every test was run to its end: no process crashed, and nothing stopped the others."""


class Recorder:
    """A plugin of pytest. Given as an object it is in the process that reports, not in those of xdist."""

    def __init__(self) -> None:
        self.outcome = Outcome()

    def pytest_configure(self, config: pytest.Config) -> None:
        self.outcome.paths = list(config.args)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in _PHASES:  # xdist says so of a test whose process crashed
            self.outcome.is_whole = False
        if report.failed:
            is_shown = len(self.outcome.failures) <= FAILURES_MAX
            self.outcome.failures.setdefault(report.nodeid, _text(report) if is_shown else "")
            if report.nodeid.startswith(DETERMINISTIC) or DETERMINISTIC_MARK in report.keywords:
                self.outcome.found.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.outcome.passed.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.shouldfail or session.shouldstop:
            self.outcome.is_whole = False


def _text(report: pytest.TestReport) -> str:
    parts = [(f"in {report.when}", report.longreprtext), *report.sections]
    return "\n".join(f"--- {name}\n{_end_of(text)}" for name, text in parts)


def _end_of(text: str) -> str:
    lines = text.rstrip().splitlines()
    left_out = len(lines) - LINES_MAX
    return "\n".join([f"({left_out} lines before)", *lines[left_out:]] if left_out > 0 else lines)


def record(path: Path, arguments: Sequence[str]) -> int:
    """Runs pytest in this process. The outcome is written when all of it has ended well, its plugins too."""
    recorder = Recorder()
    status = int(pytest.main([*arguments], plugins=[recorder]))
    path.write_text(json.dumps(asdict(recorder.outcome)), encoding="utf-8")
    return status


def run(arguments: Sequence[str]) -> tuple[int, Outcome]:
    """Exit status and outcome of pytest in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "outcome.json"
        command = [sys.executable, "-m", "tools.second_try", _RECORD, str(path), *arguments]
        with subprocess.Popen(command) as child, _signals_left_to(child):
            status = child.wait()
        if not path.exists():
            return (status if status >= 0 else 128 - status) or 1, Outcome(is_whole=False)
        return status, Outcome(**json.loads(path.read_text(encoding="utf-8")))


@contextlib.contextmanager
def _signals_left_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """The child ends its servers, and this process waits for that. A terminal sends Ctrl-C to both."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: child.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def may_be_tried_again(status: int, outcome: Outcome) -> bool:
    by_chance = not outcome.found and 0 < len(outcome.failures) <= FAILURES_MAX
    return status == pytest.ExitCode.TESTS_FAILED and outcome.is_whole and by_chance


def again(arguments: Sequence[str], outcome: Outcome) -> list[str]:
    """The arguments of the second try: options as before, the tests by name, no processes of xdist."""
    options = [argument for argument in arguments if argument not in outcome.paths]
    return [*options, "-n", "0", *outcome.failures]


def keep(failures: dict[str, str], directory: Path = DIRECTORY) -> Path:
    """The new file, of what has passed in a second try."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = "\n".join(f"\n{test}\n{text}" for test, text in failures.items())
    for number in itertools.count(len(list(directory.iterdir())) + 1):
        path = directory / f"{number:03}.txt"
        # Another run may take the same number at the same time.
        with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8", errors="backslashreplace") as kept:
            kept.write(f"=== {HEADING}:\n{texts}\n")
            return path
    raise AssertionError


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == [_RECORD]:
        return record(Path(arguments[1]), arguments[2:])
    if os.environ.get(ENV_VARIABLE) != "1":
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])
    status, first = run(arguments)
    if not may_be_tried_again(status, first):
        return status
    print(f"\n=== A second try, alone, of {', '.join(first.failures)}", flush=True)
    status, second = run(again(arguments, first))
    if status == 0 and second.passed and first.failures.keys() <= set(second.passed):
        print(f"=== {HEADING}. What the first try said: {keep(first.failures)}", flush=True)
        return 0
    print("=== Not passed in the second try either", flush=True)
    return status or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
