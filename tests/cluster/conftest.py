"""How tests of real processes share processors: with `-n 2` one waits while another works."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support.longest_first import longest_first

# Of `make test-cluster`, with --no-loadscope-reorder.
LONGEST = (
    "test_kafka_cluster_processes",
    "test_large_requests",
    "test_controller_kill",
    "test_broker_failures",
    "test_tiered_storage",
    "test_documented_servers",
    "test_fuzz",
    "test_hostile_connections",
    "test_documented_output",
    "test_log_directory_failures",
)
# Each test of these starts what it needs, so that any process may take any of them.
INDEPENDENT = frozenset(
    {
        "test_broker_failures",
        "test_controller_move",
        "test_coordinator_kill",
        "test_isr_by_znode",
        "test_log_directory_failures",
        "test_preferred_leaders",
        "test_stalled_directory",
        "test_supervisor",
        "test_unclean_election",
        "test_up",
        "test_up_failures",
    }
)


class ClustersShared(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of every other module share its cluster, and stay in one process for that. Groups by mark
    (`--dist loadgroup`) did that until pytest 9, whose names of tests xdist 3.8 cannot change.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return nodeid if PurePosixPath(file).stem in INDEPENDENT else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items, LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ClustersShared:
    return ClustersShared(config, log)
