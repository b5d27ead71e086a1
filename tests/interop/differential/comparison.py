"""Compares two servers over the same steps and shrinks what differs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.interop.differential.execution import Run, StepOutcome
from tests.interop.differential.steps import Batch, Step

SHRINKING_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step whose outcomes differ."""

    index: int
    expected: StepOutcome
    actual: StepOutcome


class Comparison:
    """Two servers on loopback: the oracle and the one under test. Each run has a root of its own on both."""

    def __init__(self, oracle_port: int, tested_port: int) -> None:
        self._oracle_port = oracle_port
        self._tested_port = tested_port
        self._runs = itertools.count(1)

    def difference(self, steps: Sequence[Step]) -> Difference | None:
        """Runs the steps on both servers; the first difference, or None."""
        root = f"/run{next(self._runs):06}"
        expected = Run(self._oracle_port, root).transcript(steps)
        actual = Run(self._tested_port, root).transcript(steps)
        return next(
            (
                Difference(index, theirs, ours)
                for index, (theirs, ours) in enumerate(zip(expected, actual, strict=True))
                if theirs != ours
            ),
            None,
        )

    def explain(self, steps: Sequence[Step]) -> str:
        """Empty when both servers agree; else a shrunk sequence of steps and what each server answered to its last."""
        found = self.difference(steps)
        if found is None:
            return ""
        shrunk, found = self._shrunk(list(steps[: found.index + 1]), found)
        lines = [f"  {step}" for step in shrunk]
        for index, (theirs, ours) in enumerate(zip(found.expected.seen, found.actual.seen, strict=True)):
            if theirs != ours:
                lines += [
                    f"session {index} of the oracle saw {_shown(theirs)}",
                    f"session {index} of ours saw   {_shown(ours)}",
                ]
        return "\n".join(["the servers differ in the last of these steps:", *lines])

    def _shrunk(self, steps: list[Step], found: Difference) -> tuple[list[Step], Difference]:
        """Leaves out what is not needed for a difference, until nothing more can go or the time is over."""
        deadline = time.monotonic() + SHRINKING_SECONDS
        size = max(1, len(steps) // 2)
        while time.monotonic() < deadline:
            smaller = self._first_that_differs(_without_parts(steps, size), deadline)
            if smaller is not None:
                steps, found = smaller
            elif size > 1:
                size //= 2
            else:
                smaller = self._first_that_differs(_without_calls(steps), deadline)
                if smaller is None:
                    break
                steps, found = smaller
        return steps, found

    def _first_that_differs(
        self, candidates: Sequence[list[Step]], deadline: float
    ) -> tuple[list[Step], Difference] | None:
        for candidate in candidates:
            if time.monotonic() >= deadline:
                return None
            found = self.difference(candidate)
            if found is not None:
                return candidate[: found.index + 1], found
        return None


def _without_parts(steps: list[Step], size: int) -> list[list[Step]]:
    return [steps[:start] + steps[start + size :] for start in range(0, len(steps), size)]


def _without_calls(steps: list[Step]) -> list[list[Step]]:
    smaller: list[list[Step]] = []
    for index, step in enumerate(steps):
        if isinstance(step, Batch) and len(step.calls) > 1:
            for left_out in range(len(step.calls)):
                calls = step.calls[:left_out] + step.calls[left_out + 1 :]
                smaller.append([*steps[:index], Batch(step.session, calls), *steps[index + 1 :]])
    return smaller


def _shown(seen: tuple[object, ...]) -> str:
    text = repr(seen)
    return text if len(text) <= 3_000 else f"{text[:3_000]} ... ({len(text)} characters)"
