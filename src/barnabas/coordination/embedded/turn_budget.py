"""How much work one turn of the loop may do: the rest waits for the next turns, in order of arrival.

Work is counted in elements: what takes about as long as packing a name into a list of children, some 0.3 µs. Whoever
works says how many elements that was (`spend`); when a turn's share is used up (`is_over`), requests that come in are
kept, and go on by `wait`. Long work is a generator that yields after each piece how many elements it was (`run`).

A transaction of thousands of operations may not be seen half done: it runs alone (`run_alone`), its pieces in turns of
their own, and nothing else of the coordinator's state is read or written between them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, TypeVar

Result = TypeVar("Result")
Work = Generator[int, None, Result]
"""Yields after each piece how many elements that was; its result is what it returns."""

ELEMENTS_PER_TURN: Final = 40_000
"""Some 12 ms on a machine of 2024."""
PIECE_ELEMENTS: Final = 10_000
"""What long work should do before it yields."""


class TurnBudget:
    """The share of the turn that runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.spent = 0
        """Elements in this turn."""
        self.most_spent = 0
        """Elements in any turn."""
        self.turns = 0
        """In which anything was spent."""
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._alone: Callable[[], None] | None = None
        self._is_scheduled = False
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether requests should be left for another turn."""
        return self.spent >= ELEMENTS_PER_TURN or self._alone is not None

    @property
    def has_work_alone(self) -> bool:
        """Whether a transaction is half done: nobody may look at the tree."""
        return self._alone is not None

    def spend(self, elements: int) -> None:
        self.spent += elements
        if self.spent > self.most_spent:
            self.most_spent = self.spent
        self._schedule()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` in a later turn that has room, after all that waits already."""
        if not self._is_closed:
            self._waiting.append(go_on)
            self._schedule()

    def run(self, work: Work[Result], done: Callable[[Result], None]) -> None:
        """Does pieces of the work now, as far as the turn goes, and the rest in later ones; `done` gets its result. To
        end it before that, close it."""

        def go_on() -> None:
            while not self.is_over:
                try:
                    self.spend(next(work))
                except StopIteration as stop:
                    done(stop.value)
                    return
            self.wait(go_on)

        go_on()

    def run_alone(self, work: Work[Result], done: Callable[[Result], None]) -> None:
        """Does the work before anything else; must not be called while other work runs alone."""
        if self._alone is not None:
            raise RuntimeError("work that runs alone is under way")

        def go_on() -> None:
            while self.spent < ELEMENTS_PER_TURN:
                try:
                    self.spend(next(work))
                except StopIteration as stop:
                    self._alone = None
                    done(stop.value)
                    return
                except BaseException:
                    self._alone = None
                    raise

        self._alone = go_on
        go_on()
        self._schedule()

    def finish_alone(self) -> None:
        """Brings work that runs alone to its end in this turn: the loop is about to stop."""
        while self._alone is not None:
            self.spent = 0
            self._alone()

    def close(self) -> None:
        """Nothing that waits goes on; to be called when requests are taken no more."""
        self._is_closed = True
        self._waiting.clear()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self.turns += 1
        self.spent = 0
        try:
            if self._alone is not None:
                self._alone()
            while self._waiting and not self.is_over:
                self._waiting.popleft()()
        finally:
            # Also where one of them has met a defect.
            if self._waiting or self._alone is not None:
                self._schedule()
