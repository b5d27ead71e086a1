"""Work that many ask for, and that is done once for all of them."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.kernel.joined_runs import JoinedRuns


class Written:
    """Runs that take three turns, and write down what was true in their first one."""

    def __init__(self) -> None:
        self.truth = 0
        self.values: list[int] = []
        self.under_way = 0
        self.error: Exception | None = None
        self.runs = JoinedRuns(asyncio.get_running_loop(), self._work)

    async def _work(self) -> None:
        assert not self.under_way, "two runs at a time"
        self.under_way += 1
        seen = self.truth
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        if self.error is not None:
            raise self.error
        self.values.append(seen)

    async def ask(self, truth: int) -> int:
        """What was written last when the run that was asked for has ended."""
        self.truth = truth
        await self.runs.run()
        return self.values[-1]


def test_who_asks_in_one_turn_shares_a_run() -> None:
    async def main() -> None:
        written = Written()
        assert await asyncio.gather(*map(written.ask, range(1, 5))) == [4] * 4
        assert written.values == [4]

    asyncio.run(main())


def test_who_asks_during_a_run_gets_another_one_behind_it() -> None:
    async def main() -> None:
        written = Written()
        first = asyncio.create_task(written.ask(1))
        while not written.under_way:
            await asyncio.sleep(0)
        later = [asyncio.create_task(written.ask(2)), asyncio.create_task(written.ask(3))]
        assert await first == 1
        assert await asyncio.gather(*later) == [3, 3]
        assert written.values == [1, 3]
        assert await written.ask(4) == 4

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(8))
def test_whenever_somebody_asks_nothing_older_is_written_after_it(turns: int) -> None:
    async def main() -> None:
        written = Written()
        asked = []
        for number in range(1, 6):
            asked.append(asyncio.create_task(written.ask(number)))
            for _ in range(turns):
                await asyncio.sleep(0)
        for number, last in enumerate(await asyncio.gather(*asked), start=1):
            assert last >= number
        assert written.values == sorted(written.values)

    asyncio.run(main())


def test_who_gives_up_takes_nobody_along_and_an_error_is_for_all_who_share_the_run() -> None:
    async def main() -> None:
        written = Written()
        one, other = asyncio.create_task(written.ask(1)), asyncio.create_task(written.ask(2))
        await asyncio.sleep(0)
        one.cancel()
        assert await other == 2
        assert one.cancelled()
        written.error = OSError("no space")
        results = await asyncio.gather(written.ask(3), written.ask(4), return_exceptions=True)
        assert [str(result) for result in results] == ["no space"] * 2
        written.error = None
        assert await written.ask(5) == 5

    asyncio.run(main())


def test_nothing_is_written_after_the_end() -> None:
    async def main() -> None:
        written = Written()
        first = asyncio.create_task(written.ask(1))
        while not written.under_way:
            await asyncio.sleep(0)
        second = asyncio.create_task(written.ask(2))
        await asyncio.sleep(0)
        written.runs.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert second.cancelled()
        assert not written.values

    asyncio.run(main())
