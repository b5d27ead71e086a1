"""The cluster under faults of every kind, one plan for each promise that somebody may be out to break."""

from __future__ import annotations

from collections import Counter

import pytest

from barnabas.testing.cluster_plans import (
    CONFIGS,
    DIRECTORIES,
    GROUPS,
    KEEPING,
    LATE,
    OFFICE,
    POWER,
    RETENTION,
    TOGETHER,
    Plan,
)
from barnabas.testing.cluster_simulation import simulate
from barnabas.testing.faults import FaultKind
from barnabas.testing.simulation import simulation_seeds

SEEDS = simulation_seeds(2)
SEEDS_TOGETHER = 2
GROUPS_OF_SEEDS = [SEEDS[start : start + SEEDS_TOGETHER] for start in range(0, len(SEEDS), SEEDS_TOGETHER)]
PLANS = (OFFICE, DIRECTORIES, CONFIGS, RETENTION, TOGETHER, GROUPS)
"""Besides those of `test_cluster`."""


@pytest.mark.parametrize("seeds", GROUPS_OF_SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_cluster_keeps_its_promises_under_each_plan(plan: Plan, seeds: list[int]) -> None:
    strikes: Counter[FaultKind] = Counter()
    for seed in seeds:
        report = simulate(seed, plan)
        assert report.findings == (), f"seed {seed}"
        assert report.acknowledged > 100, "a cluster that takes nothing has no faults either"
        strikes.update(report.strikes)
    if len(seeds) == SEEDS_TOGETHER and seeds is GROUPS_OF_SEEDS[0]:
        missing = [kind.value for kind in plan.per_minute if not strikes[kind]]
        assert not missing, "what does not strike proves nothing"


def test_every_kind_of_fault_is_in_a_plan() -> None:
    """And strikes there, as the tests of the plans count."""
    planned = {kind for plan in (POWER, KEEPING, LATE, *PLANS) for kind in plan.per_minute}
    assert planned == set(FaultKind) - {FaultKind.ZNODE_SPOILED}
