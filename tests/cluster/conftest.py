"""How tests of real processes share processors: with `-n 2 --dist loadgroup` one waits while another works."""

from __future__ import annotations

from pathlib import Path

import pytest

# Each test of these starts what it needs, so that any process may take any of them.
INDEPENDENT = frozenset(
    {
        "test_broker_failures",
        "test_controller_move",
        "test_coordinator_kill",
        "test_log_directory_failures",
        "test_supervisor",
        "test_unclean_election",
        "test_up",
    }
)
_DIRECTORY = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of every other module share its cluster, and stay in one process for that."""
    for item in items:
        if item.path.parent == _DIRECTORY and item.path.stem not in INDEPENDENT:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
