"""A table has a batch before its letters are there: what a changed schema makes of one that was cut short between."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from barnabas.pipelines import batch_decodings
from barnabas.pipelines.batch_decodings import BatchDecodings, decoding_of
from barnabas.pipelines.definition import Framing, KeyFormat, OnError, Pipeline, PipelineError, SourceFormat, Tombstones
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import airlines, flights, made_pipeline

FIRST, SECOND = "carrier STRING", "carrier INT"


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "state")


def begin(state: StateDirectory, batch_id: int) -> None:
    """As Spark does."""
    offsets = state.checkpoint("by_day") / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / f"{batch_id}").write_text("")


def pipeline_of(state: StateDirectory, schema: str) -> Pipeline:
    source = flights(schema=schema, on_error=OnError.TOPIC)
    return made_pipeline(state.directory.parent, sources=(source, airlines()))


def run_of(state: StateDirectory, schema: str) -> BatchDecodings:
    """Of a run that begins now."""
    pipeline = pipeline_of(state, schema)
    return BatchDecodings(pipeline, "by_day", pipeline.sources[:1], state)


def do(run: BatchDecodings, state: StateDirectory, batch_id: int, *, was_there: bool) -> None:
    begin(state, batch_id)
    run.begin(batch_id)
    run.written(batch_id, was_there=was_there)


def test_a_batch_that_its_table_has_by_the_schema_of_before_is_told_and_goes_on_with_that(
    state: StateDirectory,
) -> None:
    do(run_of(state, FIRST), state, 0, was_there=False)
    # As often as it is tried.
    for _ in range(2):
        with pytest.raises(
            PipelineError, match=r"delays.yaml:\d+: batch 0 of by_day is in its table as the schema was"
        ):
            do(run_of(state, SECOND), state, 0, was_there=True)
    run = run_of(state, FIRST)
    do(run, state, 0, was_there=True)
    do(run, state, 1, was_there=False)


def test_a_schema_is_changed_between_batches_and_before_a_table_has_one(state: StateDirectory) -> None:
    run = run_of(state, FIRST)
    do(run, state, 0, was_there=False)
    # Cut short before its table has it: it is written by the new schema, and is its from then on.
    begin(state, 1)
    run.begin(1)
    do(run_of(state, SECOND), state, 1, was_there=False)
    do(run_of(state, SECOND), state, 1, was_there=True)
    with pytest.raises(PipelineError):
        do(run_of(state, FIRST), state, 1, was_there=True)
    do(run_of(state, FIRST), state, 2, was_there=False)


def test_of_a_batch_that_was_tried_by_two_schemas_either_may_be_the_tables(state: StateDirectory) -> None:
    begin(state, 0)
    run_of(state, FIRST).begin(0)
    run_of(state, SECOND).begin(0)
    do(run_of(state, FIRST), state, 0, was_there=True)
    do(run_of(state, SECOND), state, 0, was_there=True)


def test_a_state_without_a_note_goes_on_and_a_note_is_written_where_it_says_something_new(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(state, 4)
    do(run_of(state, FIRST), state, 4, was_there=True)
    written: list[object] = []
    monkeypatch.setattr(batch_decodings, "write_json", lambda *content: written.append(content))
    run = run_of(state, FIRST)
    for batch_id in range(5, 9):
        do(run, state, batch_id, was_there=False)
    assert written == []


def test_whatever_decides_what_fits_is_another_decoding() -> None:
    source = flights(on_error=OnError.TOPIC)
    key = KeyFormat(SourceFormat.AVRO, "INT", 1, avro_schema='"int"')
    others = [
        dataclasses.replace(source, **change)
        for change in (
            {"schema": "carrier INT"},
            {"format": SourceFormat.CSV},
            {"delimiter": ";"},
            {"framing": Framing.CONFLUENT},
            {"avro_schema": "{}"},
            {"descriptors": b"x"},
            {"message": "m"},
            {"drops_others": True},
            {"requires_key": True},
            {"tombstones": Tombstones.KEEP},
            {"key_format": key},
            {"key_format": dataclasses.replace(key, avro_schema='"long"')},
        )
    ]
    assert len({decoding_of([each]) for each in (source, *others)}) == len(others) + 1
    # What is done with a record that does not fit, and how many are read at once, is nothing to it.
    same = dataclasses.replace(source, on_error=OnError.SKIP, max_records_per_batch=7, line=99)
    assert decoding_of([same]) == decoding_of([source])
