"""Virtual time: one heap of everything that will happen to all hosts of a simulation, the seed's randomness, the
trace, and what went wrong.

Nothing here knows of hosts, networks or disks; they schedule actions. Time is a float of seconds that starts at 0 and
moves only from one action to the next; actions at the same time run in the order in which they were scheduled. Every
consumer of randomness draws from a stream of its own, named by its purpose, so a change in one part of a scenario does
not reshuffle the others.
"""

from __future__ import annotations

import gc
import heapq
import sys
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.testing.killed_code import no_news_of_the_killed
from barnabas.testing.real_threads import this_thread
from barnabas.testing.trace import EventTrace

if TYPE_CHECKING:
    import asyncio

YOUNG_COLLECTION_ACTIONS = 1 << 15
FULL_COLLECTION_ACTIONS = 1 << 20
COMPACTION_MIN = 512


class Cancellable(Protocol):
    """The argument of an action that may be cancelled while it lies in the heap."""

    is_cancelled: bool


class OutOfActionsError(Exception):
    """Nothing is scheduled any more, so nothing can ever change."""


class TimeIsUpError(Exception):
    """The deadline came first."""


class World:
    """The clockwork of one simulation.

    `now` is the virtual time in seconds. `failures` are the exceptions that nobody handled, oldest first; a run stops
    at the first.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.trace = EventTrace()
        self.failures: list[BaseException] = []
        self.left_failed: list[tuple[str, asyncio.Task[Any]]] = []
        """Tasks that had raised what nobody had taken when their processes ended by themselves, with the processes'
        names.
        """
        self.actions_done = 0
        self.hooks: object = None
        """The loop whose hooks for asynchronous generators are set; loops set theirs when they take turns."""
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self.thread = this_thread()
        """Where it runs."""
        self._scheduled = 0
        self._cancelled = 0
        self._running = False

    def random(self, purpose: str) -> Random:
        """A stream of randomness that depends on the seed and the purpose only."""
        return Random(f"{self.seed}/{purpose}")

    def schedule(self, when: float, action: Callable[[Any], object], argument: Any = None) -> None:
        """Runs `action(argument)` at virtual time `when` (not before now)."""
        self._scheduled += 1
        heapq.heappush(self._heap, (when, self._scheduled, action, argument))

    def fail(self, failure: BaseException) -> None:
        """Ends the run with this exception as its cause."""
        self.failures.append(failure)

    def let_go(self, loop: object) -> None:
        """Lets go of what the timers of a loop that is dropped would call, and of all that hangs on it; they come up,
        and do nothing.
        """
        for _, _, action, timer in self._heap:
            if getattr(action, "__self__", None) is loop and hasattr(timer, "callback"):
                timer.callback, timer.arguments = None, ()

    def cancelled_one(self) -> None:
        """Says that the argument of a scheduled action has become cancelled; many of them are swept out together."""
        self._cancelled += 1
        if self._cancelled > COMPACTION_MIN and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if not getattr(entry[3], "is_cancelled", False)]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def passed_cancelled(self) -> None:
        """Says that a cancelled action came up and was skipped."""
        if self._cancelled:
            self._cancelled -= 1

    def run(self, condition: Callable[[], bool] | None, deadline: float) -> None:
        """Runs actions until `condition()` is true (looked at after each) or nothing is left before `deadline`.

        Raises TimeIsUpError with `now` at the deadline, or OutOfActionsError with the heap empty; returns early when
        something failed: the caller looks at `failures`. Garbage is collected at counted actions only, so that
        finalizers run at the same virtual moment in every run.
        """
        if self._running:
            raise RuntimeError("the simulation is running already; code inside it may not run it again")
        self._running = True
        self.thread = this_thread()
        hooks = sys.get_asyncgen_hooks()
        self.hooks = None
        collect_again = gc.isenabled()
        gc.disable()
        try:
            self._run(condition, deadline)
        finally:
            self._running = False
            if collect_again:
                gc.enable()
            self.hooks = None
            sys.set_asyncgen_hooks(*hooks)

    def _run(self, condition: Callable[[], bool] | None, deadline: float) -> None:
        heap = self._heap
        failures = self.failures
        pop = heapq.heappop
        if failures or (condition is not None and condition()):
            return
        while heap:
            when = heap[0][0]
            if when > deadline:
                self.now = deadline
                raise TimeIsUpError
            _, _, action, argument = pop(heap)
            self.now = when
            action(argument)
            self.actions_done += 1
            if not self.actions_done % YOUNG_COLLECTION_ACTIONS:
                with no_news_of_the_killed():
                    gc.collect(2 if not self.actions_done % FULL_COLLECTION_ACTIONS else 1)
            if failures or (condition is not None and condition()):
                return
        raise OutOfActionsError
