"""Fixtures of the commands that ask a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.command_runs import Done, run_barnabas
from tests.unit.cli.fake_cluster import FakeCluster, fake_cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """What the commands talk to."""
    with fake_cluster(monkeypatch) as fake:
        yield fake


@pytest.fixture
def barnabas() -> Callable[..., Done]:
    """Runs `barnabas` with these arguments."""
    return run_barnabas
