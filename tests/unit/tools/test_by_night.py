"""What is left to the night, by small runs of pytest in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
MARKED = re.compile(r"by_night\(|\bmark\.night\(")
RUN_BY = {
    "clients": "make test-clients",
    "cluster": "make test-cluster",
    "interop": "make test-interop",
    "simulation": "make simulate",
    "spark": "make test-spark",
    "unit": "make test-pythons",
}
"""By suite: what of the night has all of its tests."""
CONFTEST = """
from tests.support.by_night import MARK, pytest_collection_modifyitems, pytest_report_header

def pytest_configure(config):
    config.addinivalue_line("markers", MARK)
"""
TESTS = """
import pytest
from tests.support.by_night import by_night

def test_by_day():
    pass

@pytest.mark.night("a minute, and has found nothing")
def test_whole():
    pass

@pytest.mark.parametrize("case", ["quick", pytest.param("slow", marks=pytest.mark.night("a minute"))])
def test_case(case):
    pass

@pytest.mark.parametrize("value", ["first", *by_night("a minute for each", "second", "third")])
def test_value(value):
    pass
"""


def ran(directory: Path, by_day: str, tests: str = TESTS) -> tuple[int, str]:
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --strict-markers -rA\n")
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"BARNABAS_BY_DAY": by_day, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_it.py"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("by_day", "left_out"), [("1", True), ("0", False)])
def test_what_is_marked_is_left_out_by_day_only(tmp_path: Path, by_day: str, left_out: bool) -> None:
    status, output = ran(tmp_path, by_day)
    assert status == 0, output
    assert ("by day: without tests marked night" in output, "4 deselected" in output) == (left_out, left_out)
    for name, marked in [
        ("test_by_day", False),
        ("test_whole", True),
        ("test_case[quick]", False),
        ("test_case[slow]", True),
        ("test_value[first]", False),
        ("test_value[second]", True),
        ("test_value[third]", True),
    ]:
        assert (f"PASSED test_it.py::{name}" in output) == (not (marked and left_out)), output


@pytest.mark.parametrize("by_day", ["0", "1"])
def test_a_mark_says_why(tmp_path: Path, by_day: str) -> None:
    status, output = ran(tmp_path, by_day, TESTS.replace('night("a minute, and has found nothing")', "night"))
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_whole: say why it is left to the night" in output


def marked_files() -> list[Path]:
    tests = PROJECT / "tests"
    return [
        path.relative_to(tests)
        for path in tests.rglob("*.py")
        if path.parent.name != "support" and path.name != Path(__file__).name and MARKED.search(path.read_text())
    ]


def files_of_test_cluster() -> set[str]:
    """Those that the Makefile names for `test-cluster`, which `make test` leaves out."""
    makefile = (PROJECT / "Makefile").read_text().replace("\\\n", " ")
    lists = re.findall(r"^(?:FAILURES|WAITS) := \$\(addprefix tests/cluster/test_,([^)]*)\)", makefile, re.MULTILINE)
    assert len(lists) == 2
    return {f"test_{name}" for each in lists for name in each.split()}


def test_what_is_left_to_the_night_is_run_by_it() -> None:
    night = (PROJECT / ".ci" / "nightly").read_text()
    suites = {path.parts[0] for path in marked_files()}
    assert len(suites) > 3
    for suite in suites:
        assert re.search(rf"^step .*\b{RUN_BY[suite]}\b", night, re.MULTILINE), (
            f"tests/{suite} is not run by .ci/nightly"
        )


def test_a_test_of_processes_that_is_left_to_the_night_is_in_a_file_of_make_test_cluster() -> None:
    """The night does not run `make test`, which has the others."""
    named = files_of_test_cluster()
    assert {path.name for path in marked_files() if path.parts[0] == "cluster"} <= named
    assert {name for name in named if not (PROJECT / "tests" / "cluster" / name).is_file()} == set()
