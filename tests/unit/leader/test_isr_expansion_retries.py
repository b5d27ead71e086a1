from __future__ import annotations

import asyncio

import pytest

from barnabas.kernel.timers import Timers
from barnabas.leader.isr_expansion_retries import IsrExpansionRetries
from tests.unit.kernel.virtual_loop import run_virtually

INTERVAL_MS = 500


class PlayedReplicas:
    """The followers of a partition, one of which may yet join for as many looks as the test says."""

    def __init__(self, retries: IsrExpansionRetries, looks: int) -> None:
        self.retries = retries
        self.looks = looks
        self.seen: list[tuple[float, float]] = []
        self.notes_later: float | None = None

    def reconsider(self, since: float) -> bool:
        self.seen.append((asyncio.get_running_loop().time(), since))
        if self.notes_later is not None:
            self.retries.add(self, self.notes_later)
            self.notes_later = None
        self.looks -= 1
        return self.looks > 0


def test_looks_at_an_interval_as_long_as_a_follower_may_yet_join() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        retries = IsrExpansionRetries(Timers(loop), INTERVAL_MS)
        joins_soon, joins_later = PlayedReplicas(retries, 1), PlayedReplicas(retries, 3)
        began = loop.time()
        retries.add(joins_soon, 7.0)
        retries.add(joins_later, 8.0)
        await asyncio.sleep(10)
        assert [since for _, since in joins_soon.seen] == [7.0]
        assert [since for _, since in joins_later.seen] == [8.0] * 3
        looks = [at - began for at, _ in joins_later.seen]
        assert all(
            INTERVAL_MS / 1000 <= later - earlier < 2 * INTERVAL_MS / 1000
            for earlier, later in zip([0.0, *looks], looks, strict=False)
        )
        assert not len(retries)

    run_virtually(main())


def test_what_is_noted_during_a_look_is_not_replaced_by_the_former_time() -> None:
    async def main() -> None:
        retries = IsrExpansionRetries(Timers(asyncio.get_running_loop()), INTERVAL_MS)
        replicas = PlayedReplicas(retries, 2)
        replicas.notes_later = 9.0
        retries.add(replicas, 7.0)
        await asyncio.sleep(10)
        assert [since for _, since in replicas.seen] == [7.0, 9.0]

    run_virtually(main())


@pytest.mark.parametrize("closes_after", [None, 1])
def test_very_many_are_looked_at_in_several_turns(closes_after: int | None) -> None:
    """As of a broker that comes back after a pause, and follows ten thousand partitions."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        retries = IsrExpansionRetries(Timers(loop), INTERVAL_MS)
        turns: list[list[PlayedReplicas]] = []
        seen = 0

        class OneOfMany(PlayedReplicas):
            def reconsider(self, since: float) -> bool:
                if not turns or not in_this_turn:
                    turns.append([])
                    in_this_turn.append(True)
                    loop.call_soon(in_this_turn.clear)
                turns[-1].append(self)
                return super().reconsider(since)

        in_this_turn: list[bool] = []
        every = [OneOfMany(retries, 2) for _ in range(1_000)]
        for number, each in enumerate(every):
            retries.add(each, float(number))
        assert len(retries) == len(every)
        if closes_after is not None:
            while len(turns) < closes_after:
                await asyncio.sleep(0.001)
            seen = sum(map(len, turns))
            retries.close()
            assert 0 < seen < len(every)
        await asyncio.sleep(10)
        assert not len(retries)
        assert max(map(len, turns)) <= 200
        if closes_after is None:
            assert [[since for _, since in each.seen] for each in every] == [[float(n)] * 2 for n in range(len(every))]
        else:
            assert sum(map(len, turns)) == seen

    run_virtually(main())


def test_looks_at_nothing_after_the_end() -> None:
    async def main() -> None:
        retries = IsrExpansionRetries(Timers(asyncio.get_running_loop()), INTERVAL_MS)
        replicas = PlayedReplicas(retries, 2)
        retries.add(replicas, 7.0)
        retries.close()
        await asyncio.sleep(10)
        assert not replicas.seen
        assert not len(retries)

    run_virtually(main())
