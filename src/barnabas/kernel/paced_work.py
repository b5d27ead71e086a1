"""Work of a child process that may not go faster than so much: a generator that yields, after each piece, the seconds
that the piece has to take at the least."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeVar

Result = TypeVar("Result")
PacedWork = Generator[float, None, Result]

PAUSE_SECONDS_MIN: Final = 0.1
"""Shorter pauses join."""


def finish(work: PacedWork[Result], now: Callable[[], float], pause: Callable[[float], None]) -> Result:
    """Does all of it, and returns its result. Time that was lost is not made up for."""
    due = now()
    while True:
        try:
            seconds = next(work)
        except StopIteration as ended:
            result: Result = ended.value
            return result
        if seconds:
            at = now()
            due = max(due, at) + seconds
            if due - at >= PAUSE_SECONDS_MIN:
                pause(due - at)
