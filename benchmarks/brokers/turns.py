"""What something costs, by very many short turns of two sides, of which one has it and the other has not: 0, 1, 1, 0,
0, 1, 1, 0 and so on.

Two turns beside each other are a pair, and what is looked at is the ratio in each: so whatever changes slowly (the
clock of the processor, what others do, the size of a log) is in both, and as often first in the one as in the other.
Pairs in which neither side has it show what the method makes of nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Pair = tuple[float, float]
"""What a request costs in two turns beside each other, in seconds: of the side that has it, and of the other one."""
_MISSED: Final = 0.05
"""How often the median of all pairs that there could be is not where `interval` says."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What was measured."""

    pairs: list[Pair] = field(default_factory=list)
    alike: list[Pair] = field(default_factory=list)
    """Of which neither side has it."""


def paired(turns: Sequence[float], *, side: int) -> Iterator[Pair]:
    """The pairs of turns that were taken, where `side` is the one that has it."""
    for number, (first, second) in enumerate(zip(turns[::2], turns[1::2], strict=True)):
        yield (first, second) if number % 2 == side else (second, first)


def ratios(pairs: Sequence[Pair]) -> list[float]:
    return [with_it / without for with_it, without in pairs]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of all values that there could be lies, 19 times in 20, whatever their distribution: each is
    above it or below it like a coin that is tossed. Of fewer than six that says less, and all of them are meant.
    """
    ordered, count = sorted(values), len(values)
    left_out, chance = 0, 0.5**count
    while chance <= _MISSED / 2:
        left_out += 1
        chance += math.exp(_log_choices(count, left_out) - count * math.log(2))
    first = max(0, left_out - 1)
    return ordered[first], ordered[-1 - first]


def _log_choices(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def table(names: Mapping[str, str], found: Mapping[str, Turns], ratio_max: float) -> str:
    """The figures, and what they are to those without it, as a table in Markdown."""
    lines = ["| what | with / without | ratio | 19 times in 20 | nothing | 19 times in 20 | goal |"]
    lines.append("|---" * 7 + "|")
    for name, turns in found.items():
        both = " / ".join(f"{1e6 * statistics.median(figures):.1f}" for figures in zip(*turns.pairs, strict=True))
        cells = [names[name], f"{both} us"]
        for values in (ratios(turns.pairs), ratios(turns.alike)):
            low, high = interval(values)
            cells += [f"{statistics.median(values):.3f}", f"{low:.3f}-{high:.3f}"]
        is_met = statistics.median(ratios(turns.pairs)) <= ratio_max
        cells.append(f"at most {ratio_max}: {'met' if is_met else 'NOT met'}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
