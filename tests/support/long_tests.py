"""Units and simulations that `make test`, which has eight minutes, leaves to `make test-long`, which `.ci/run` runs
behind it: those that `long_tests.txt` names, for what they cost, marked `long`. The one has `-m "not long"`, the other
`-m long`, so that each test is in one of them.

A line of the list is the processor time of a test, of all of its parameters, in seconds, and its name, without
parameters or with those of one case; what it costs is no more than what somebody has measured once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

MARK = "long: make test leaves it to make test-long, because of what it costs (tests/support/long_tests.txt)"
LIST = Path(__file__).with_suffix(".txt")


def long_tests() -> dict[str, float]:
    """By name, what each costs."""
    lines = [line.split(maxsplit=1) for line in LIST.read_text("utf-8").splitlines() if line and line[0] != "#"]
    return {name: float(seconds) for seconds, name in lines}


def mark_long(items: Iterable[pytest.Item]) -> None:
    named = long_tests()
    for item in items:
        if item.nodeid in named or item.nodeid.partition("[")[0] in named:
            item.add_marker("long")
