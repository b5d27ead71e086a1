from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from demo import pipeline
from demo.expected import KEY_COLUMNS, MEASURES
from demo.pipeline import Pipeline, PipelineFailedError, Progress

Run = Callable[[Coroutine[Any, Any, Any]], Any]
BATCH = {"event": "batch", "rows_per_second": 7.5, "totals": {"rows_in": 40, "rows_dropped_by_watermark": 0}}
SUMMARY = {"event": "summary", "rows_in": 80, "rows_dropped_by_watermark": 2}


def program(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Has a pipeline run these lines of Python instead of the command."""
    monkeypatch.setattr(pipeline, "COMMAND", (sys.executable, "-c", "\n".join(("import sys", *lines))))


def say(event: dict[str, Any]) -> str:
    return f"print({json.dumps(event)!r}, flush=True)"


async def outcome(directory: Path, heard: list[int] | None = None) -> Progress:
    def changed(progress: Progress) -> None:
        if heard is not None:
            heard.append(progress.rows)

    async with Pipeline("127.0.0.1:1", directory / "pipeline.log", directory, changed) as run:
        return await run.finish()


def test_tells_how_far_it_is(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    program(monkeypatch, say(BATCH), say({"event": "new in a later version"}), say(BATCH), say(SUMMARY))
    progress = run(outcome(tmp_path, heard))
    assert (progress.batches, progress.rows, progress.rows_dropped_by_watermark) == (2, 80, 2)
    assert heard[-1] == 80


def test_says_what_the_command_said_last_when_it_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, say(BATCH), "print('first\\nno Java: install it\\n', file=sys.stderr)", "sys.exit(1)")
    with pytest.raises(PipelineFailedError, match=r"ended with status 1 after 1 batches: no Java: install it$"):
        run(outcome(tmp_path))


def test_an_end_without_a_summary_is_a_failure(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, say(BATCH))
    with pytest.raises(PipelineFailedError, match="ended with status 0 after 1 batches: it said nothing"):
        run(outcome(tmp_path))


@pytest.mark.parametrize("line", ["print('no JSON', flush=True)", 'print(\'{"event": "batch"}\', flush=True)'])
def test_output_that_is_not_understood_is_a_failure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    program(monkeypatch, line, "sys.stdin.read()")
    with pytest.raises(PipelineFailedError, match="cannot be understood"):
        run(outcome(tmp_path))


def test_a_run_that_hangs_is_ended(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "QUIET_SECONDS_MAX", 0.1)
    program(monkeypatch, "print('waiting for a broker', file=sys.stderr, flush=True)", "sys.stdin.read()")
    with pytest.raises(PipelineFailedError, match=r"nothing happened for 0 s; it said last: (waiting for a broker)?$"):
        run(outcome(tmp_path))


def test_waits_for_batches_until_the_run_ends(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, say(BATCH), say(BATCH), "sys.stdin.readline()", say(SUMMARY))

    async def scenario() -> list[int]:
        seen = []
        async with Pipeline("127.0.0.1:1", tmp_path / "pipeline.log", tmp_path, lambda _progress: None) as started:
            finishing = asyncio.create_task(started.finish())
            await started.after_batch(1)
            seen.append(started.progress.batches)
            finishing.cancel()
            await asyncio.wait([finishing])
        await started.after_batch(9)
        return seen

    assert run(scenario())[0] >= 1


def test_the_file_gives_the_columns_that_are_checked() -> None:
    from barnabas.pipelines.reading import read_pipeline

    definition = read_pipeline(pipeline.FILE)
    assert definition.name == pipeline.NAME
    assert definition.group_id == pipeline.GROUP
    assert [sink.key for sink in definition.sinks] == [KEY_COLUMNS, KEY_COLUMNS]
    sql = definition.steps[-1].sql
    assert all(f"AS {measure}" in sql for measure in MEASURES if measure != "precipitation_hundredths")
