"""Tests that `.ci/run` leaves to `.ci/nightly`: marked `night`, with what they have found so far.

`BARNABAS_BY_DAY=1` leaves them out, which only `.ci/run` sets: by hand and by night they run.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.long_tests import mark_long

MARK = "night(why): .ci/run, which has an hour, leaves it to .ci/nightly, because of what it costs and has found"
BY_DAY = os.environ.get("BARNABAS_BY_DAY", "0") == "1"


def by_night(why: str, *values: Any) -> list[Any]:
    """Values of one parameter that are left to the night; others stand beside them: `[0, *by_night("a minute", 1)]`."""
    return [pytest.param(value, marks=pytest.mark.night(why)) for value in values]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked, and counts it among what was deselected; a mark without a reason is an error. What is
    left to `make test-long` is marked for `-m`.
    """
    mark_long(items)
    left = []
    for item in items:
        mark = item.get_closest_marker("night")
        if mark is None:
            continue
        if len(mark.args) != 1:
            raise pytest.UsageError(f"{item.nodeid}: say why it is left to the night: @pytest.mark.night(why)")
        left.append(item)
    if BY_DAY and left:
        config.hook.pytest_deselected(items=left)
        marked = set(left)
        items[:] = [item for item in items if item not in marked]


def pytest_report_header() -> str | None:
    """The process that shows the tests does not collect them where others share them: it cannot say how many."""
    return "by day: without tests marked night (BARNABAS_BY_DAY)" if BY_DAY else None
