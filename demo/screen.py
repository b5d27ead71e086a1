"""What the run says: numbered steps of one line each, and how far the present one is."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

SECONDS_BETWEEN_LINES: Final = 10.0
_PICTURE_WIDTH: Final = 104
# rich names hosts for its fonts, and its own; a picture must load nothing, and any font of fixed width will do.
_NAMES_OF_HOSTS: Final = re.compile(r"@font-face\s*{[^}]*}|<!--.*?-->", re.DOTALL)


class Meter(Protocol):
    """Shows how far one step is; may be called from any thread."""

    def __call__(self, completed: int, note: str = "") -> None: ...


class Screen:
    """The run's output. What it printed can be kept as a picture.

    On a terminal a bar shows how far a step is, and is gone when the step is done; elsewhere a line does every
    SECONDS_BETWEEN_LINES.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: list[RenderableType] = []
        self._number = 0
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        """A step that is done, with the time since the run began. `text` is not markup."""
        self._number += 1
        elapsed = time.monotonic() - self._began
        self.show(f"[dim]{elapsed:5.1f} s[/dim] [bold]{self._number:>2}.[/bold] {escape(text)}")

    def detail(self, text: str) -> None:
        """A line that belongs to the last step."""
        self.show(f"            [dim]{escape(text)}[/dim]")

    def show(self, what: RenderableType) -> None:
        """Anything that rich can print; strings are markup."""
        self._printed.append(what)
        self._console.print(what)

    @contextmanager
    def meter(self, what: str, total: int) -> Iterator[Meter]:
        """Shows `what` as under way while the block runs."""
        if self._console.is_terminal:
            columns = (
                TextColumn("            {task.description:<18}"),
                BarColumn(24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}", markup=False),
            )
            with Progress(*columns, console=self._console, transient=True) as progress:
                task = progress.add_task(what, total=total, note="")
                yield lambda completed, note="": progress.update(task, completed=completed, note=note)
        else:
            yield _Lines(self._console, what, total)

    def save_picture(self, path: Path, title: str) -> None:
        """Writes what was printed as SVG. Raises OSError."""
        console = Console(record=True, width=_PICTURE_WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
        console.print("[green]$[/green] make run")
        for what in self._printed:
            console.print(what)
        path.write_text(_NAMES_OF_HOSTS.sub("", console.export_svg(title=title)), encoding="utf-8")


class _Lines:
    """The meter where there is no terminal."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console = console
        self._what = what
        self._total = total
        self._last = time.monotonic()

    def __call__(self, completed: int, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            rest = f"  {note}" if note else ""
            self._console.print(Text(f"            {self._what}: {completed:,} of {self._total:,}{rest}", style="dim"))
