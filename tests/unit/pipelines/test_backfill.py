"""When a backfill may begin, go on, begin anew and be forgotten; the rest is tried with Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.pipelines.backfill import Backfill, Phase, journal_path, refuse_half_replaced
from barnabas.pipelines.definition import IcebergSink, OnError, ParquetSink, Pipeline, PipelineError, TopicSink
from barnabas.pipelines.offset_ranges import OffsetRange
from barnabas.pipelines.state_definition import definition_of
from tests.unit.pipelines.made_pipelines import flights, made_pipeline

RANGE = OffsetRange({"flights": {0: 0}}, {})


def pipeline_of(directory: Path) -> Pipeline:
    """With a table, and letters for what does not fit."""
    table = ParquetSink(directory / "table", "by_day", line=33, from_line=34)
    sources = (flights(on_error=OnError.TOPIC), made_pipeline(directory).sources[1])
    return made_pipeline(directory, sinks=(table,), sources=sources)


def has_run(pipeline: Pipeline) -> None:
    log = pipeline.state_directory / "checkpoints/by_day/offsets"
    log.mkdir(parents=True)
    (log / "0").touch()
    content = {"version": 2, "id": "old", "definition": definition_of(pipeline)}
    (pipeline.state_directory / "definition.json").write_text(json.dumps(content))


def no_offsets() -> OffsetRange:
    raise AssertionError("a backfill that goes on has its range")


def test_what_never_ran_has_nothing_to_replace(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="has no batches that could be replaced: begin with `barnabas pipeline run"):
        Backfill(pipeline_of(tmp_path)).begin(no_offsets, has_range=False)


def test_the_new_one_is_beside_the_old_one_and_sends_no_letters_again(tmp_path: Path) -> None:
    staged = Backfill(pipeline_of(tmp_path)).staged
    assert staged.state_directory == tmp_path / "state~backfill"
    assert [getattr(sink, "directory", None) for sink in staged.sinks] == [tmp_path / "table~backfill"]
    assert staged.sources[0].on_error is OnError.SKIP


def test_a_backfill_goes_on_with_its_range_and_its_file_or_begins_anew(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    has_run(pipeline)
    assert Backfill(pipeline).begin(lambda: RANGE, has_range=True) == RANGE
    assert Backfill(pipeline).begin(no_offsets, has_range=False) == RANGE
    refuse_half_replaced(pipeline)
    with pytest.raises(PipelineError, match="the range is that of the backfill that has begun"):
        Backfill(pipeline).begin(no_offsets, has_range=True)
    other = made_pipeline(tmp_path, sinks=pipeline.sinks, steps=pipeline.steps[:1])
    with pytest.raises(PipelineError, match=r"delays.yaml is another, and a backfill has not ended"):
        Backfill(other).begin(no_offsets, has_range=False)
    with pytest.raises(PipelineError, match="has not ended: run it to its end"):
        Backfill(pipeline).discard()
    (tmp_path / "table~backfill").mkdir()
    assert Backfill(other).restart() == ()
    assert Backfill(other).phase is None
    assert {path.name for path in tmp_path.iterdir()} == {"state"}


def test_what_was_computed_into_places_that_are_not_ours_is_told_when_it_begins_anew(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    has_run(pipeline)
    iceberg = IcebergSink(None, "lake.air.days", "by_day", line=33, from_line=34)
    more = replace(pipeline, sinks=(*pipeline.sinks, iceberg, TopicSink("days-2", "by_day", line=36, from_line=37)))
    Backfill(more).begin(lambda: RANGE, has_range=False)
    has_run(Backfill(more).staged)
    table = "lake.air.days__backfill"
    assert Backfill(more).restart() == (
        f"{table} is its catalog's, and has what was computed so far: DROP TABLE {table} PURGE",
        "topic days-2 has what was computed so far; to have it once, delete it and create it again",
    )


@pytest.mark.parametrize("phase", [Phase.COMMITTING, Phase.EXCHANGING])
def test_no_run_begins_and_nothing_is_forgotten_while_places_are_taken(tmp_path: Path, phase: Phase) -> None:
    pipeline = pipeline_of(tmp_path)
    journal_path(pipeline).write_text(json.dumps({"phase": phase.value}))
    with pytest.raises(
        PipelineError, match="cut short while it took its place: end it with `barnabas pipeline backfill"
    ):
        refuse_half_replaced(pipeline)
    with pytest.raises(PipelineError, match="can only be ended, without --restart"):
        Backfill(pipeline).restart()
    journal_path(pipeline).write_text('{"phase": "half"}')
    with pytest.raises(PipelineError, match="cannot be understood"):
        refuse_half_replaced(pipeline)
