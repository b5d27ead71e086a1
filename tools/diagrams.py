"""Draws the diagrams of the docs, which are written as Mermaid, as SVG: readers of the built pages load no JavaScript
for them and nothing from elsewhere. `svg(source)` takes the two kinds that the docs use and of each only what they use:

- `sequenceDiagram`: `participant A as Name`, `A->>B: text` (`-->>` dashed, `--x` lost), `Note over A: text`.
- `stateDiagram-v2`: `A --> B : events`, `[*] --> A` (start), `A --> [*]` (end). Each state is a column, each
  transition an arrow between two columns.

Anything else raises `DiagramError` with the line: the page would show less than its text says. The same text gives the
same bytes. Colours are those of the page (`currentColor`), in dark and in light.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import Final

CAPITAL: Final = 8.4
"""Pixels that a capital takes at most, in the 12 px that text has here."""
SMALL: Final = 6.4
"""And any other character."""
WIDEST_GAP: Final = 200
"""Pixels between two columns that are neighbours, at most, where they are far apart for what is said between them."""
ROW: Final = 36
HEAD: Final = 30
MARGIN: Final = 12
_PARTICIPANT: Final = re.compile(r"participant (\w+) as (.+)")
_MESSAGE: Final = re.compile(r"(\w+)(->>|-->>|--x)(\w+): (.+)")
_NOTE: Final = re.compile(r"Note over (\w+): (.+)")
_TRANSITION: Final = re.compile(r"(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : (.+))?")
_POINT: Final = "[*]"


class DiagramError(ValueError):
    """A line that is not of the Mermaid that is drawn here."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one column to another, with what stands above it."""

    source: str
    target: str
    text: str
    dashed: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Text in a box on one column."""

    column: str
    text: str


@dataclass(slots=True)
class Drawing:
    """Columns by their keys, in order, with their names; rows from the top; which states begin and which end."""

    columns: dict[str, str]
    rows: list[Arrow | Note]
    first: set[str]
    last: set[str]


def svg(source: str) -> str:
    """The picture of a diagram in Mermaid, as one `<svg>` element."""
    kind, *lines = [line.strip() for line in source.strip().splitlines()]
    if kind == "sequenceDiagram":
        return _drawn(_sequence(lines), "A sequence of messages")
    if kind == "stateDiagram-v2":
        return _drawn(_states(lines), "States, and the events that lead from one to another")
    raise DiagramError(f"no diagram of this kind is drawn: {kind!r}")


def _sequence(lines: list[str]) -> Drawing:
    drawing = Drawing({}, [], set(), set())
    for line in lines:
        if found := _PARTICIPANT.fullmatch(line):
            drawing.columns[found[1]] = found[2]
        elif found := _MESSAGE.fullmatch(line):
            dashed = found[2].startswith("--")
            drawing.rows.append(Arrow(found[1], found[3], found[4], dashed, found[2] == "--x"))
        elif found := _NOTE.fullmatch(line):
            drawing.rows.append(Note(found[1], found[2]))
        else:
            raise DiagramError(f"not drawn: {line!r}")
    named = {name for row in drawing.rows for name in _named(row)}
    if not named <= drawing.columns.keys():
        raise DiagramError(f"no participants: {sorted(named - drawing.columns.keys())}")
    return drawing


def _named(row: Arrow | Note) -> tuple[str, ...]:
    return (row.column,) if isinstance(row, Note) else (row.source, row.target)


def _is_loop(row: Arrow | Note) -> bool:
    return isinstance(row, Arrow) and row.source == row.target


def _states(lines: list[str]) -> Drawing:
    drawing = Drawing({}, [], set(), set())
    for line in lines:
        found = _TRANSITION.fullmatch(line)
        if found is None:
            raise DiagramError(f"not drawn: {line!r}")
        source, target, events = found.groups()
        for state in (source, target):
            if state != _POINT:
                drawing.columns.setdefault(state, state)
        if source == _POINT:
            drawing.first.add(target)
        elif target == _POINT:
            drawing.last.add(source)
        else:
            drawing.rows.append(Arrow(source, target, events or ""))
    return drawing


def _drawn(drawing: Drawing, title: str) -> str:
    centres, width = _places(drawing)
    height = MARGIN + HEAD + ROW * len(drawing.rows) + MARGIN
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    look = 'role="img" font-size="12" font-family="inherit" fill="none" stroke="currentColor"'
    parts = [f'<svg class="drawn" xmlns="http://www.w3.org/2000/svg" {box} {look}><title>{title}</title>']
    for key, name in drawing.columns.items():
        x = centres[key]
        half = _wide(name) // 2 + 8
        parts.append(f'<path d="M{x} {MARGIN + HEAD}V{height - MARGIN}" stroke-opacity="0.3"/>')
        parts.append(f'<rect x="{x - half}" y="{MARGIN}" width="{2 * half}" height="{HEAD - 6}" rx="5"/>')
        parts.append(_text(x, MARGIN + 16, name))
        if key in drawing.first:
            parts.append(
                f'<circle cx="{x - half}" cy="{MARGIN}" r="4" fill="currentColor"><title>start</title></circle>'
            )
        if key in drawing.last:
            parts.append(
                f'<circle cx="{x + half}" cy="{MARGIN + HEAD - 6}" r="4" class="end"><title>end</title></circle>'
            )
            parts.append(f'<circle cx="{x + half}" cy="{MARGIN + HEAD - 6}" r="1.5" fill="currentColor"/>')
    for number, row in enumerate(drawing.rows):
        y = MARGIN + HEAD + ROW * number + 26
        parts.append(_note(row, centres, y, width) if isinstance(row, Note) else _arrow(row, centres, y, width))
    parts.append("</svg>")
    return "".join(parts)


def _wide(text: str) -> int:
    return round(sum(CAPITAL if character.isupper() else SMALL for character in text))


def _places(drawing: Drawing) -> tuple[dict[str, int], int]:
    """Where the middle of each column is, and how wide the picture: no name of a column reaches the next one, and no
    text is wider than the picture.
    """
    centres: dict[str, int] = {}
    edge, before, former = MARGIN, 0, ""
    for key, name in drawing.columns.items():
        half = max(_wide(name) // 2 + 14, 44)
        said = max((_wide(row.text) for row in drawing.rows if {former, key} == set(_named(row))), default=0)
        centres[key] = max(edge + half, before + min(said + 24, WIDEST_GAP) if former else 0)
        edge, before, former = centres[key] + half, centres[key], key
    longest = max((_wide(row.text) for row in drawing.rows), default=0)
    loops = [centres[_named(row)[0]] + 36 + _wide(row.text) for row in drawing.rows if _is_loop(row)]
    return centres, max(edge, longest + 24, *loops, 0) + MARGIN


def _text(x: int, y: int, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" stroke="none">{escape(text)}</text>'


def _within(x: int, text: str, width: int) -> int:
    """The middle of a text that is to be around `x`, moved so that it is in the picture."""
    half = _wide(text) // 2
    return max(half + 4, min(x, width - half - 4))


def _note(note: Note, centres: dict[str, int], y: int, width: int) -> str:
    x = _within(centres[note.column], note.text, width - 12)
    half = _wide(note.text) // 2 + 6
    box = f'<rect class="note" x="{x - half}" y="{y - 18}" width="{2 * half}" height="24"/>'
    return box + _text(x, y - 2, note.text)


def _arrow(arrow: Arrow, centres: dict[str, int], y: int, width: int) -> str:
    start, end = centres[arrow.source], centres[arrow.target]
    dash = ' stroke-dasharray="5 3"' if arrow.dashed else ""
    if start == end:
        loop = f'<path d="M{start} {y - 10}h22v10h-18"{dash}/>' + _tip(start + 2, y, -1)
        return loop + _text(start + 30, y - 3, arrow.text, "start")
    way = 1 if end > start else -1
    line = f'<path d="M{start} {y}H{end - 3 * way}"{dash}/>'
    tip = f'<path d="M{end - 12} {y - 5}l10 10m0 -10l-10 10"/>' if arrow.lost else _tip(end - way, y, way)
    return line + tip + _text(_within((start + end) // 2, arrow.text, width), y - 6, arrow.text)


def _tip(x: int, y: int, way: int) -> str:
    return f'<path d="M{x} {y}l{-9 * way} -4v8z" fill="currentColor"/>'
