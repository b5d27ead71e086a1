"""The cluster under faults of every kind, one plan for each promise that somebody may be out to break."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from barnabas.testing.changed_rights import COVERAGE as RIGHTS_MET
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.cluster_plans import PLANS
from barnabas.testing.cluster_simulation import simulate
from barnabas.testing.credential_faults import COVERAGE as CREDENTIALS_MET
from barnabas.testing.faults import FaultKind
from barnabas.testing.next_group_users import COVERAGE as NEXT_GROUP_MET
from barnabas.testing.outbox_users import COVERAGE as OUTBOX_MET
from barnabas.testing.secured_users import COVERAGE as SECURED_MET
from barnabas.testing.simulation import SEED_COUNT_VARIABLE, SEED_VARIABLE, simulation_seeds
from barnabas.testing.tiered_topic import COVERAGE as TIERED_MET
from barnabas.testing.tokens_in_use import COVERAGE as TOKENS_MET
from barnabas.testing.transactional_users import COVERAGE as TRANSACTIONS_MET

SEEDS = simulation_seeds(1)
SEEDS_TOGETHER = 4
"""In so many each plan has met all that it is out to break."""
SEEDS_AT_LEAST = 2
"""Where no more than `SEEDS_TOGETHER` are asked for, as in `.ci/run`, the others are run for what is still missing."""
GROUPS_OF_SEEDS = [SEEDS[start : start + SEEDS_TOGETHER] for start in range(0, len(SEEDS), SEEDS_TOGETHER)]
ELSEWHERE = frozenset({"power", "keeping", "late"})
"""What `test_cluster` runs."""
NEW_PLANS = [plan for plan in PLANS.values() if plan.name not in ELSEWHERE]
SEEN = {
    "moves": ("moves of whole sets",),
    "flushed": (
        "flushed: acks 1",
        "flushed: acks -1",
        "flushed: kept when power failed",
        "flushed: taken when power failed",
        "flushed: told while others were not synced",
        "flushed: told and in the file",
    ),
    "former": ("states put right",),
    "office": ("logins", "logins repeated"),
    "throttles": ("throttled: held back by leaders", "throttled: held back by followers", "throttled: took turns"),
    "connections": ("connections held back", "connections refused", "clients that made room for brokers"),
    "renewed": ("renewed: acknowledged", "renewed: consumed", "renewed: asked again"),
    "transactions": TRANSACTIONS_MET,
    "compaction": (
        "compacted: acknowledged",
        "compacted: read",
        "compacted: compacted",
        "compacted: __consumer_offsets",
        "compacted: __transaction_state",
    ),
    "tiered": TIERED_MET,
    "tokens": (*TOKENS_MET, *RIGHTS_MET),
    "secured": (*SECURED_MET, "logins", "logins repeated"),
    "credentials": (*CREDENTIALS_MET, "logins", "logins repeated"),
    "outbox": OUTBOX_MET,
    "next-groups": NEXT_GROUP_MET,
}
"""What else must have happened under a plan."""
REGRESSIONS = (
    ("configs", 10),  # a producer wrote a batch twice that a restarted leader had and did not know
    ("lives", 3),  # the same
    ("together", 28),  # a stale replica was elected although a member of the ISR was registered
    ("expiry", 6),  # a session that ended during a start left the broker deaf to changes of configs
    ("spoiled", 27),  # a leader that asked for an ISR while its state was spoiled waited for ever
    ("spoiled", 4),  # partitions that could not be read were forgotten, and a group's offsets with them
    ("spoiled", 47),  # a leader that bounced before its state was mended led on in its epoch under a new controller
    ("former", 1),  # a state that was mended with a former leader epoch stayed so, and its leader was refused for ever
    ("power", 7),  # a leader committed alone what it had been told of, as a follower, that it did not have
    ("groups", 1),  # groups hung when the topic of their offsets had been deleted
)
"""What these runs found once."""
IS_QUICK = not os.environ.get(SEED_VARIABLE) and not os.environ.get(SEED_COUNT_VARIABLE)
TRIED = [plan for plan in NEW_PLANS if not IS_QUICK or plan.name in dict(REGRESSIONS)]
"""Those that have found something, each with one seed, where nobody asks for seeds, as in `make test`; else all."""


@pytest.mark.parametrize("seeds", GROUPS_OF_SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
@pytest.mark.parametrize("plan", TRIED, ids=lambda plan: plan.name)
def test_a_cluster_keeps_its_promises_under_each_plan(plan: Plan, seeds: list[int]) -> None:
    strikes: Counter[FaultKind] = Counter()
    coverage: Counter[str] = Counter()
    is_to_meet_all = len(seeds) == SEEDS_TOGETHER and seeds is GROUPS_OF_SEEDS[0]
    # Each change makes other runs of these seeds; what is rare may be in none, and is looked for in as many more.
    more = range(seeds[-1] + 1, seeds[-1] + 1 + len(seeds)) if is_to_meet_all else ()
    for number, seed in enumerate([*seeds, *more]):
        is_enough = len(SEEDS) <= SEEDS_TOGETHER and number >= SEEDS_AT_LEAST
        if (is_enough or number >= len(seeds)) and not not_met(plan, strikes, coverage):
            break
        report = simulate(seed, plan)
        assert report.findings == (), f"seed {seed}"
        assert report.acknowledged > 100, "a cluster that takes nothing has no faults either"
        strikes.update(report.strikes)
        coverage.update(report.coverage)
    assert not is_to_meet_all or not_met(plan, strikes, coverage) == [], "what does not strike proves nothing"


def not_met(plan: Plan, strikes: Counter[FaultKind], coverage: Counter[str]) -> list[str]:
    """What the plan is out to break, and no run has met."""
    missing = [kind.value for kind in plan.per_minute if not strikes[kind]]
    return missing + [what for what in SEEN.get(plan.name, ()) if not coverage[what]]


@pytest.mark.skipif(
    len(SEEDS) == 1,
    reason="each change since has made other runs of these seeds: make simulate, which is run every night, has them",
)
@pytest.mark.parametrize(("name", "seed"), [each for each in REGRESSIONS if each[1] not in SEEDS])
def test_what_was_found_once_stays_mended(name: str, seed: int) -> None:
    assert simulate(seed, PLANS[name]).findings == ()


def test_every_kind_of_fault_is_in_a_plan() -> None:
    """And strikes there, as the tests of the plans count."""
    assert {kind for plan in PLANS.values() for kind in plan.per_minute} == set(FaultKind)
