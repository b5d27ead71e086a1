"""How fast messages are encoded and decoded: Barnabas beside kafka-python and kio, in one run.

    python -m benchmarks.codec [--rounds N] [--json FILE]

Every message is measured in both directions, in rounds in which the contenders take turns, so that a slow moment of the
machine hits all of them. A figure is the median over the rounds of the CPU time of one call, with the garbage collector
off. All encode to the same bytes, which is checked first.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.codec.cases import Case, cases
from benchmarks.codec.contenders import BARNABAS, CONTENDERS, KAFKA_PYTHON, KIO, Ready, prepare

ROUNDS: Final = 9
SLICE_SECONDS: Final = 0.01
"""About how long one contender works in one round."""
GOALS: Final = {("encode", KAFKA_PYTHON): 5.0, ("encode", KIO): 7.0, ("decode", KAFKA_PYTHON): 1.2}
"""How many times as fast Barnabas is to be, as the median over the messages."""


@dataclass(frozen=True, slots=True)
class Row:
    """One message in one direction: microseconds per call by contender, and why one is missing."""

    case: Case
    direction: str
    microseconds: Mapping[str, float]
    missing: Mapping[str, str]

    def ratio(self, other: str) -> float | None:
        """How many times as fast Barnabas is as `other`; None if that one is missing."""
        theirs = self.microseconds.get(other)
        return None if theirs is None else theirs / self.microseconds[BARNABAS]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds per message and direction (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args(arguments)
    rows = [row for case in cases() for row in measure(case, options.rounds)]
    show(rows)
    if options.json:
        Path(options.json).write_text(json.dumps(as_json(rows, options.rounds), indent=2) + "\n", encoding="utf-8")
    return 0


def measure(case: Case, rounds: int) -> list[Row]:
    """Both directions of one message."""
    ready, missing = prepare(case)
    return [
        Row(case, direction, _medians({name: _call(one, direction) for name, one in ready.items()}, rounds), missing)
        for direction in ("encode", "decode")
    ]


def _call(ready: Ready, direction: str) -> Callable[[], Any]:
    return ready.encode if direction == "encode" else ready.decode


def _medians(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    repeats = {name: max(1, math.ceil(SLICE_SECONDS / max(_seconds(call, 3), 1e-7))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_seconds(call, repeats[name]) * 1e6)
    return {name: statistics.median(figures) for name, figures in times.items()}


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of one call, as the mean of `repeats`."""
    turns = range(repeats)
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for _ in turns:
            call()
        return (time.process_time() - began) / repeats
    finally:
        gc.enable()


def show(rows: list[Row]) -> None:
    """Prints the table, what is missing and why, and the medians beside the goals."""
    print(f"{'':59}{'us per call':>33}{'times as fast as':>22}")
    print(f"{'message':51}{'':8}" + "".join(f"{name:>13}"[:13] for name in CONTENDERS) + f"{KAFKA_PYTHON:>14}{KIO:>8}")
    for row in rows:
        times = "".join(_cell(row.microseconds.get(name), 13, 2) for name in CONTENDERS)
        ratios = _cell(row.ratio(KAFKA_PYTHON), 12, 1) + _cell(row.ratio(KIO), 8, 1)
        print(f"{row.case.name:51}{row.direction:8}{times}{ratios}")
    reasons = {(row.case.message, name): why for row in rows for name, why in row.missing.items()}
    for (message, name), why in reasons.items():
        print(f"n/a: {name} has no {message}: {why}")
    print("\nmedian over the messages, times as fast:")
    for (direction, other), (median, least) in summary(rows).items():
        goal = GOALS.get((direction, other))
        verdict = "" if goal is None else f"   goal {goal:g}: {'reached' if median >= goal else 'MISSED'}"
        print(f"  {direction} vs {other:14} {median:6.1f}   (least {least:.1f}){verdict}")


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'n/a' if value is None else format(value, f'.{digits}f'):>{width}}"


def summary(rows: list[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """By direction and contender: the median and the least of the ratios."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for direction in ("encode", "decode"):
        for other in (KAFKA_PYTHON, KIO):
            ratios = [row.ratio(other) for row in rows if row.direction == direction]
            known = [ratio for ratio in ratios if ratio is not None]
            found[direction, other] = (statistics.median(known), min(known))
    return found


def as_json(rows: list[Row], rounds: int) -> dict[str, Any]:
    """Everything that was measured, for other programs."""
    return {
        "benchmark": "codec",
        "unit": "CPU microseconds per call, median of the rounds",
        "rounds": rounds,
        "python": sys.version.split()[0],
        "messages": [
            {
                "message": row.case.message,
                "version": row.case.version,
                "what": row.case.what,
                "direction": row.direction,
                "microseconds": dict(row.microseconds),
                "missing": dict(row.missing),
            }
            for row in rows
        ],
        "times_as_fast": [
            {
                "direction": direction,
                "as": other,
                "median": median,
                "least": least,
                "goal": GOALS.get((direction, other)),
            }
            for (direction, other), (median, least) in summary(rows).items()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
