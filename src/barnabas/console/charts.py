"""Charts as SVG, drawn by the server: figures over time, and who led and was in sync when.

Nothing is told by colour alone: lines have dashes of their own and their names in a legend, lanes differ in height.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.console.history import PartitionState
from barnabas.console.html import Html, tag
from barnabas.console.words import ids, moment

_WIDTH: Final = 560
_HEIGHT: Final = 198
_LEFT: Final = 56
_RIGHT: Final = 12
_TOP: Final = 32
_BOTTOM: Final = 24
_TICKS: Final = 4
_LINES_MAX: Final = 6
GAP_MS: Final = 60_000
"""Where samples are further from each other, nothing is known in between, and no line drawn."""
_LANE: Final = 26
_LANE_LEFT: Final = 88
_BAR: Final = {"leader": 16, "in-sync": 9, "behind": 2}


@dataclass(frozen=True, slots=True)
class Line:
    """A figure over time; times in ms since 1970, ascending."""

    name: str
    points: Sequence[tuple[int, float]]


def line_chart(caption: str, unit: str, lines: Sequence[Line], empty: str = "No samples yet: wait a moment.") -> Html:
    """Lines over one axis of time; `unit` stands at the vertical axis, which begins at 0."""
    lines = [line for line in lines if line.points][:_LINES_MAX]
    if not any(len(line.points) > 1 for line in lines):
        return tag("figure", tag("figcaption", caption), tag("p", empty, class_="faint"))
    first = min(line.points[0][0] for line in lines)
    last = max(*(line.points[-1][0] for line in lines), first + 1)
    top = _nice(max(value for line in lines for _, value in line.points))

    def x(time_ms: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (time_ms - first) / (last - first)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top

    parts: list[Html] = [tag("text", unit, x=4, y=12, class_="axis")]
    for step in range(_TICKS + 1):
        value = top * step / _TICKS
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_at(y(value)), y2=_at(y(value)), class_="grid"))
        parts.append(tag("text", _figure(value), x=_LEFT - 6, y=_at(y(value) + 4), class_="tick end"))
    parts += _times(first, last, x, _HEIGHT - 6)
    for number, line in enumerate(lines):
        parts.append(tag("path", d=_path(line.points, x, y), class_=f"line series-{number}"))
    latest = ", ".join(f"{line.name} {_figure(line.points[-1][1])}" for line in lines)
    drawing = tag("svg", parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=f"{caption}: {latest} {unit}")
    return tag("figure", tag("figcaption", caption), drawing, _legend(lines))


def lanes(states: Sequence[PartitionState], now_ms: int) -> Html:
    """A lane for each replica, from the first state until now: a high bar while it led, a lower one while it was in
    sync, a thin line while it was not.
    """
    replicas = sorted({each for state in states for each in (*state.replicas, *state.isr)})
    first, last = states[0].since_ms, max(now_ms, states[0].since_ms + 1)
    if len(states) > 1:
        # Of what was long before the first change nothing is to be seen.
        first = max(first, min(2 * states[1].since_ms - last, last - 1))
    height = _LANE * len(replicas) + 26

    def x(time_ms: float) -> float:
        return _LANE_LEFT + (_WIDTH - _LANE_LEFT - _RIGHT) * (time_ms - first) / (last - first)

    parts: list[Html] = []
    for row, replica in enumerate(replicas):
        middle = row * _LANE + _LANE / 2
        parts.append(tag("text", f"broker {replica}", x=_LANE_LEFT - 6, y=_at(middle + 4), class_="tick end"))
        for place, state in enumerate(states):
            begins = max(first, state.since_ms)
            ends = states[place + 1].since_ms if place + 1 < len(states) else last
            kind = _kind(state, replica)
            if kind is not None and ends > begins:
                parts.append(_bar(kind, x(begins), x(ends), middle))
    parts += _times(first, last, x, height - 6)
    summary = f"now led by {states[-1].leader_id}, in sync: {ids(states[-1].isr)}"
    drawing = tag("svg", parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=f"Leader and ISR: {summary}")
    words = {"leader": "leader", "in-sync": "in sync", "behind": "not in sync"}
    legend = tag("ul", [tag("li", _key(kind), word) for kind, word in words.items()], class_="legend")
    return tag("figure", tag("figcaption", "Who led, and who was in sync"), drawing, legend)


# Inside.


def _kind(state: PartitionState, replica: int) -> str | None:
    if replica == state.leader_id:
        return "leader"
    if replica in state.isr:
        return "in-sync"
    return "behind" if replica in state.replicas else None


def _bar(kind: str, begin: float, end: float, middle: float) -> Html:
    high = _BAR[kind]
    return tag(
        "rect", x=_at(begin), y=_at(middle - high / 2), width=_at(max(1.0, end - begin)), height=high, class_=kind
    )


def _key(kind: str) -> Html:
    return tag("svg", _bar(kind, 0, 22, 9), viewBox="0 0 22 18", width=22, height=18, aria_hidden="true")


def _legend(lines: Sequence[Line]) -> Html:
    def key(number: int) -> Html:
        return tag(
            "svg",
            tag("path", d="M0 9H26", class_=f"line series-{number}"),
            viewBox="0 0 26 18",
            width=26,
            height=18,
            aria_hidden="true",
        )

    return tag("ul", [tag("li", key(number), line.name) for number, line in enumerate(lines)], class_="legend")


def _path(points: Sequence[tuple[int, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    parts: list[str] = []
    before: int | None = None
    for time_ms, value in points:
        is_new = before is None or time_ms - before > GAP_MS
        parts.append(f"{'M' if is_new else 'L'}{_at(x(time_ms))} {_at(y(value))}")
        before = time_ms
    return "".join(parts)


def _times(first: float, last: float, x: Callable[[float], float], y: float) -> list[Html]:
    kinds = ("tick start", "tick middle", "tick end")
    times = (first, (first + last) / 2, last)
    return [
        tag(
            "text",
            f"{moment(int(time_ms), int(last))}{' UTC' if kind == 'tick end' else ''}",
            x=_at(x(time_ms)),
            y=_at(y),
            class_=kind,
        )
        for time_ms, kind in zip(times, kinds, strict=True)
    ]


def _nice(value: float) -> float:
    """A round number that is not less, at least 4."""
    if value <= _TICKS:
        return float(_TICKS)
    scale = 10.0 ** math.floor(math.log10(value))
    return next(scale * step for step in (1, 2, 4, 8, 10) if scale * step >= value)


def _figure(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):g}{letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
