"""Throttles of copies between log directories, where several executions want them at the same brokers at once."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from barnabas.cli.reassignment_directories import Replica, locate
from barnabas.cli.reassignment_directory_rates import DirectoryCopies
from barnabas.cli.reassignment_throttles import (
    DIRECTORY_RATE,
    RATES,
    Rates,
    Throttles,
    keep_throttles,
    remove_throttles,
    set_throttles,
)
from barnabas.client.admin import ConfigEntry, ConfigOperation
from barnabas.client.errors import ClientTimeoutError
from barnabas.wire.topics import TopicPartition
from tests.unit.cli.test_log_dirs import directory

A, B, C = (TopicPartition(name, 0) for name in "abc")
PERMANENT = "77"


class _Brokers:
    """Brokers with rates of their own, and copies between their log directories. Each call takes a few turns."""

    def __init__(self, seed: int = 0, permanent: str | None = None) -> None:
        self.random = random.Random(seed)
        self.rates: dict[int, dict[str, str]] = {node_id: {} for node_id in (1, 2)}
        if permanent is not None:
            self.rates[1][DIRECTORY_RATE] = permanent
        self.copying: dict[Replica, None] = {}
        self.silent: set[int] = set()

    async def turn(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def describe_log_dirs(self, node_id: int, _timeout_ms: float) -> Any:
        await self.turn()
        if node_id in self.silent:
            raise ClientTimeoutError("it does not answer")
        here = [each for each, at in self.copying if at == node_id]
        return [directory(path, *((*each, 9, 0, path == "/b") for each in here)) for path in ("/a", "/b")]

    async def describe_configs(self, _kind: object, name: str, _timeout_ms: float) -> dict[str, ConfigEntry]:
        await self.turn()
        return {
            key: ConfigEntry(key, value, 2, is_read_only=False, is_sensitive=False)
            for key, value in self.rates[int(name)].items()
        }

    async def alter_configs(
        self, _kind: object, name: str, changes: Iterable[tuple[str, ConfigOperation, str | None]], _timeout_ms: float
    ) -> None:
        await self.turn()
        for key, operation, value in changes:
            if operation is ConfigOperation.SET and value is not None:
                self.rates[int(name)][key] = value
            else:
                self.rates[int(name)].pop(key, None)

    async def describe_topic_configs(self, names: Iterable[str], _keys: object) -> dict[str, dict[str, ConfigEntry]]:
        return {name: {} for name in names}

    @property
    def left(self) -> set[str]:
        """The rates that are set anywhere."""
        return {value for rates in self.rates.values() for value in rates.values()}


class _Execution:
    """What `barnabas reassign execute --directory-throttle` does, in parts."""

    def __init__(self, brokers: _Brokers, rate: int, *replicas: Replica) -> None:
        self.brokers: Any = brokers
        self.rate = rate
        self.replicas = replicas
        copies = DirectoryCopies(frozenset(replicas), (1, 2))
        self.throttles = Throttles(tuple(sorted(copies.brokers())), (), copies=copies)
        self.looks_without_rate = 0

    async def set(self) -> None:
        await set_throttles(self.brokers, self.throttles, Rates(None, self.rate), {}, self.settle)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def begin(self) -> None:
        await self.brokers.turn()
        self.brokers.copying |= dict.fromkeys(self.replicas)

    async def look(self) -> bool:
        """Whether it still copies."""
        where = await locate(self.brokers, self.throttles.brokers)
        copying = {each[1] for each in self.replicas if where.at(each).future is not None}
        if copying:
            await keep_throttles(self.brokers, self.throttles, where)
            rates: list[dict[str, str]] = [self.brokers.rates[node_id] for node_id in copying]
            self.looks_without_rate = 0 if all(rates) else self.looks_without_rate + 1
        return bool(copying)

    async def end(self) -> None:
        for each in self.replicas:
            self.brokers.copying.pop(each, None)
        assert await remove_throttles(self.brokers, self.throttles)

    async def run(self) -> None:
        for step in (self.set(), self.begin()):
            await step
            await self.brokers.turn()
        while await self.look():
            if self.brokers.random.randrange(3):
                # One after the other comes to its end; who waits for the others has a rate where it copies nothing.
                self.brokers.copying.pop(self.brokers.random.choice(self.replicas), None)
                await self.brokers.turn()
            # The second look sets it again, but another execution may remove it in between.
            assert self.looks_without_rate < 3
            for _ in range(2):
                await self.settle()
            if not self.brokers.random.randrange(12):
                break
        await self.end()


@pytest.mark.parametrize("rates", [(5, 7, 6), (5, 5, 5), (5, 7, 7), (7, 5, 7)])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("permanent", [None, PERMANENT])
def test_whichever_ends_first_those_that_go_on_have_a_rate_and_the_last_leaves_none_of_theirs(
    rates: tuple[int, ...], order: tuple[int, ...], permanent: str | None
) -> None:
    brokers = _Brokers(permanent=permanent)
    executions = [_Execution(brokers, rate, (each, 1), (each, 2)) for rate, each in zip(rates, (A, B, C), strict=True)]

    async def main() -> None:
        for each in executions:
            await each.set()
            await each.begin()
        for place, number in enumerate(order):
            had = brokers.left
            await executions[number].end()
            if str(rates[number]) not in had and place < 2:
                # It is the one of another who goes on: that is not without a rate for a moment.
                assert brokers.left == had
            for other in order[place + 1 :]:
                # At the second look it is not for a broker that has just not learnt of its rate.
                assert await executions[other].look()
                assert await executions[other].look()
                assert [rates.keys() for rates in brokers.rates.values()] == 2 * [{DIRECTORY_RATE}]
        assert brokers.left <= {permanent}
        if order == (2, 1, 0):
            assert brokers.rates == {1: {DIRECTORY_RATE: permanent} if permanent else {}, 2: {}}

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(100))
def test_executions_that_run_at_once_leave_nothing(seed: int) -> None:
    permanent = (None, PERMANENT)[seed % 2]
    brokers = _Brokers(seed, permanent)
    draw = brokers.random
    places = [(each, node_id) for each in (A, B, C) for node_id in (1, 2)]
    # Also the same replicas twice: somebody has started a command a second time.
    executions = [
        _Execution(brokers, draw.choice((5, 5, 7)), *draw.sample(places, draw.randrange(1, 4))) for _ in range(3)
    ]

    async def delayed(execution: _Execution) -> None:
        for _ in range(draw.randrange(40)):
            await asyncio.sleep(0)
        await execution.run()

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*map(delayed, executions)), 10)

    asyncio.run(main())
    assert brokers.left <= {permanent}


@pytest.mark.parametrize("others", ["nobody", "who came later", "who were there"])
def test_a_rate_from_before_is_given_back_where_nobody_copied_then(others: str) -> None:
    """Of somebody who copied, nobody can tell whether the rate was theirs: it must not be left."""
    brokers = _Brokers(permanent=PERMANENT)
    execution = _Execution(brokers, 5, (A, 1))

    async def main() -> None:
        if others == "who were there":
            brokers.copying[B, 2] = None
        await execution.set()
        assert brokers.rates[1] == {DIRECTORY_RATE: "5"}
        await execution.begin()
        if others == "who came later":
            brokers.copying[B, 1] = None
        for _ in range(2):
            # Whoever ends gives it back, too; that is not enough.
            brokers.rates[1] = {DIRECTORY_RATE: PERMANENT}
            assert await execution.look()
        assert brokers.rates[1] == {DIRECTORY_RATE: PERMANENT if others == "who were there" else "5"}
        await execution.end()
        assert brokers.rates[1] == ({DIRECTORY_RATE: PERMANENT} if others != "who were there" else {})

    asyncio.run(main())


def test_a_rate_that_is_removed_is_set_again_and_one_that_is_changed_is_not() -> None:
    brokers = _Brokers()
    execution = _Execution(brokers, 5, (A, 1))

    async def main() -> None:
        await execution.set()
        await execution.begin()
        for _ in range(2):
            brokers.rates[1] = {DIRECTORY_RATE: "9"}
            assert await execution.look()
            assert brokers.left == {"9"}
            brokers.rates[1].clear()
            assert await execution.look()
            assert brokers.left == set()
            assert await execution.look()
            assert brokers.left == {"5"}
        await execution.end()
        assert brokers.left == set()

    asyncio.run(main())


def test_a_broker_that_copies_for_others_only_is_left_to_them() -> None:
    brokers = _Brokers()
    execution = _Execution(brokers, 5, (A, 1), (A, 2))

    async def main() -> None:
        await execution.set()
        await execution.begin()
        del brokers.copying[A, 1]
        brokers.copying[B, 1] = None
        brokers.rates[1].clear()
        for _ in range(3):
            assert await execution.look()
        assert brokers.rates[1] == {}
        # One that somebody has changed where they copy stays, and goes where nobody does.
        brokers.rates |= {node_id: {DIRECTORY_RATE: "9"} for node_id in (1, 2)}
        await execution.end()
        assert brokers.rates == {1: {DIRECTORY_RATE: "9"}, 2: {}}

    asyncio.run(main())


def test_a_broker_that_does_not_tell_its_copies_loses_the_rate() -> None:
    brokers = _Brokers()
    execution = _Execution(brokers, 5, (A, 1), (A, 2))

    async def main() -> None:
        await execution.set()
        await execution.begin()
        brokers.copying[B, 1] = None
        brokers.silent.add(1)
        await execution.end()
        assert brokers.left == set()

    asyncio.run(main())


def test_a_broker_gets_the_rates_for_what_it_copies_only() -> None:
    """A rate of somebody else, at a broker that copies nothing of the kind, is not touched."""
    brokers = _Brokers()
    admin: Any = brokers
    admin.rates = {1: {}, 2: {DIRECTORY_RATE: "3"}, 3: {RATES[0]: "4"}}
    before = {node_id: dict(rates) for node_id, rates in brokers.rates.items()}
    throttles = Throttles((1, 2, 3), (), copies=DirectoryCopies({(B, 3)}, (3,)))

    async def main() -> None:
        moves = {A: ((1,), (2,))}
        admin.list_topics = _nobody
        admin.describe_topic_configs = _none
        throttles.topics = ("a",)
        await set_throttles(admin, throttles, Rates(5, 6), moves)
        of_replicas = dict.fromkeys(RATES[:2], "5")
        assert admin.rates[1] == of_replicas
        assert admin.rates[2] == {DIRECTORY_RATE: "3", **of_replicas}
        assert admin.rates[3] == {RATES[0]: "4", DIRECTORY_RATE: "6"}

    async def _nobody() -> list[str]:
        return []

    async def _none(_names: object, _keys: object) -> dict[str, dict[str, ConfigEntry]]:
        return {}

    admin.rates["a"] = {}
    alter = brokers.alter_configs

    async def of_brokers_only(kind: object, name: str, changes: Any, timeout_ms: float = 0) -> None:
        if name.isdecimal():
            await alter(kind, name, changes, timeout_ms)

    admin.alter_configs = of_brokers_only
    asyncio.run(main())
    asyncio.run(_removed(admin, throttles))
    assert {node_id: admin.rates[node_id] for node_id in (1, 2, 3)} == before


async def _removed(admin: Any, throttles: Throttles) -> None:
    assert await remove_throttles(admin, throttles)
