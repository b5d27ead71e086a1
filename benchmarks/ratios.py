"""Ours beside another's: figures of both from the same rounds, as the table that the docs have."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

Figures = Mapping[str, Mapping[str, list[float]]]
"""By row and kind, one for each round."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: ours to the other's is to be at least, or at most, `goal`, where there is one."""

    name: str
    unit: str
    goal: float | None
    is_at_least: bool


def table(rows: Mapping[str, Row], figures: Figures, ours: str, theirs: str, heading: str = "ours / Kafka's") -> str:
    """The figures as a table in Markdown; rows without figures are left out."""
    lines = [f"| what | {heading} | ratio | middle half | goal |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        if name not in figures:
            continue
        mine, others = figures[name][ours], figures[name][theirs]
        ratios = [one / other for one, other in zip(mine, others, strict=True)]
        ratio = statistics.median(ratios)
        goal = ""
        if row.goal is not None:
            met = ratio >= row.goal if row.is_at_least else ratio <= row.goal
            goal = f"{'at least' if row.is_at_least else 'at most'} {row.goal}: {'met' if met else 'NOT met'}"
        both = f"{statistics.median(mine):,.4g} / {statistics.median(others):,.4g} {row.unit}"
        lines.append(f"| {row.name} | {both} | {ratio:.2f} | {middle_half(ratios)} | {goal} |")
    return "\n".join(lines)


def middle_half(ratios: list[float]) -> str:
    """The quartiles of one or more ratios."""
    if len(ratios) == 1:
        return "one round"
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{low:.2f}-{high:.2f}"
