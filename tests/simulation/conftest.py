"""Fixtures of the simulations, and the order in which processes share those of the plans."""

from __future__ import annotations

import os

import pytest

from tests.simulation.kept_runs import KeptRuns
from tests.support.longest_first import longest_first

LONGEST = (
    *("credentials", "moves", "elections", "near", "connections", "transactions", "compaction", "tiered", "tokens"),
    *("secured", "outbox", "lives", "watermarks", "at-once", "flushed", "renewed", "throttles"),
)
"""The plans of which a run takes longest, as docs/simulation.md has them."""


@pytest.fixture(scope="session")
def kept_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KeptRuns:
    """One for all processes of this pytest run."""
    base = tmp_path_factory.getbasetemp()
    # Each process of pytest-xdist has a directory of its own in that of the pytest run.
    directory = (base.parent if hasattr(request.config, "workerinput") else base) / "kept-runs"
    directory.mkdir(exist_ok=True)
    return KeptRuns(directory)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there are simulations alone, as in `make simulate`, the processes of `--dist worksteal` begin with the
    longest: each has a part of the tests, one behind the other, and takes from the ends of others' parts.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1)
    here = os.path.dirname(__file__)
    if processes > 1 and all(os.path.dirname(item.path) == here for item in items):
        longest_first(items, LONGEST, plan_of)
        items[:] = [item for first in range(processes) for item in items[first::processes]]


def plan_of(item: pytest.Item) -> str:
    """The name of the plan that a test plays with all of its users; else nothing."""
    plan = item.callspec.params.get("plan") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    return str(getattr(plan, "name", ""))
