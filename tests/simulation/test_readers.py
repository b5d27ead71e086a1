"""Our own client in a simulated cluster that fails: at least once and at most once, counted exactly."""

from __future__ import annotations

import functools
import os
from collections import Counter

import pytest

from barnabas.testing.cluster_plans import PLANS
from barnabas.testing.reader_simulation import COVERAGE, READING, reading, simulate_readers
from barnabas.testing.simulation import SimulationFailedError, simulation_seeds
from tests.simulation.kept_runs import KeptRuns, Shown
from tests.simulation.reader_mutants import READER_MUTANTS, ReaderMutant
from tests.support.by_night import BY_DAY

SEEDS = simulation_seeds(4)
SEEDS_OF_OTHERS = simulation_seeds(0)
SEEDS_OF_OTHERS = SEEDS_OF_OTHERS[: 1 + len(SEEDS_OF_OTHERS) // 10]
"""Of each other plan, of which there are many: none but where more seeds than usual are asked for."""
WITHOUT_READERS = frozenset({READING.name, "credentials"})
"""The first has them anyway; in the second all who come log in by tokens of their own, which readers have not."""
RUNS = [(READING.name, seed) for seed in SEEDS] + [
    (name, seed) for name in PLANS for seed in SEEDS_OF_OTHERS if name not in WITHOUT_READERS
]
RUNS += [("retention", seed) for seed in (3, 4) if len(SEEDS) > 1 and seed not in SEEDS_OF_OTHERS]
"""The last ones since readers are rarely slower than deletions."""
UNDER_READERS_BY_DAY = frozenset({READING.name, "expiry", "groups", "late", "office", "retention", "unclean"})
"""Where readers have found something, and where positions, groups or what is committed are most at stake."""
BY_NIGHT = pytest.mark.night("some 5 s of processor time for each plan, which by day have found nothing under readers")
MET_BY = [each for each in RUNS if not BY_DAY or each[0] in UNDER_READERS_BY_DAY]
MET_UNDER_OTHERS = {"processed again without offsets"}
"""What the plans of `make test` do not bring."""
REGRESSIONS = (
    ("keeping", 2),  # closing after a cancellation committed what was being processed
    ("retention", 1),  # a position behind what was deleted may be committed before anything is read from it
)
"""What these runs found once, in the client or in how it was judged."""
MUTANT_SEEDS_MAX = 200
TRIES_ALL_MUTANTS = bool(os.environ.get("BARNABAS_ALL_MUTANTS"))
QUICK_MUTANTS = frozenset({"a rebalance commits what was just given", "buffered records outlive a seek"})
"""Those of which each run of the tests shows that readers can find something: what is committed, and what is given."""


def marked(name: str, seed: int) -> pytest.ParameterSet:
    return pytest.param(name, seed, marks=() if name in UNDER_READERS_BY_DAY else BY_NIGHT)


def judged(name: str, seed: int) -> Shown:
    report, counts = simulate_readers(seed, reading(PLANS[name]))
    assert report.acknowledged > 100, "where nothing is written, nothing can be processed wrongly"
    assert counts["processed"] > report.acknowledged / 2, "two groups read what is acknowledged"
    return Shown(report.findings, counts)


@pytest.mark.parametrize(
    ("name", "seed"), [marked(*each) for each in [*RUNS, *(each for each in REGRESSIONS if each not in RUNS)]]
)
def test_readers_process_and_commit_exactly_what_they_mean_to(kept_runs: KeptRuns, name: str, seed: int) -> None:
    assert kept_runs.shown(f"readers-{name}-{seed}", lambda: judged(name, seed)).findings == ()


def test_the_readers_have_met_everything_that_is_to_be_survived(kept_runs: KeptRuns) -> None:
    met: Counter[str] = Counter()
    for name, seed in MET_BY:
        met += kept_runs.shown(f"readers-{name}-{seed}", functools.partial(judged, name, seed)).met
    missing = {what for what in COVERAGE if not met[what]}
    assert missing <= (set() if SEEDS_OF_OTHERS and not BY_DAY else MET_UNDER_OTHERS) or len(SEEDS) == 1, met


@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in READER_MUTANTS if TRIES_ALL_MUTANTS or mutant.name in QUICK_MUTANTS],
    ids=lambda mutant: mutant.name,
)
@pytest.mark.timeout(1_800)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fault_that_is_put_into_the_client_is_found(mutant: ReaderMutant) -> None:
    for seed in dict.fromkeys([mutant.likely_seed, *range(1, MUTANT_SEEDS_MAX + 1)]):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            try:
                report, _ = simulate_readers(seed)
            except SimulationFailedError:
                return
        if report.findings:
            return
    pytest.fail(f"{MUTANT_SEEDS_MAX} runs have not found it")
