"""What is left to the night, by small runs of pytest in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
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
