"""How far partitions are on their way: a bar for each on a terminal, lines elsewhere; always on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.cli.output import printable, say, shown, size
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_REFRESHES_PER_SECOND: Final = 4
_LINES_KEPT: Final = 3
_WIDE: Final = 60


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a partition the brokers have that are to get it, or a log directory of one of them."""

    partition: TopicPartition
    adding: tuple[int, ...]
    copied_bytes: int
    total_bytes: int
    is_done: bool
    directory: str | None = None
    """Where the one broker of `adding` has a replica already, the log directory that it goes to."""

    @property
    def target(self) -> str:
        """Where it goes, in few characters."""
        return shown(self.adding) if self.directory is None else f"{shown(self.adding)}:{printable(self.directory)}"


class ProgressSink(Protocol):
    """What hears of the progress."""

    def update(self, partitions: Sequence[Progress]) -> None:
        """How far all are now."""

    def said(self, line: str) -> None:
        """Something that people should read."""


@contextlib.contextmanager
def open_progress(*, is_quiet: bool) -> Iterator[ProgressSink]:
    """What is told of the progress, by where standard error goes."""
    if is_quiet or not sys.stderr.isatty():
        yield LineProgress(is_quiet=is_quiet)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stderr)
    bars = BarProgress(console)
    with Live(bars, console=console, refresh_per_second=_REFRESHES_PER_SECOND, transient=False) as live:
        bars.live = live
        yield bars


class LineProgress:
    """A line for each partition that is there, for logs."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._told: set[tuple[TopicPartition, str | None, tuple[int, ...]]] = set()

    def update(self, partitions: Sequence[Progress]) -> None:
        """Tells of those that have come to their end."""
        for each in partitions:
            key = each.partition, each.directory, each.adding
            if each.is_done and key not in self._told:
                self._told.add(key)
                if not self._is_quiet:
                    where = f" onto {each.target}, {size(each.total_bytes)}" if each.adding else ", order only"
                    say(f"{printable(str(each.partition))}{where} ({len(self._told)} of {len(partitions)})")

    def said(self, line: str) -> None:
        """The line as it is."""
        say(line)


class BarProgress:
    """A bar for each partition that is on its way, as many as fit, and one for all."""

    def __init__(self, console: Console) -> None:
        self.live: Live | None = None
        self._console = console
        self._partitions: Sequence[Progress] = ()

    def update(self, partitions: Sequence[Progress]) -> None:
        """Takes what is shown from now on."""
        self._partitions = partitions

    def said(self, line: str) -> None:
        """Above the bars."""
        self._console.print(printable(line), markup=False, highlight=False)

    def __rich__(self) -> RenderableType:
        """The bars as they are now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        console = self._console
        table = Table.grid(padding=(0, 1, 0, 0))
        is_wide = console.width >= _WIDE
        table.add_column(overflow="ellipsis", no_wrap=True, max_width=max(8, console.width // 2 - 6))
        table.add_column(ratio=None if is_wide else 1)
        table.add_column(justify="right", no_wrap=True)
        if is_wide:
            table.add_column(justify="right", no_wrap=True)
        rows = [each for each in self._partitions if not each.is_done]
        room = max(1, console.height - _LINES_KEPT)
        done = len(self._partitions) - len(rows)
        copied = sum(each.copied_bytes for each in self._partitions)
        total = sum(each.total_bytes for each in self._partitions)
        lines = [
            (f"{printable(str(each.partition))} > {each.target}", each.copied_bytes, each.total_bytes)
            for each in rows[:room]
        ]
        lines.append((f"{done} of {len(self._partitions)} there", copied, total))
        bar_width = max(4, console.width // 4)
        for name, part, whole in lines:
            is_all = done == len(self._partitions) > 0
            percent = 100 if is_all else 99 if not whole else min(99, part * 100 // whole)
            bar = ProgressBar(total=100, completed=percent if whole or is_all else 0, width=bar_width)
            cells: list[RenderableType] = [Text(name), bar, Text(f"{percent if whole or is_all else 0}%")]
            if is_wide:
                cells.append(Text(f"{size(part)} of {size(whole)}"))
            table.add_row(*cells)
        return table
