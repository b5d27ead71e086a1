"""What the brokers of a plan's run have in their configs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from barnabas.server.config import read_server_config
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.cluster_plans import PLANS

NAME = "barnabas.log.dir.writes"


def writes_of(plan: Plan, seed: int) -> str:
    return str(read_server_config(f"broker.id=0\n{plan.properties_of(seed)}", "server.properties").values[NAME])


@pytest.mark.parametrize("name", sorted(set(PLANS) - {"hanging"}))
def test_half_of_the_seeds_write_off_the_loop(name: str) -> None:
    drawn = [writes_of(PLANS[name], seed) for seed in range(1, 25)]
    assert Counter(drawn) == {"loop": 12, "offload": 12}
    assert all(len(set(drawn[start : start + 6])) == 1 for start in range(0, 24, 6))


def test_a_plan_of_its_own_mind_writes_as_it_says() -> None:
    assert {writes_of(PLANS["hanging"], seed) for seed in range(1, 13)} == {"offload"}
    assert {writes_of(replace(PLANS["groups"], writes=("auto",)), seed) for seed in range(1, 13)} == {"auto"}
