"""Runs kazoo's own test suite against one server of ours and holds the outcome against the list of exceptions.

kazoo's wheel carries the suite of its source distribution, file for file, so the installed one is what runs.
`python -m tests.interop.kazoo_suite.runner [embedded|zookeeper]` runs it by hand.
"""

from __future__ import annotations

import enum
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.kazoo_suite.plugin import SERVER_VARIABLE
from tests.support.processes import tail

KAZOO_VERSION = "2.11.0"
_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
EXCEPTIONS_PATH = _HERE / "exceptions.txt"
_SHARDS = 3
_SHARD_TIMEOUT_SECONDS = 600


class Outcome(enum.Enum):
    """What became of one test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of kazoo's."""

    __test__ = False

    outcome: Outcome
    detail: str


class SuiteUnusable(RuntimeError):
    """kazoo's suite could not be run at all, with the reason."""


def run_suite(server: str) -> dict[str, TestResult]:
    """Runs the whole suite against `server` (`embedded` or `zookeeper`) and returns the results by test.

    The test files are spread over a few processes, each with a server of its own, because most tests wait.
    What failed is run once more, alone: kazoo's tests have fixed pauses that a busy machine may not keep.
    """
    files = _test_files()
    with tempfile.TemporaryDirectory(prefix="kazoo-suite-") as work:
        shards = [_Shard(Path(work) / str(index), server, shard) for index, shard in enumerate(_spread(files, _SHARDS))]
        try:
            results = {name: result for shard in shards for name, result in shard.results().items()}
            failed = [name for name, result in results.items() if result.outcome is Outcome.FAILED]
            again = [name for name in failed if name not in read_exceptions()]
            if again:
                print(f"once more, alone: {', '.join(again)}")
                retried = _Shard(Path(work) / "again", server, [_node_id(files, name) for name in again])
                shards.append(retried)
                results |= retried.results()
        finally:
            for shard in shards:
                shard.end()
    return results


def read_exceptions() -> dict[str, str]:
    """Test -> reason, from exceptions.txt."""
    found: dict[str, str] = {}
    for line in EXCEPTIONS_PATH.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, separator, reason = line.partition(": ")
        if not separator or not reason or name in found:
            raise ValueError(f"{EXCEPTIONS_PATH.name}: expected `test: reason`, once for each test, not: {line}")
        found[name] = reason
    return found


def disagreements(results: Mapping[str, TestResult], exceptions: Iterable[str]) -> list[str]:
    """What is wrong with a run, one line (or more, with a failure's end) each; empty when all is as the list says."""
    listed = set(exceptions)
    wrong = [
        f"{name}: {result.outcome.value}, and is not listed as an exception\n{result.detail}"
        for name, result in sorted(results.items())
        if result.outcome is not Outcome.PASSED and name not in listed
    ]
    wrong += [f"{name}: listed as an exception, and passes" for name in sorted(listed) if _passes(results, name)]
    wrong += [f"{name}: listed as an exception, and does not exist" for name in sorted(listed - results.keys())]
    return wrong


def parse_report(report: str) -> dict[str, TestResult]:
    """The results in a JUnit XML report, by `module.Class.test`."""
    results: dict[str, TestResult] = {}
    for case in ET.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('kazoo.tests.')}.{case.get('name')}"
        outcome, detail = Outcome.PASSED, ""
        for child in case:
            if child.tag in {"failure", "error"}:
                outcome, detail = Outcome.FAILED, (child.text or "")[-3000:]
            elif child.tag == "skipped" and outcome is Outcome.PASSED:
                outcome, detail = Outcome.SKIPPED, child.get("message", "")
        earlier = results.get(name)
        # A test whose tear-down fails has a second entry; the worse one counts.
        if earlier is None or earlier.outcome is not Outcome.FAILED:
            results[name] = TestResult(outcome, detail)
    return results


class _Shard:
    """One pytest process over some of kazoo's test files."""

    def __init__(self, directory: Path, server: str, targets: Sequence[str | Path]) -> None:
        directory.mkdir()
        self._report = directory / "report.xml"
        self._log = directory / "pytest.log"
        environment = {
            name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")
        }
        environment |= {SERVER_VARIABLE: server, "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(_HERE / "pytest.ini"),
            "-p",
            "tests.interop.kazoo_suite.plugin",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--rootdir={_kazoo_parent()}", "-q", f"--junit-xml={self._report}", *map(str, targets)],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def results(self) -> dict[str, TestResult]:
        try:
            status = self._process.wait(_SHARD_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise SuiteUnusable(f"kazoo's suite: not within {_SHARD_TIMEOUT_SECONDS} s\n{tail(self._log)}") from error
        if status not in {0, 1} or not self._report.exists():
            raise SuiteUnusable(f"kazoo's suite: pytest ended with {status}\n{tail(self._log)}")
        return parse_report(self._report.read_text())

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10.0)


def _kazoo_parent() -> Path:
    """The directory that kazoo is installed in; test ids are relative to it."""
    import kazoo

    return Path(kazoo.__file__).parents[1]


def _test_files() -> list[Path]:
    installed = importlib.metadata.version("kazoo")
    if installed != KAZOO_VERSION:
        raise SuiteUnusable(f"the exceptions are those of kazoo {KAZOO_VERSION}, and {installed} is installed")
    files = sorted((_kazoo_parent() / "kazoo" / "tests").glob("test_*.py"))
    if not files:
        raise SuiteUnusable(f"kazoo {installed} is installed without its tests; install it with pip from PyPI")
    return files


def _spread(files: Iterable[Path], count: int) -> list[list[Path]]:
    """The files in `count` groups of about the same number of bytes."""
    groups: list[list[Path]] = [[] for _ in range(count)]
    sizes_bytes = [0] * count
    for file in sorted(files, key=lambda file: file.stat().st_size, reverse=True):
        smallest = sizes_bytes.index(min(sizes_bytes))
        groups[smallest].append(file)
        sizes_bytes[smallest] += file.stat().st_size
    return groups


def _passes(results: Mapping[str, TestResult], name: str) -> bool:
    return name in results and results[name].outcome is Outcome.PASSED


def _node_id(files: Iterable[Path], name: str) -> str:
    module, _, rest = name.partition(".")
    file = next(file for file in files if file.stem == module)
    return f"{file}::{rest.replace('.', '::')}"


def _main() -> int:
    server = sys.argv[1] if len(sys.argv) > 1 else "embedded"
    if server not in {"embedded", "zookeeper"}:
        print("usage: python -m tests.interop.kazoo_suite.runner [embedded|zookeeper]", file=sys.stderr)
        return 2
    results = run_suite(server)
    wrong = disagreements(results, read_exceptions())
    passed = sum(result.outcome is Outcome.PASSED for result in results.values())
    print("\n".join([*wrong, f"{passed} of {len(results)} tests passed, {len(wrong)} not as listed in exceptions.txt"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
