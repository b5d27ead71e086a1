"""What commands print: tables for people, JSON for programs, messages on standard error.

Standard output has results only. On a terminal a table fits its width: long cells go on in further lines, between
words, and where the columns have no room beside each other they stand below each other. Piped, it is plain text in
columns, a row per line, with nothing left out. Whatever comes from a cluster is shown with its control characters
escaped, so that no name of a topic or a client can play with a terminal.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NOTHING: Final = "-"
"""A cell without a value."""
_GAP: Final = "  "
_CUT_WIDTH_MIN: Final = 12
"""What is left of a cell that may be cut, so that it still says something."""
_CONTROL: Final = "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"


class Mark(enum.Enum):
    """How a cell stands out on a terminal; the value is a style of rich."""

    GOOD = "green"
    WARNING = "yellow"
    BAD = "bold red"
    FAINT = "dim"


@fact
class Marked:
    """A cell that stands out; in JSON and piped it is its value."""

    value: object
    mark: Mark


@fact
class Column:
    """A column: its heading for people, its name for programs (snake_case), and whether it holds numbers."""

    heading: str
    name: str
    is_number: bool = False
    is_cut: bool = False
    """On a terminal a long cell is cut to one line; what it says in full must be elsewhere."""


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], as_json: bool = False) -> None:
    """One row after another: as a table with headings, or as one JSON object per line, by the columns' names.

    None is `-` and null, a sequence is its items with commas and an array, a boolean yes/no and true/false.
    """
    if as_json:
        for row in rows:
            print_json({column.name: _bare(cell) for column, cell in zip(columns, row, strict=True)})
    elif sys.stdout.isatty():
        _print_on_terminal(columns, rows)
    else:
        _print_plainly(columns, rows)


def print_json(document: Any) -> None:
    """One JSON document in one line."""
    import json

    click.echo(json.dumps(document, separators=(",", ":")))


def announce(line: str) -> None:
    """A server says what it serves, at once. It goes on where nobody can hear that any more."""
    try:
        click.echo(line)
    except OSError:
        give_up_output()


def give_up_output() -> None:
    """Drops what cannot be written to standard output, about which Python would complain once more at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values, one pair per line, the values below each other."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        text = shown(value)
        if isinstance(value, Marked) and _has_styles():
            text = click.style(text, **_CLICK_STYLES[value.mark])
        click.echo(f"{name:<{width}}{_GAP}{text}")


def say(message: str) -> None:
    """A line for people on standard error: what is done, what was left out."""
    click.echo(message, err=True)


def shown(value: object) -> str:
    """A value as text for people, without control characters."""
    value = _bare(value)
    if value is None or value in ("", [], ()):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(shown, value))
    return printable(str(value))


def printable(text: str) -> str:
    """The text with its control characters, and what turns the direction of writing, as escapes."""
    if text.isprintable():
        return text  # most are: the pattern takes a while to be made
    return re.sub(_CONTROL, lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """`1 partition`, `6 partitions`, `2 replicas`; `nouns` where it is no plural in s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def size(number_bytes: int) -> str:
    """A number of bytes in the unit that fits: `512 B`, `1.5 MiB`."""
    value, unit = float(number_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < _UNIT:
            break
        value, unit = value / _UNIT, larger
    return f"{number_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


_UNIT: Final = 1024
_CLICK_STYLES: Final[dict[Mark, dict[str, Any]]] = {
    Mark.GOOD: {"fg": "green"},
    Mark.WARNING: {"fg": "yellow"},
    Mark.BAD: {"fg": "red", "bold": True},
    Mark.FAINT: {"dim": True},
}


def _has_styles() -> bool:
    """Whether standard output is a terminal that shows styles, and nobody asked for none, as rich sees it too."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in {"dumb", "unknown"}


def _bare(cell: object) -> object:
    return cell.value if isinstance(cell, Marked) else cell


def _print_plainly(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    lines = [[column.heading for column in columns], *([shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text: list[str] = []
    for cells in lines:
        padded = [
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for column, cell, width in zip(columns, cells, widths, strict=True)
        ]
        text.append(_GAP.join(padded).rstrip())
    # At once: each line on its own would be written, and flushed, on its own.
    click.echo("\n".join(text))


def _print_on_terminal(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout)
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = _widths(columns, cells, console.width - len(_GAP) * (len(columns) - 1))
    if widths is None:
        _print_stacked(console, columns, cells)
    else:
        _print_grid(console, columns, cells, widths)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[Text]], room: int) -> list[int] | None:
    """How wide each column is, all of them at most `room`, so that no word is broken; None where that cannot be.

    What is left when each has its longest word goes to the columns that want least.
    """
    least, wanted = [], []
    for at, column in enumerate(columns):
        texts = [column.heading, *(row[at].plain for row in cells)]
        wanted.append(max(map(_cell_length, texts)))
        longest_word = max(_cell_length(word) for text in texts for word in (text.split() or [""]))
        least.append(min(longest_word, max(_CUT_WIDTH_MIN, len(column.heading))) if column.is_cut else longest_word)
    left = room - sum(least)
    if left < 0:
        return None
    widths = list(least)
    for at in sorted(range(len(columns)), key=lambda at: wanted[at] - least[at]):
        more = min(wanted[at] - least[at], left)
        widths[at] += more
        left -= more
    return widths


def _cell_length(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _print_grid(
    console: Console, columns: Sequence[Column], cells: Sequence[Sequence[Text]], widths: Sequence[int]
) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if column.is_cut else "fold"
        table.add_column(column.heading, justify=justify, overflow=overflow, width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _print_stacked(console: Console, columns: Sequence[Column], cells: Sequence[Sequence[Text]]) -> None:
    """For a terminal that is too narrow for columns beside each other: a row is a block of names and values."""
    from rich.table import Table
    from rich.text import Text

    for number, row in enumerate(cells):
        if number:
            console.print()
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            block.add_row(Text(column.heading, style="bold"), cell)
        console.print(block)


def _text(cell: object) -> Text:
    from rich.text import Text

    return Text(shown(cell), style=cell.mark.value if isinstance(cell, Marked) else "")
