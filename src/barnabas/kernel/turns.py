"""Giving way to the loop without a timer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

    from barnabas.kernel.steps import Steps

Result = TypeVar("Result")


class _NextTurn:
    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        # A task that yields nothing is continued in the next turn of its loop.
        yield


async def yield_to_loop() -> None:
    """Returns in the next turn of the running task's loop, after whatever was ready before."""
    await _NextTurn()


async def in_turns(steps: Steps[Result]) -> Result:
    """Does the steps, each in a turn of the loop, and returns their result: for who has no `StepRunner`, which does
    the steps of all in rotation.
    """
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        await yield_to_loop()
