"""A whole cluster in virtual time: three production brokers, the coordinator, users and faults, judged by checkers.

Odd seeds let power fail wherever it likes, even ones keep a member of every ISR, so that nothing may be lost.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter

import pytest

from barnabas.follower.fetcher_manager import FetcherManager
from barnabas.follower.fetcher_partitions import FetchedPartition
from barnabas.testing.checkers import check_all
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.cluster_plans import FLUSHED, KEEPING, LATE, OLDER, POWER
from barnabas.testing.cluster_simulation import COVERAGE, simulate
from barnabas.testing.simulation import SimulationFailedError, simulation_seeds
from barnabas.testing.user_plans import CREDENTIALS
from tests.simulation.compaction_mutants import COMPACTION_MUTANTS
from tests.simulation.connection_mutants import CONNECTION_MUTANTS
from tests.simulation.credential_mutants import CREDENTIAL_MUTANTS
from tests.simulation.defect_mutants import DEFECT_MUTANTS
from tests.simulation.fetch_part_mutants import FETCH_PART_MUTANTS
from tests.simulation.hanging_mutants import HANGING_MUTANTS
from tests.simulation.kept_runs import KeptRuns, Shown
from tests.simulation.log_move_mutants import LOG_MOVE_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.next_group_mutants import NEXT_GROUP_MUTANTS
from tests.simulation.outbox_mutants import OUTBOX_MUTANTS
from tests.simulation.queue_mutants import QUEUE_MUTANTS
from tests.simulation.reader_mutants import READER_MUTANTS
from tests.simulation.secured_mutants import SECURED_MUTANTS
from tests.simulation.throttle_mutants import THROTTLE_MUTANTS
from tests.simulation.tiered_mutants import TIERED_MUTANTS
from tests.simulation.token_mutants import TOKEN_MUTANTS
from tests.simulation.transaction_mutants import TRANSACTION_MUTANTS

SEEDS = simulation_seeds(6)
COVERING_SEEDS = SEEDS[:6]
"""Have met everything together, of which more than one has met nearly all; more seeds are for every night."""
MUTANT_SEEDS_MAX = 200
ALL_MUTANTS_VARIABLE = "BARNABAS_ALL_MUTANTS"
QUICK_MUTANTS = frozenset({"acks before replication", "truncation to the high watermark", "batches taken twice"})
"""Those of which each run of the tests shows that the simulation can find something, in one run each."""
SECONDS = 60.0
ALL_MUTANTS = (
    *(*MUTANTS, *DEFECT_MUTANTS, *HANGING_MUTANTS, *LOG_MOVE_MUTANTS, *THROTTLE_MUTANTS, *CONNECTION_MUTANTS),
    *(*TRANSACTION_MUTANTS, *COMPACTION_MUTANTS, *TIERED_MUTANTS, *TOKEN_MUTANTS, *OUTBOX_MUTANTS, *NEXT_GROUP_MUTANTS),
    *(*SECURED_MUTANTS, *CREDENTIAL_MUTANTS, *QUEUE_MUTANTS, *FETCH_PART_MUTANTS),
)


def mutants_to_try() -> list[Mutant]:
    """All of them for `make mutants`."""
    if os.environ.get(ALL_MUTANTS_VARIABLE):
        return list(ALL_MUTANTS)
    return [mutant for mutant in ALL_MUTANTS if mutant.name in QUICK_MUTANTS]


def test_there_are_as_many_mutants_as_we_say() -> None:
    names = {mutant.name for mutant in ALL_MUTANTS}
    assert len(names) == len(ALL_MUTANTS)
    assert len(names) + len(READER_MUTANTS) >= 20
    assert names >= QUICK_MUTANTS


def plan_of(seed: int) -> Plan:
    return POWER if seed % 2 else KEEPING


def judged(seed: int) -> Shown:
    report = simulate(seed, plan_of(seed))
    assert report.acknowledged > 100, "a cluster that takes nothing has no faults either"
    # In the harshest runs hardly a group lives long enough to read; over many they must have.
    assert report.consumed > 0
    assert report.seconds >= SECONDS
    strikes = Counter({kind.value: n for kind, n in report.strikes.items()})
    return Shown(report.findings, report.coverage + Counter(consumed=report.consumed) + strikes)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_its_promises_whatever_breaks(kept_runs: KeptRuns, seed: int) -> None:
    assert kept_runs.shown(f"cluster-{seed}", lambda: judged(seed)).findings == ()


@pytest.mark.parametrize("seed", SEEDS[::15])
def test_what_a_controller_has_said_does_no_harm_when_it_comes_again_late(seed: int) -> None:
    assert simulate(seed, LATE).findings == ()


@pytest.mark.parametrize("plan", [POWER, FLUSHED, LATE, OLDER], ids=lambda plan: plan.name)
def test_a_cluster_keeps_its_promises_with_writes_off_the_loop(plan: Plan) -> None:
    """As in seeds 7 to 12 of each plan."""
    report = simulate(4, dataclasses.replace(plan, writes=("offload",)))
    assert report.findings == ()
    assert report.acknowledged > 100


@pytest.mark.parametrize("plan", [KEEPING, LATE], ids=lambda plan: plan.name)
def test_a_cluster_keeps_its_promises_with_one_partition_of_a_fetch_in_a_turn(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in seeds 13 to 18 of each plan, where what followers are in sync with changes its fetcher all the time."""
    handed_over = 0
    usual = FetcherManager._handed_over

    def counted(self: FetcherManager, key: tuple[int, int], partitions: list[FetchedPartition]) -> None:
        nonlocal handed_over
        handed_over += len(partitions)
        usual(self, key, partitions)

    monkeypatch.setattr(FetcherManager, "_handed_over", counted)
    report = simulate(2, dataclasses.replace(plan, few_partitions=(1,)))
    assert report.findings == ()
    assert report.acknowledged > 100
    assert handed_over > 100


def test_the_runs_have_met_everything_that_is_to_be_survived(kept_runs: KeptRuns) -> None:
    met: Counter[str] = Counter()
    for seed in COVERING_SEEDS:
        met += kept_runs.shown(f"cluster-{seed}", functools.partial(judged, seed)).met
    assert met["consumed"] > 100 * len(COVERING_SEEDS) or len(SEEDS) == 1
    kinds = {kind.value for plan in (POWER, KEEPING) for kind in plan.per_minute}
    assert all(met[what] for what in (*COVERAGE, *kinds)) or len(SEEDS) == 1, met


@pytest.mark.parametrize("plan", [POWER, dataclasses.replace(CREDENTIALS, faults_seconds=15.0)], ids=lambda it: it.name)
def test_a_seed_is_one_run(plan: Plan) -> None:
    """TLS is OpenSSL's own, with its own random numbers, of which nothing may depend on more than the length."""
    one, again = (simulate(3, plan) for _ in range(2))
    assert one.history == again.history
    assert one.coverage == again.coverage


@pytest.mark.parametrize("mutant", mutants_to_try(), ids=lambda mutant: mutant.name)
@pytest.mark.timeout(1_800)
# A broken broker may leave work behind that is never ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fault_that_is_put_into_the_brokers_is_found(mutant: Mutant) -> None:
    for seed in range(1, MUTANT_SEEDS_MAX + 1):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            try:
                report = simulate(seed, mutant.plan)
            except SimulationFailedError:
                return
        if check_all(report.history):
            return
    pytest.fail(f"{MUTANT_SEEDS_MAX} runs have not found it")
