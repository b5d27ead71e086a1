"""A backfill that is killed at each call that changes something, while it takes its place; without Spark. After each
kill the command is given again, as it is: also by systems that cannot exchange two names at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines import backfill as backfilling
from barnabas.pipelines import directory_exchange, state_directory
from barnabas.pipelines.backfill import Backfill, Phase
from barnabas.pipelines.definition import ParquetSink, Pipeline, PipelineError
from barnabas.pipelines.offset_ranges import OffsetRange
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline
from barnabas.pipelines.state_definition import definition_of
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import by_day, made_pipeline, timed

RANGE = OffsetRange({"flights": {0: 0}}, {})


class KilledError(Exception):
    """Stands for the end of the process."""


class Silent:
    def said(self, line: str) -> None: ...

    def batch(self, progress: Any) -> None: ...

    def ended(self, summary: Any) -> None: ...


def pipeline_of(directory: Path) -> Pipeline:
    return made_pipeline(directory, sinks=(ParquetSink(directory / "table", "by_day", line=33, from_line=34),))


def fill(pipeline: Pipeline, name: str, batches: int = 1) -> None:
    """A state and a table, as a run leaves them."""
    for part in ("offsets", "commits"):
        log = pipeline.state_directory / "checkpoints/by_day" / part
        log.mkdir(parents=True)
        for number in range(batches):
            (log / str(number)).touch()
    content = {"version": 2, "id": name, "definition": definition_of(pipeline)}
    (pipeline.state_directory / "definition.json").write_text(json.dumps(content))
    for sink in pipeline.sinks:
        assert isinstance(sink, ParquetSink)
        sink.directory.mkdir()
        (sink.directory / name).touch()


def killing(function: Any, calls: Iterator[int], number: int) -> Any:
    """The function, which ends the process before the call of that number, or behind it, among all."""

    def called(*arguments: Any, **named: Any) -> Any:
        call = 2 * next(calls)
        if call == number:
            raise KilledError
        result = function(*arguments, **named)
        if call + 1 == number:
            raise KilledError
        return result

    return called


@pytest.mark.parametrize("has_exchange", [True, False])
def test_the_command_ends_what_was_cut_short_wherever_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_exchange: bool
) -> None:
    if not has_exchange:
        monkeypatch.setattr(directory_exchange, "_exchanged", lambda *_: False)
    killed = 0
    for number in range(100):
        place = tmp_path / str(number)
        place.mkdir()
        pipeline = pipeline_of(place)
        old = replace(pipeline, steps=(timed(delay_ms=1), by_day()))
        fill(old, "old")
        Backfill(pipeline).begin(lambda: RANGE, has_range=False)
        fill(Backfill(pipeline).staged, "new")
        with pytest.MonkeyPatch.context() as patched:
            calls = iter(range(1_000))
            for module in (backfilling, state_directory):
                patched.setattr(module, "write_json", killing(module.write_json, calls, number))
            patched.setattr(Path, "rename", killing(Path.rename, calls, number))
            try:
                Backfill(pipeline).take_place()
            except KilledError:
                killed += 1
            else:
                break
        phase = Backfill(pipeline).phase
        if phase is Phase.DONE:
            with pytest.raises(PipelineError, match="is still kept: remove it with --discard-old"):
                Backfill(pipeline).begin(lambda: RANGE, has_range=False)
        elif phase is Phase.EXCHANGING:
            with pytest.raises(PipelineError, match="cut short while it took its place"):
                run_pipeline(pipeline, RunOptions("127.0.0.1:1", once=True), Silent())
        else:
            staged = Backfill(pipeline).staged
            StateDirectory(staged.state_directory).check_definition(staged)
        Backfill(pipeline).take_place()
        assert {path.name for path in (place / "table").iterdir()} == {"new"}
        assert StateDirectory(place / "state").check_definition(pipeline)[0] == "new"
        assert {path.name for path in (place / "table~before").iterdir()} == {"old"}
        former = StateDirectory(place / "state~before")
        assert (former.state_id(), former.definition()) == ("old", definition_of(old))
    assert killed >= (10 if has_exchange else 14)


def test_a_range_without_records_replaces_nothing(tmp_path: Path) -> None:
    """The next run would begin at the beginning, and the table would be empty."""
    pipeline = pipeline_of(tmp_path)
    fill(pipeline, "old")
    empty = OffsetRange({"flights": {0: 5, 1: 7}}, {"flights": {0: 5, 1: 7}})
    with pytest.raises(PipelineError, match="there are no records in this range for by_day"):
        Backfill(pipeline).begin(lambda: empty, has_range=True)
    assert Backfill(pipeline).phase is None
    Backfill(pipeline).begin(lambda: RANGE, has_range=False)
    fill(Backfill(pipeline).staged, "new", batches=0)
    with pytest.raises(PipelineError, match="by_day has read nothing, and its tables would be replaced by nothing"):
        Backfill(pipeline).take_place()
    assert {path.name for path in (tmp_path / "table").iterdir()} == {"old"}
    Backfill(pipeline).restart()
    some = OffsetRange({"flights": {0: 5, 1: 7}}, {"flights": {0: 5, 1: 8}})
    assert Backfill(pipeline).begin(lambda: some, has_range=True) == some


def test_a_state_of_which_no_journal_knows_is_not_gone_on_with(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    fill(pipeline, "old")
    fill(Backfill(pipeline).staged, "stray")
    with pytest.raises(PipelineError, match="~backfill is in the way, and nobody knows what of"):
        Backfill(pipeline).begin(lambda: RANGE, has_range=False)
