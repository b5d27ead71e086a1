"""Work that nobody waits for, a part in each turn."""

from __future__ import annotations

import asyncio

from barnabas.kernel.later_turns import LaterTurns


def test_does_so_many_in_each_of_the_next_turns() -> None:
    async def main() -> None:
        done: list[int] = []
        later = LaterTurns[int, int](asyncio.get_running_loop(), done.append, 3)
        for number in range(8):
            later.add(number, number)
        assert not done
        counts = []
        while later:
            await asyncio.sleep(0)
            counts.append(len(done))
        assert counts == [3, 6, 8]
        assert sorted(done) == list(range(8))
        later.add(9, 9)
        await asyncio.sleep(0)
        assert done[-1] == 9

    asyncio.run(main())


def test_does_once_what_cannot_wait() -> None:
    async def main() -> None:
        done: list[str] = []
        later = LaterTurns[str, str](asyncio.get_running_loop(), done.append, 1)
        later.add("a", "first")
        later.do_now("a")
        later.do_now("a")
        assert done == ["first"]
        later.add("a", "second")
        later.add("a", "third")
        assert done == ["first", "second"]
        later.add("b", "other")
        later.finish()
        assert sorted(done) == ["first", "other", "second", "third"]
        await asyncio.sleep(0)
        assert len(done) == 4

    asyncio.run(main())


def test_goes_on_after_an_error() -> None:
    async def main() -> None:
        failures: list[BaseException] = []
        done: list[int] = []

        def do(number: int) -> None:
            if number == 2:
                raise OSError("broken")
            done.append(number)

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        later = LaterTurns[int, int](loop, do, 4)
        for number in range(4):
            later.add(number, number)
        while later:
            await asyncio.sleep(0)
        assert sorted(done) == [0, 1, 3]
        assert [str(error) for error in failures] == ["broken"]

    asyncio.run(main())
