"""What is tried a second time, by small runs of pytest in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tools.second_try import DIRECTORY, ENV_VARIABLE, FAILURES_MAX, HEADING, LINES_MAX, keep

PROJECT = Path(__file__).parents[3]
SECONDS_MAX = 200.0
FIRST_TIME = """
import os, pathlib, pytest, signal, time

def first_time(name):
    path = pathlib.Path(__file__).with_name(f"{name}.seen")
    with path.open("a") as file:
        file.write(f"{os.getpid()} {os.environ.get('PYTEST_XDIST_WORKER')}\\n")
    return len(path.read_text().splitlines()) == 1
"""


class Runs:
    """The tool in a project of one file of tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p xdist.plugin\n")

    def command(self, tests: str, *arguments: str, variable: str = "1") -> subprocess.Popen[str]:
        (self._directory / "test_it.py").write_text(FIRST_TIME + tests)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {ENV_VARIABLE: variable, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(PROJECT)}
        return subprocess.Popen(
            [sys.executable, "-m", "tools.second_try", *arguments, "test_it.py"],
            cwd=self._directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __call__(self, tests: str, *arguments: str, variable: str = "1") -> tuple[int, str]:
        """Exit status and output."""
        with self.command(tests, *arguments, variable=variable) as process:
            output, _ = process.communicate(timeout=SECONDS_MAX)
        return process.returncode, output

    def seen(self, name: str) -> list[list[str]]:
        """By whom the function `first_time` was called with the name: process, and which of xdist's that was."""
        return [line.split() for line in (self._directory / f"{name}.seen").read_text().splitlines()]

    @property
    def kept(self) -> list[str]:
        return [path.read_text() for path in sorted((self._directory / DIRECTORY).glob("*"))]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


SHARED_AND_BROKEN = """
@pytest.fixture(scope="module")
def cluster():
    yield {"whole": not first_time("cluster")}

@pytest.mark.parametrize("what", ["a b", "x::y[1]", "-n"])
def test_once(cluster, what):
    print("said before")
    assert cluster["whole"], "the cluster is broken"

def test_well(): pass
"""


def test_what_passes_alone_in_a_new_process_passes_and_is_told_of(runs: Runs) -> None:
    status, output = runs(SHARED_AND_BROKEN, "-n", "2", "--dist", "loadfile", "-k", "once or well", "-q")
    assert status == 0, output
    first, second = runs.seen("cluster")
    assert first[1] in {"gw0", "gw1"}
    assert second[1] == "None"
    assert first[0] != second[0]
    assert f"{HEADING}. What the first try said: {DIRECTORY}/001.txt" in output
    (kept,) = runs.kept
    assert kept.startswith(f"=== {HEADING}:\n")
    assert kept.count("the cluster is broken") >= 3
    assert kept.count("\nsaid before") == 3
    for what in ("a b", "x::y[1]", "-n"):
        assert f"\ntest_it.py::test_once[{what}]\n" in kept


def test_a_failure_of_fixtures_is_tried_again_as_a_whole(runs: Runs) -> None:
    tests = """
@pytest.fixture
def torn():
    yield
    assert not first_time("torn")

@pytest.fixture
def made():
    assert not first_time("made")

def test_torn(torn): pass
def test_made(made): pass
"""
    status, output = runs(tests)
    assert status == 0, output
    (kept,) = runs.kept
    assert "--- in teardown" in kept
    assert "--- in setup" in kept


def failing(count: int) -> str:
    return f"""
@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    assert not first_time(f"test-{{number}}")
"""


def test_more_failures_than_may_be_by_chance_are_not_tried_again(runs: Runs) -> None:
    status, output = runs(failing(FAILURES_MAX + 1))
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "second try" not in output
    assert len(runs.seen("test-0")) == 1
    assert not runs.kept


@pytest.mark.parametrize("file", ["tests/simulation/test_found.py", "tests/fuzz/test_found.py"])
def test_what_is_deterministic_is_not_tried_again(runs: Runs, tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("def test_found(): assert False")
    status, output = runs("def test_by_chance(): assert not first_time('chance')", file)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "second try" not in output
    assert len(runs.seen("chance")) == 1


@pytest.mark.parametrize("arguments", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_a_property_is_not_tried_again(runs: Runs, arguments: list[str]) -> None:
    tests = """
from hypothesis import given, settings, strategies

@settings(deadline=None, max_examples=1, database=None)
@given(strategies.none())
def test_it(value): assert not first_time("it")
"""
    status, output = runs(tests, "-p", "_hypothesis_pytestplugin", *arguments)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "second try" not in output
    assert not runs.kept


CRASH = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("tests", "arguments", "expected"),
    [
        pytest.param(f"def test_it():\n    if first_time('it'): {CRASH}", [], 128 + signal.SIGKILL, id="process"),
        pytest.param(f"def test_it():\n    if first_time('it'): {CRASH}", ["-n1"], 1, id="process of xdist"),
        pytest.param("assert not first_time('it')", [], 2, id="collection"),
        pytest.param("def test_it(): assert not first_time('it')", ["--no-such"], 4, id="usage"),
        pytest.param("def test_it():\n    if first_time('it'): raise KeyboardInterrupt", [], 2, id="Ctrl-C"),
        pytest.param("def test_it(): assert not first_time('it')\ndef test_not_run(): pass", ["-x"], 1, id="stopped"),
    ],
)
def test_whatever_else_ends_a_run_ends_it(runs: Runs, tests: str, arguments: list[str], expected: int) -> None:
    status, output = runs(tests, *arguments)
    assert status == expected, output
    assert "second try" not in output
    assert not runs.kept


def test_what_a_plugin_raises_at_the_end_is_no_failed_test(runs: Runs, tmp_path: Path) -> None:
    """Python's exit status is that of failed tests then."""
    (tmp_path / "conftest.py").write_text("def pytest_unconfigure(): raise OSError('at the end')\n")
    status, output = runs("def test_it(): assert not first_time('it')")
    assert status == 1
    assert "at the end" in output
    assert len(runs.seen("it")) == 1


@pytest.mark.parametrize(
    "then",
    [
        pytest.param("assert False", id="fails"),
        pytest.param("pytest.skip('another day')", id="is skipped"),
        pytest.param(CRASH, id="crashes"),
    ],
)
def test_what_does_not_pass_the_second_time_fails(runs: Runs, then: str) -> None:
    status, output = runs(f"def test_it():\n    assert not first_time('it')\n    {then}\ndef test_well(): pass")
    assert status != 0
    assert "Not passed in the second try either" in output
    assert len(runs.seen("it")) == 2
    assert not runs.kept


def test_an_id_that_another_process_does_not_have_fails(runs: Runs) -> None:
    tests = "@pytest.mark.parametrize('number', [os.getpid()])\ndef test_it(number): assert not first_time('it')"
    status, output = runs(tests)
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert not runs.kept


@pytest.mark.parametrize("variable", ["", "0"])
def test_it_is_pytest_where_it_is_not_asked_for(runs: Runs, variable: str) -> None:
    status, output = runs(failing(1), variable=variable)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "second try" not in output
    assert len(runs.seen("test-0")) == 1


def test_runs_at_the_same_time_keep_what_each_of_them_has_seen(tmp_path: Path) -> None:
    (tmp_path / "002.txt").write_text("of a run whose neighbour's file is gone")
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda number: keep({f"test_{number}": "why"}, tmp_path), range(40)))
    assert len(set(paths)) == 40
    assert [f"test_{number}\nwhy" in path.read_text() for number, path in enumerate(paths)] == [True] * 40
    assert (tmp_path / "002.txt").read_text().startswith("of a run")


def test_each_run_has_a_file_and_long_texts_are_cut_off(runs: Runs) -> None:
    for turn in ("once", "twice"):
        lines = f'def test_{turn}():\n    print("line\\n" * {LINES_MAX * 3})\n    assert not first_time("{turn}")'
        assert runs(lines)[0] == 0
    first, second = runs.kept
    assert "test_once" in first
    assert "test_twice" in second
    assert first.count("line\n") == LINES_MAX
    assert f"({LINES_MAX * 2} lines before)" in first


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_tests_end_what_they_have_started_when_a_signal_comes(runs: Runs, tmp_path: Path, number: int) -> None:
    tests = """
@pytest.fixture
def server():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    time.sleep(0.5)
    pathlib.Path("stopped").touch()

def test_it(server):
    pathlib.Path("started").touch()
    time.sleep(300)
"""
    with runs.command(tests) as process:
        wait_until((tmp_path / "started").exists, "the test has begun", SECONDS_MAX)
        if number == signal.SIGINT:  # as a terminal does, to all
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        process.communicate(timeout=SECONDS_MAX)
    assert (tmp_path / "stopped").exists()
    assert process.returncode == pytest.ExitCode.INTERRUPTED
