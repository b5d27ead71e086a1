"""Long work in steps, one in each turn of the loop.

It is written as a generator that yields after each bounded piece: `Steps`. Between two steps everything else has its
turn (heartbeats, the controller, ZooKeeper's pings), and what was found out before may be stale after. All that runs at
a time shares the one step per turn, so that many do not hold the loop longer than one.

How much a step may be is counted (elements, bytes) and not timed: so a simulation does the same in every run, and the
loop's clock stands still within a turn anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")
Item = TypeVar("Item")
Group = TypeVar("Group")
GroupResult = TypeVar("GroupResult")
Steps = Generator[None, None, Result]
"""Yields between steps, and returns the result."""

_EMPTIED_PER_STEP: Final = 8192
_URGENT_IN_A_ROW_MAX: Final = 3
STEP_ELEMENTS: Final = 256
"""How many elements of a request one step handles: some milliseconds, where an element costs 10 to 20 us."""


def each(
    function: Callable[[Item], Result], items: Iterable[Item], elements: int = STEP_ELEMENTS
) -> Steps[list[Result]]:
    """`[function(item) for item in items]`, so many in each step."""
    results: list[Result] = []
    left = elements
    for item in items:
        results.append(function(item))
        left -= 1
        if not left:
            yield
            left = elements
    return results


def each_within(
    groups: Iterable[Group],
    items: Callable[[Group], Iterable[Item]],
    function: Callable[[Group, Item], Result],
    result: Callable[[Group, list[Result]], GroupResult],
    elements: int = STEP_ELEMENTS,
) -> Steps[list[GroupResult]]:
    """`[result(group, [function(group, item) for item in items(group)]) for group in groups]`, so many in each step:
    the form of nearly all responses, by topic and partition.
    """
    found: list[GroupResult] = []
    left = elements
    for group in groups:
        results: list[Result] = []
        for item in items(group):
            results.append(function(group, item))
            left -= 1
            if not left:
                yield
                left = elements
        found.append(result(group, results))
        left -= 1
        if not left:
            yield
            left = elements
    return found


def emptied(items: list[Any]) -> Steps[None]:
    """Empties an unused list in steps: freeing very many objects at once takes long, too."""
    while items:
        del items[-_EMPTIED_PER_STEP:]
        yield


def a_turn() -> Steps[None]:
    """No work: for coroutines that only wait for their turn."""
    yield from ()


def at_once(steps: Steps[Result]) -> Result:
    """The result, without giving way: for what is known to be short, and for tests."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result


class _Work:
    """Steps that are under way."""

    __slots__ = ("future", "steps")

    def __init__(self, steps: Steps[Any], future: asyncio.Future[Any]) -> None:
        self.steps = steps
        self.future = future


class RunsSteps(Protocol):
    """Whoever does steps, as a `StepRunner`."""

    async def run(self, steps: Steps[Result], *, is_urgent: bool = False) -> Result: ...


class StepRunner:
    """Does the steps of one loop, one in each turn: urgent work first, otherwise all work in rotation. So that none
    waits for the end of urgent ones, which may be thousands of steps, one step in four is not urgent.

    Collecting cycles is no step of these: `cli.broker` bounds what it looks at, so that it takes no longer than one.
    """

    __slots__ = ("_loop", "_ordinary", "_urgent", "_urgent_in_a_row")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._urgent: deque[_Work] = deque()
        self._ordinary: deque[_Work] = deque()
        self._urgent_in_a_row = 0
        """While there was other work."""

    @property
    def running(self) -> int:
        """How many pieces of work are under way."""
        return len(self._urgent) + len(self._ordinary)

    async def run(self, steps: Steps[Result], *, is_urgent: bool = False) -> Result:
        """Does the steps, beginning in the next turn, and returns their result. Cancelling ends them between two."""
        work = _Work(steps, self._loop.create_future())
        if not self.running:
            self._loop.call_soon(self._step)
        (self._urgent if is_urgent else self._ordinary).append(work)
        try:
            result: Result = await work.future
        finally:
            steps.close()
        return result

    async def turn(self) -> None:
        """For coroutines, after each piece of long work: waits for the next turn in which there is no other."""
        await self.run(a_turn())

    def _step(self) -> None:
        if self._urgent and self._ordinary:
            is_urgent = self._urgent_in_a_row < _URGENT_IN_A_ROW_MAX
            self._urgent_in_a_row = self._urgent_in_a_row + 1 if is_urgent else 0
            works = self._urgent if is_urgent else self._ordinary
        else:
            works = self._urgent or self._ordinary
        work = works.popleft()
        if not work.future.done():  # cancelled otherwise
            try:
                next(work.steps)
            except StopIteration as stop:
                if not work.future.done():
                    work.future.set_result(stop.value)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
                if not work.future.done():
                    work.future.set_exception(error)
            else:
                works.append(work)
        if self.running:
            self._loop.call_soon(self._step)
