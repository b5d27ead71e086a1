"""`barnabas.kernel.steps`: long work in steps, one per turn of the loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from barnabas.kernel.steps import StepRunner, Steps, a_turn, at_once, each, each_within
from barnabas.kernel.turns import yield_to_loop


def counting(name: str, count: int, done: list[str]) -> Steps[str]:
    for _ in range(count):
        done.append(name)
        yield
    return name


def steps_of(steps: Steps[object]) -> int:
    return sum(1 for _ in steps)


def test_each_step_has_so_many_elements() -> None:
    assert at_once(each(str, range(5), 2)) == ["0", "1", "2", "3", "4"]
    assert [steps_of(each(str, range(count), 2)) for count in (0, 1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2, 2]


def test_groups_count_as_elements_even_without_any() -> None:
    groups = [range(0), range(3), range(1)]
    made = each_within(groups, lambda group: group, lambda _, item: item, lambda group, found: (len(group), found), 2)
    assert at_once(made) == [(0, []), (3, [0, 1, 2]), (1, [0])]
    empty = each_within([range(0)] * 6, lambda group: group, lambda _, item: item, lambda _, found: found, 2)
    assert steps_of(empty) == 3


def test_all_works_share_one_step_per_turn() -> None:
    done: list[str] = []
    at_turn: list[int] = []

    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())
        works = [asyncio.create_task(runner.run(counting(name, 3, done))) for name in "ab"]
        while not all(work.done() for work in works):
            at_turn.append(len(done))
            await yield_to_loop()
        assert [work.result() for work in works] == ["a", "b"]
        assert not runner.running

    asyncio.run(main())
    assert done == ["a", "b"] * 3
    assert max(after - before for before, after in pairwise(at_turn)) == 1


def test_urgent_work_goes_first() -> None:
    done: list[str] = []

    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())
        slow = asyncio.create_task(runner.run(counting("slow", 4, done)))
        await yield_to_loop()
        urgent = asyncio.create_task(runner.run(counting("urgent", 3, done), is_urgent=True))
        await asyncio.gather(slow, urgent)

    asyncio.run(main())
    assert "".join(name[0] for name in done) in ("uuussss", "suuusss")


def test_urgent_work_that_does_not_end_leaves_turns_to_others() -> None:
    done: list[str] = []

    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())
        urgent = asyncio.create_task(runner.run(counting("urgent", 1_000_000, done), is_urgent=True))
        await yield_to_loop()
        await asyncio.wait_for(runner.run(counting("other", 10, done)), 10)
        urgent.cancel()

    asyncio.run(main())
    assert 30 <= done.count("urgent") <= 50


def test_an_error_is_its_callers_and_others_go_on() -> None:
    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())
        done: list[str] = []
        other = asyncio.create_task(runner.run(counting("other", 5, done)))
        with pytest.raises(ZeroDivisionError):
            await runner.run(each(lambda item: 1 // item, (1, 0)))
        assert await other == "other"
        await runner.run(a_turn())

    asyncio.run(main())


def test_cancelled_work_ends_between_two_steps() -> None:
    done: list[str] = []
    closed: list[bool] = []

    def work() -> Steps[None]:
        try:
            yield from counting("work", 100, done)
        finally:
            closed.append(True)

    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())
        task = asyncio.create_task(runner.run(work()))
        while len(done) < 3:
            await yield_to_loop()
        task.cancel()
        await asyncio.wait([task])
        assert closed == [True]
        await runner.run(a_turn())
        assert not runner.running

    asyncio.run(main())
    assert len(done) == 3


def test_work_that_is_given_up_in_its_last_step_does_not_end_that_of_others() -> None:
    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())

        def last() -> Steps[None]:
            task.cancel()
            yield from ()

        task = asyncio.create_task(runner.run(last()))
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.wait_for(runner.run(a_turn()), 10)

    asyncio.run(main())
