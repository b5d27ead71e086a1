"""What `make test` leaves to `make test-long`: named once, there, and run by `.ci/run`."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import long_tests
from tests.support.long_tests import LIST, mark_long

PROJECT = Path(__file__).parents[3]
SUITES = ("tests/simulation", "tests/fuzz", "tests/unit")
NAMED = long_tests.long_tests()


@functools.cache
def makefile() -> str:
    return (PROJECT / "Makefile").read_text("utf-8")


def recipe(target: str) -> str:
    found = re.search(rf"^{target}:[^\n=]*\n((?:\t[^\n]*\n)+)", makefile(), re.MULTILINE)
    assert found, target
    return found[1]


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """Of functions, classes, and methods with their classes."""
    found = set()
    for node in ast.parse((PROJECT / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found.update(f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef))
    return frozenset(found)


def test_whatever_is_named_is_there_and_is_a_unit_or_a_simulation() -> None:
    assert len(NAMED) > 100
    for name in NAMED:
        file, _, test = name.partition("::")
        assert file.startswith(tuple(f"{suite}/" for suite in SUITES)), name
        assert (PROJECT / file).is_file(), name
        assert test.partition("[")[0] in names_in(file), name


def test_each_is_named_once() -> None:
    lines = [line for line in LIST.read_text("utf-8").splitlines() if line and line[0] != "#"]
    times = Counter(line.split(maxsplit=1)[1] for line in lines)
    assert {name: count for name, count in times.items() if count > 1} == {}
    assert [name for name in times if "[" in name and name.partition("[")[0] in times] == [], "with all of its cases"


def test_each_unit_and_simulation_is_run_by_make_test_or_by_make_test_long() -> None:
    suites = " ".join(SUITES)
    assert re.search(rf' -m "not long" {suites}\n', recipe("test"))
    assert re.search(r" -m long [^\n]*\$\(LONG\)\n", recipe("test-long"))
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
    dry = subprocess.run(
        ["make", "--dry-run", "test-long"], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    )
    (command,) = [line for line in dry.stdout.splitlines() if " -m long " in line]
    assert {word for word in command.split() if word.startswith("tests/")} == {name.split("::")[0] for name in NAMED}


def test_ci_runs_both() -> None:
    run = (PROJECT / ".ci" / "run").read_text("utf-8")
    assert re.search(r"^make test$", run, re.MULTILINE)
    assert re.search(r"^make test-long SIMULATES_NEXT=1$", run, re.MULTILINE)
    assert re.search(r"^make simulate .*SIMULATIONS=\"\$more\"$", run, re.MULTILINE), "which has what comes next"


@dataclass
class Item:
    nodeid: str
    marks: list[str] = field(default_factory=list)

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def test_what_is_named_is_marked_whole_or_by_its_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long_tests.txt"
    path.write_text("# why\n\n1.5 tests/test_a.py::test_all\n0.5 tests/test_a.py::test_one[the other]\n", "utf-8")
    monkeypatch.setattr(long_tests, "LIST", path)
    items: Any = [
        Item(f"tests/test_a.py::{name}")
        for name in ("test_all", "test_all[1]", "test_all_others", "test_one[one]", "test_one[the other]")
    ]
    mark_long(items)
    assert [item.marks for item in items] == [["long"], ["long"], [], [], ["long"]]


@pytest.mark.parametrize(("expression", "count"), [("long", "1/2"), ("not long", "1/2")])
def test_pytest_selects_by_the_mark(expression: str, count: str) -> None:
    """It is there before pytest looks."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-m",
            expression,
            "tests/simulation/test_near_replicas.py",
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{count} tests collected" in done.stdout, done.stdout + done.stderr
