"""How `barnabas pipeline run` shows what it does: a live picture on a terminal, lines elsewhere, JSON for programs.

Progress and messages go to standard error; standard output has the batches as JSON, or the sum at the end. What a sink
`console` shows goes to standard output: as JSON among the batches, or as a table; where both are one terminal, above
the picture.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import click

from barnabas.cli.output import counted, print_json, printable, say, shown, size
from barnabas.pipelines.progress import Progress, ProgressSink, RunSummary, ShownRows, Totals

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

_REFRESHES_PER_SECOND: Final = 4
_GAP: Final = "  "


class RunProgress(ProgressSink, Protocol):
    """What a run tells, and shows."""

    def rows(self, shown: ShownRows) -> None:
        """Rows of a batch, of a sink `console`."""


@contextlib.contextmanager
def open_progress(as_json: bool, on_closed_output: Callable[[], object]) -> Iterator[RunProgress]:
    """What a run tells its progress to, by where the output goes.

    `on_closed_output` is called when nobody reads standard output any more, as `head` does after ten lines; what would
    be printed after that is dropped.
    """
    if as_json:
        yield JsonProgress(on_closed_output)
    elif sys.stderr.isatty():
        with live_progress(sys.stderr, on_closed_output) as progress:
            yield progress
    else:
        yield PlainProgress(on_closed_output)


class _Output:
    """Standard output, for as long as somebody reads it."""

    def __init__(self, on_closed_output: Callable[[], object]) -> None:
        self._on_closed_output = on_closed_output
        self._is_closed = False

    def write(self, print_it: Callable[[], None]) -> None:
        """Prints, and tells once that nobody reads any more."""
        if self._is_closed:
            return
        try:
            print_it()
        except BrokenPipeError:
            self._is_closed = True
            self._on_closed_output()


class JsonProgress:
    """A line of JSON for each batch and one at the end, on standard output."""

    def __init__(self, on_closed_output: Callable[[], object]) -> None:
        self._output = _Output(on_closed_output)

    def said(self, line: str) -> None:
        """A line on standard error."""
        say(printable(line))

    def batch(self, progress: Progress) -> None:
        """The batch as `Progress.to_json` has it."""
        self._print(progress.to_json())

    def ended(self, summary: RunSummary) -> None:
        """The sum as `RunSummary.to_json` has it."""
        self._print(summary.to_json())

    def rows(self, shown: ShownRows) -> None:
        """The rows as `ShownRows.to_json` has them."""
        self._print(shown.to_json())

    def _print(self, document: dict[str, object]) -> None:
        self._output.write(lambda: print_json(document))


class PlainProgress:
    """A line for each batch on standard error, for logs; rows on standard output."""

    def __init__(self, on_closed_output: Callable[[], object]) -> None:
        self._output = _Output(on_closed_output)

    def rows(self, shown: ShownRows) -> None:
        """The rows as a table; none once nobody reads them any more."""
        self._output.write(lambda: click.echo("\n".join(rows_lines(shown))))

    def said(self, line: str) -> None:
        """The line as it is."""
        say(printable(line))

    def batch(self, progress: Progress) -> None:
        """The batch in a line."""
        say(batch_line(progress))

    def ended(self, summary: RunSummary) -> None:
        """The sum, on standard output."""
        click.echo(summary_line(summary))


class LiveProgress:
    """A picture at the foot of the terminal, some lines for each query; what is said scrolls above it."""

    def __init__(self, console: Console, live: Live, on_closed_output: Callable[[], object] = lambda: None) -> None:
        self._output = _Output(on_closed_output)
        self._console = console
        self._live = live
        self._began = time.monotonic()
        self._doing = "starting"
        self._last: dict[str, Progress] = {}

    def said(self, line: str) -> None:
        """Shows the line above the picture, and what is being done in its title."""
        self._doing = printable(line).removesuffix(" ...")
        self._console.print(printable(line), markup=False, highlight=False)

    def batch(self, progress: Progress) -> None:
        """Puts the batch into its query's lines."""
        self._last[progress.query] = progress
        self._doing = "running"

    def rows(self, shown: ShownRows) -> None:
        """The rows above the picture, or on standard output where that is no terminal."""
        text = "\n".join(rows_lines(shown))
        if sys.stdout.isatty():
            self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            self._output.write(lambda: click.echo(text))

    def ended(self, summary: RunSummary) -> None:
        """Leaves the picture as it is, with the sum below it."""
        self._doing = "stopped" if summary.was_stopped else "done"
        self._live.stop()
        click.echo(summary_line(summary))

    def __rich__(self) -> RenderableType:
        """The picture as it is now; asked for some times a second."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        elapsed = clock(time.monotonic() - self._began)
        title = Text(f"{elapsed}  {self._doing}", style="bold", overflow="ellipsis", no_wrap=True)
        if not self._last:
            return title
        table = Table.grid(padding=(0, 2))
        for progress in self._last.values():
            table.add_row(Text(printable(progress.query), style="bold"), Text("\n").join(query_lines(progress)))
        return Group(title, table)


def rows_lines(rows: ShownRows) -> Iterator[str]:
    """Rows of a batch as a table with a title, without control characters."""
    count = f"the first {counted(len(rows.rows), 'row')}" if rows.has_more else counted(len(rows.rows), "row")
    again = ", begun before: they may have been shown already" if rows.is_again else ""
    yield f"{printable(rows.query)} batch {rows.batch_id}, {count}{again}:"
    lines = [[printable(name) for name in rows.columns], *([shown(value) for value in row] for row in rows.rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def query_lines(progress: Progress) -> list[Text]:
    """What a query has done, in lines that fit on a terminal of 80 columns."""
    from rich.text import Text

    totals = progress.totals
    state = f"state {counted(progress.state_rows, 'row')}, {size(progress.state_bytes)}"
    late, *others = not_in_results(totals)
    more = Text(", ".join(others), style="yellow")
    return [
        Text(
            f"batch {progress.batch_id} took {progress.duration_ms / 1_000:.1f} s, "
            f"{progress.rows_per_second:,.0f} rows/s; lag {lag(progress)}"
        ),
        Text(f"in all {counted(totals.rows_in, 'row')} in, {totals.rows_out:,} out, ")
        + Text(late, style="yellow" if totals.rows_dropped_by_watermark else ""),
        *([more] if others else []),
        Text(f"{state}; watermark {watermark(progress)}", style="dim"),
    ]


@contextlib.contextmanager
def live_progress(stream: TextIO, on_closed_output: Callable[[], object] = lambda: None) -> Iterator[LiveProgress]:
    """A LiveProgress on a terminal; its last picture stays."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    live = Live(console=console, refresh_per_second=_REFRESHES_PER_SECOND, transient=False, redirect_stdout=False)
    progress = LiveProgress(console, live, on_closed_output)
    live.update(progress)
    with live:
        yield progress


