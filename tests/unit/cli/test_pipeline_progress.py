"""What a run shows while it goes: on terminals, in logs, to programs."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from rich.live import Live

from barnabas.cli.pipeline_progress import (
    JsonProgress,
    LiveProgress,
    PlainProgress,
    batch_line,
    clock,
    live_progress,
    open_progress,
    summary_line,
)
from barnabas.pipelines.progress import Progress, RunSummary, ShownRows, Totals

BATCH = Progress(
    query="by_hour",
    batch_id=3,
    time_ms=1_700_000_000_000,
    duration_ms=2_500,
    rows_in=10_000,
    rows_out=120,
    rows_per_second=4_000.0,
    lag={"flights": 12_000, "other": 0},
    offsets={"flights": {0: 5}},
    watermark_ms=1_600_000_000_000,
    state_rows=1_500,
    state_bytes=4_096,
    rows_dropped_by_watermark=1,
    totals=Totals(4, 40_000, 480, 2),
)
SUMMARY = RunSummary("delays", False, 4, 40_000, 480, 2, {"flights": 0}, 12_340)
Captured = pytest.CaptureFixture[str]


def test_programs_get_a_line_for_each_batch_and_one_at_the_end(capsys: Captured) -> None:
    with open_progress(as_json=True, on_closed_output=pytest.fail) as progress:
        progress.said("starting Spark ...")
        progress.batch(BATCH)
        progress.ended(SUMMARY)
    printed = capsys.readouterr()
    batch, summary = map(json.loads, printed.out.splitlines())
    assert (batch["event"], batch["rows_in"], batch["totals"]["rows_in"]) == ("batch", 10_000, 40_000)
    assert batch["lag"] == {"flights": 12_000, "other": 0}
    assert (summary["event"], summary["rows_dropped_by_watermark"]) == ("summary", 2)
    assert printed.err == "starting Spark ...\n"


ROWS = ShownRows(
    "by_hour", 3, ("carrier", "delay\x1b"), (("UA", "5.0"), ("D\x1b[2JL", None)), has_more=True, is_again=False
)


def test_rows_that_are_shown_are_a_line_of_json_for_programs(capsys: Captured) -> None:
    with open_progress(as_json=True, on_closed_output=pytest.fail) as progress:
        progress.rows(ROWS)
        progress.batch(BATCH)
    printed = capsys.readouterr()
    rows, batch = map(json.loads, printed.out.splitlines())
    assert rows == {
        "event": "rows",
        "query": "by_hour",
        "batch_id": 3,
        "has_more": True,
        "is_again": False,
        "rows": [{"carrier": "UA", "delay\x1b": "5.0"}, {"carrier": "D\x1b[2JL", "delay\x1b": None}],
    }
    assert (batch["event"], printed.err) == ("batch", "")


def test_rows_that_are_shown_are_a_table_on_standard_output_beside_the_lines_of_a_log(capsys: Captured) -> None:
    with open_progress(as_json=False, on_closed_output=pytest.fail) as progress:
        progress.rows(ROWS)
        progress.batch(BATCH)
        progress.rows(replace(ROWS, rows=ROWS.rows[:1], has_more=False, is_again=True))
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "by_hour batch 3, the first 2 rows:",
        r"carrier    delay\x1b",
        "UA         5.0",
        r"D\x1b[2JL  -",
        "by_hour batch 3, 1 row, begun before: they may have been shown already:",
        r"carrier  delay\x1b",
        "UA       5.0",
    ]
    assert printed.err.startswith("by_hour batch 3: 10,000 rows in")


def test_a_run_whose_rows_nobody_reads_any_more_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", ClosedOutput())
    stopped: list[None] = []
    with open_progress(as_json=False, on_closed_output=lambda: stopped.append(None)) as progress:
        progress.rows(ROWS)
        progress.rows(ROWS)
    assert stopped == [None]


@pytest.mark.parametrize("is_one_terminal", [True, False])
def test_rows_stand_above_the_picture_or_where_standard_output_goes(
    monkeypatch: pytest.MonkeyPatch, is_one_terminal: bool
) -> None:
    terminal, output = io.StringIO(), io.StringIO()
    output.isatty = lambda: is_one_terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", output)
    with live_progress(terminal) as progress:
        progress.rows(ROWS)
        progress.batch(BATCH)
    drawn, printed = (terminal, output) if is_one_terminal else (output, terminal)
    assert "by_hour batch 3, the first 2 rows:" in drawn.getvalue()
    assert "the first 2 rows" not in printed.getvalue()


class ClosedOutput(io.StringIO):
    """What `head` leaves behind when it has enough."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_run_ends_in_order_when_nobody_reads_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    progress = JsonProgress(lambda: calls.append("closed"))
    monkeypatch.setattr(sys, "stdout", ClosedOutput())
    progress.batch(BATCH)
    progress.batch(BATCH)
    progress.ended(SUMMARY)
    assert calls == ["closed"]


