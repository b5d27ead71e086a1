"""The embedded coordinator and a real ZooKeeper answer the same random operations alike.

Results, stats (zxids by rank, times left out), errors and watch events in order, from three sessions, some requests
pipelined. `BARNABAS_DIFFERENTIAL_SEEDS=100:200` runs other seeds than the usual ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.differential.comparison import Comparison
from tests.interop.differential.steps import random_steps
from tests.support.by_night import by_night
from tests.support.embedded_coordinator import embedded_coordinator
from tests.support.zookeeper import FAST_START_OPTIONS, zookeeper

STEPS_PER_SEED = 150
ORACLE_OPTIONS = (*FAST_START_OPTIONS, "-Dznode.container.checkIntervalMs=86400000")
FIRST_SEED, END_SEED = map(int, os.environ.get("BARNABAS_DIFFERENTIAL_SEEDS", "0:40").split(":"))
BY_DAY = 20
OTHERS = "a second or two for each seed; seeds have found much (acd3fd52, 7dc05f48), and each once"


@pytest.fixture(scope="module")
def comparison(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    """Both servers fresh: the steps look at the root too, so neither may have been used by another test. And neither
    removes empty containers, which would take a zxid at a moment of its own.
    """
    with (
        zookeeper(tmp_path_factory.mktemp("oracle"), java_options=ORACLE_OPTIONS) as oracle,
        embedded_coordinator(
            tmp_path_factory.mktemp("coordinator"), options=("--container-check-interval", "86400000")
        ) as tested,
    ):
        yield Comparison(oracle.port, tested.port)


@pytest.mark.parametrize(
    "seed", [*range(FIRST_SEED, END_SEED)[:BY_DAY], *by_night(OTHERS, *range(FIRST_SEED, END_SEED)[BY_DAY:])]
)
def test_random_operations_of_several_sessions_end_alike(comparison: Comparison, seed: int) -> None:
    explanation = comparison.explain(random_steps(seed, STEPS_PER_SEED))
    assert not explanation, f"seed {seed}: {explanation}"