def batch_line(progress: Progress) -> str:
    """A batch for people: what came in and went out, how fast, and what is left."""
    parts = [
        f"{counted(progress.rows_in, 'row')} in, {progress.rows_out:,} out in {progress.duration_ms / 1_000:.1f} s",
        f"{progress.rows_per_second:,.0f} rows/s",
        f"lag {lag(progress)}",
    ]
    if progress.watermark_ms is not None:
        parts.append(f"watermark {watermark(progress)}")
    late, *others = not_in_results(progress.totals)
    missing = [late, *others] if progress.totals.rows_dropped_by_watermark else others
    if missing:
        parts.append(f"so far {', '.join(missing)}")
    return f"{printable(progress.query)} batch {progress.batch_id}: {'; '.join(parts)}"


def summary_line(summary: RunSummary) -> str:
    """The sum of a run for people."""
    how = "stopped" if summary.was_stopped else "done"
    return (
        f"{printable(summary.pipeline)} {how} after {summary.duration_ms / 1_000:.1f} s: "
        f"{counted(summary.batches, 'batch', 'batches')}, {counted(summary.rows_in, 'row')} in, "
        f"{summary.rows_out:,} out, {', '.join(not_in_results(summary))}"
    )


def not_in_results(counts: Totals | RunSummary) -> list[str]:
    """What came in and is in no result: always how many rows came too late, of the rest what there is."""
    found = [f"{counts.rows_dropped_by_watermark:,} too late"]
    if counts.rows_without_event_time:
        found.append(f"{counts.rows_without_event_time:,} without event time")
    if counts.rows_ahead:
        found.append(f"{counts.rows_ahead:,} in the future")
    if counts.records_refused:
        found.append(f"{counts.records_refused:,} not of the schema")
    if counts.records_lost:
        found.append(f"{counts.records_lost:,} lost")
    return found


def lag(progress: Progress) -> str:
    """How many records of each topic were still to be read when the batch was made."""
    return ", ".join(f"{printable(topic)} {records:,}" for topic, records in progress.lag.items()) or "-"


def watermark(progress: Progress) -> str:
    """The time before which rows are too late."""
    if progress.watermark_ms is None:
        return "-"
    return f"{dt.datetime.fromtimestamp(progress.watermark_ms / 1_000, dt.UTC):%Y-%m-%d %H:%M:%S}"


def clock(seconds: float) -> str:
    """`0:41`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