def test_logs_get_a_line_for_each_batch(capsys: Captured) -> None:
    with open_progress(as_json=False, on_closed_output=pytest.fail) as progress:
        assert isinstance(progress, PlainProgress)
        progress.said("reading \x1b[31m a table")
        progress.batch(BATCH)
        progress.ended(SUMMARY)
    printed = capsys.readouterr()
    line = "by_hour batch 3: 10,000 rows in, 120 out in 2.5 s; 4,000 rows/s; lag flights 12,000, other 0"
    line += "; watermark 2020-09-13 12:26:40"
    assert printed.err.splitlines() == [
        "reading \\x1b[31m a table",
        f"{line}; so far 2 too late",
    ]
    assert printed.out == "delays done after 12.3 s: 4 batches, 40,000 rows in, 480 out, 2 too late\n"


def test_leaves_out_what_there_is_not() -> None:
    batch = replace(BATCH, watermark_ms=None, totals=Totals(1, 1, 1, 0), lag={}, rows_in=1)
    assert batch_line(batch) == "by_hour batch 3: 1 row in, 120 out in 2.5 s; 4,000 rows/s; lag -"
    stopped = summary_line(replace(SUMMARY, was_stopped=True, batches=1))
    assert stopped == "delays stopped after 12.3 s: 1 batch, 40,000 rows in, 480 out, 2 too late"


def test_what_is_in_no_result_is_told_where_there_are_any() -> None:
    totals = Totals(1, 1, 1, 0, rows_without_event_time=1_000, rows_ahead=2, records_refused=3)
    batch = replace(BATCH, watermark_ms=None, totals=totals, lag={}, rows_in=1)
    assert batch_line(batch).endswith("; lag -; so far 1,000 without event time, 2 in the future, 3 not of the schema")
    told = summary_line(replace(SUMMARY, rows_without_event_time=1_000, records_lost=2))
    assert told.endswith("480 out, 2 too late, 1,000 without event time, 2 lost")
    console = Console(file=io.StringIO(), width=80)
    progress = LiveProgress(console, Live(console=console))
    progress.batch(batch)
    assert shown(progress)[2:4] == [
        "         in all 1 row in, 1 out, 0 too late",
        "         1,000 without event time, 2 in the future, 3 not of the schema",
    ]


def shown(progress: LiveProgress) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=80, color_system=None).print(progress)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_a_terminal_of_80_columns_gets_lines_for_each_query() -> None:
    console = Console(file=io.StringIO(), width=80)
    progress = LiveProgress(console, Live(console=console))
    assert shown(progress) == ["0:00  starting"]
    progress.said("reading topic airlines as a table ...")
    assert shown(progress) == ["0:00  reading topic airlines as a table"]
    progress.batch(BATCH)
    progress.batch(replace(BATCH, query="by_day", batch_id=9, state_rows=1, watermark_ms=None))
    assert shown(progress) == [
        "0:00  running",
        "by_hour  batch 3 took 2.5 s, 4,000 rows/s; lag flights 12,000, other 0",
        "         in all 40,000 rows in, 480 out, 2 too late",
        "         state 1,500 rows, 4.0 KiB; watermark 2020-09-13 12:26:40",
        "by_day   batch 9 took 2.5 s, 4,000 rows/s; lag flights 12,000, other 0",
        "         in all 40,000 rows in, 480 out, 2 too late",
        "         state 1 row, 4.0 KiB; watermark -",
    ]


def test_a_terminal_keeps_the_last_picture_above_the_sum(capsys: Captured) -> None:
    terminal = io.StringIO()
    with live_progress(terminal) as progress:
        progress.said("ready [not markup]")
        progress.batch(BATCH)
        progress.ended(SUMMARY)
    assert "ready [not markup]\n" in terminal.getvalue()
    assert "by_hour  batch 3 took 2.5 s" in terminal.getvalue()
    assert capsys.readouterr().out.startswith("delays done after 12.3 s")


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:00"), (61, "1:01"), (3_723.5, "1:02:03")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
