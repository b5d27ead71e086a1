"""Fixtures of the simulations."""

from __future__ import annotations

import pytest

from tests.simulation.kept_runs import KeptRuns


@pytest.fixture(scope="session")
def kept_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KeptRuns:
    """One for all processes of this pytest run."""
    base = tmp_path_factory.getbasetemp()
    # Each process of pytest-xdist has a directory of its own in that of the pytest run.
    directory = (base.parent if hasattr(request.config, "workerinput") else base) / "kept-runs"
    directory.mkdir(exist_ok=True)
    return KeptRuns(directory)
