"""The console as a sink: when its rows are told, and that it is no part of a state that has others."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from barnabas.pipelines import console_sink, sinks
from barnabas.pipelines.advice import advice_on
from barnabas.pipelines.backfill import Backfill
from barnabas.pipelines.console_sink import ConsoleWriter
from barnabas.pipelines.definition import ConsoleSink, Pipeline, PipelineError, Query, TopicSink
from barnabas.pipelines.graph import text_of
from barnabas.pipelines.progress import ShownRows
from barnabas.pipelines.sink import SinkWriter, Written
from barnabas.pipelines.sinks import BatchWriter, computed, writers_of
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.state_definition import definition_of
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import IDENTITY, made_pipeline
from tests.unit.pipelines.pipeline_files import read_flights
from tests.unit.pipelines.test_sinks import Frame
from tests.unit.pipelines.test_state_directory import put_batch

CONSOLE = ConsoleSink("by_day", line=40, from_line=41, rows_max=20, width=40)
TOPIC = TopicSink("delays", "by_day", line=30, from_line=31, key=("carrier",), key_line=32)
ROWS = ShownRows("by_day", 0, ("n",), (("1",),), has_more=False, is_again=False)


def test_is_read_with_its_bounds(tmp_path: Path) -> None:
    pipeline = read_flights(tmp_path, ("  - parquet: out", "  - {console: 7, from: flights}\n  - parquet: out"))
    assert pipeline.sinks[1] == ConsoleSink("flights", 26, 26, 7, 40)
    assert pipeline.sinks[1].target == "console flights"
    assert any("console flights" in line for line in text_of(pipeline))
    wide = read_flights(tmp_path, ("  - parquet: out", "  - {console: 7, width: 100, from: flights}\n  - parquet: out"))
    assert wide.sinks[1] == ConsoleSink("flights", 26, 26, 7, 100)
    # Groups are shown whenever they change: that is what it is for.
    shown = made_pipeline(tmp_path, sinks=(CONSOLE,))
    assert not any("key" in line for line in advice_on(shown))
    assert Backfill(shown).staged.sinks == (CONSOLE,)


class Shown(SinkWriter):
    """Notes its steps."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def write(self, frame: Any, batch_id: int) -> Written:
        self._notes.append("written")
        return Written(is_computed=False, is_held=True)

    def commit(self, batch_id: int, offsets: Any) -> None:
        self._notes.append("committed")

    def shown(self) -> ShownRows | None:
        return ROWS

    def tidy(self, batch_id: int) -> str:
        return "tidied"


def test_rows_are_told_once_the_other_sinks_have_the_batch(tmp_path: Path) -> None:
    pipeline = made_pipeline(tmp_path, sinks=(TOPIC, CONSOLE))
    notes: list[Any] = []
    state = StateDirectory(pipeline.state_directory)
    put_batch(state, 0)
    query = Query("by_day", (TOPIC, CONSOLE))
    BatchWriter(query, [Shown(notes)], state, threading.Event(), say=notes.append)(Frame(notes), 0)
    assert notes == ["written", "computed as noop", "committed", ROWS, "tidied"]


class Rows:
    """A frame whose rows are texts already."""

    columns = ("n",)

    def __init__(self, *rows: str | None) -> None:
        self._rows = [(row,) for row in rows]

    def limit(self, count: int) -> Rows:
        return Rows(*(row for (row,) in self._rows[:count]))

    def collect(self) -> list[Any]:
        return self._rows


def test_of_a_batch_the_first_rows_are_shown_and_whether_it_was_begun_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_sink, "_texts", lambda frame, _characters: frame)
    pipeline = made_pipeline(tmp_path, sinks=(CONSOLE,))
    state = StateDirectory(pipeline.state_directory)
    put_batch(state, 0)
    writer = ConsoleWriter(dataclasses.replace(CONSOLE, rows_max=2, width=4))
    writer.recover(cast("Any", None), state, "")

    def shown(batch_id: int, *rows: str | None) -> ShownRows | None:
        writer.write(cast("Any", Rows(*rows)), batch_id)
        found = writer.shown()
        assert writer.shown() is None
        return found

    first = ShownRows("by_day", 0, ("n",), (("abcd",), ("abc…",)), has_more=False, is_again=True)
    assert shown(0, "abcd", "abcde") == first
    second = ShownRows("by_day", 1, ("n",), (("1",), (None,)), has_more=True, is_again=False)
    assert shown(1, "1", None, "3") == second
    assert shown(1, "1", None, "3") == dataclasses.replace(second, is_again=True)
    assert shown(2) is None


class Persisted(Frame):
    def persist(self) -> Frame:
        self.notes.append("kept")
        return self


def test_a_query_that_is_only_shown_is_computed_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch with state all partitions must be computed, also those whose rows nobody sees."""
    pipeline = made_pipeline(tmp_path, sinks=(CONSOLE,))
    notes: list[str] = []

    def look(*_: object) -> Written:
        notes.append("looked at")
        return Written(is_computed=False, is_held=False)

    monkeypatch.setattr(ConsoleWriter, "write", look)
    (query,) = pipeline.queries
    writers = writers_of(pipeline, query, KafkaOptions("host:1"))
    BatchWriter(query, writers, StateDirectory(pipeline.state_directory), threading.Event())(Persisted(notes), 0)
    assert notes == ["kept", "looked at", "computed as noop"]


def test_who_only_looks_comes_behind_who_writes(tmp_path: Path) -> None:
    pipeline = made_pipeline(tmp_path)
    query = Query("by_day", (CONSOLE, pipeline.sinks[1]))
    kinds = [type(writer).__name__ for writer in sinks.writers_of(pipeline, query, KafkaOptions("host:1"))]
    assert kinds == ["ParquetWriter", "ConsoleWriter"]


def taken(directory: Path, *found: Any) -> Pipeline:
    pipeline = made_pipeline(directory, sinks=found)
    pipeline.state_directory.mkdir(exist_ok=True)
    StateDirectory(pipeline.state_directory).take_definition(pipeline, IDENTITY)
    return pipeline


def test_beside_other_sinks_it_comes_and_goes_as_one_likes(tmp_path: Path) -> None:
    pipeline = taken(tmp_path, TOPIC)
    state = StateDirectory(pipeline.state_directory)
    put_batch(state, 0)
    shown = taken(tmp_path, CONSOLE, TOPIC)
    assert definition_of(shown) == definition_of(pipeline)
    taken(tmp_path, TOPIC)
    assert state.batches_done("by_day").finished == 0
    # What others have written is not forgotten since somebody looks on.
    with pytest.raises(PipelineError, match="sink topic delays was removed"):
        taken(tmp_path, CONSOLE)
    assert state.batches_done("by_day").finished == 0


def test_intervals_are_computed_though_no_table_has_them(tmp_path: Path) -> None:
    """Spark refuses to write one, and a batch that is done again is written nowhere else."""
    notes: list[str] = []
    frame = Frame(notes, [("n", "int"), ("since", "interval"), ("both", "struct<a:interval>")])
    assert computed(cast("Any", frame)) is frame
    assert notes == ["selects `n`, CAST(`since` AS STRING) AS `since`, CAST(`both` AS STRING) AS `both`"]


@pytest.mark.parametrize("then", [(), (TOPIC,), (CONSOLE, TOPIC)])
def test_a_query_that_was_only_shown_leaves_nothing_behind(tmp_path: Path, then: tuple[Any, ...]) -> None:
    other = TopicSink("copies", "timed", line=50, from_line=51)
    pipeline = taken(tmp_path, other, CONSOLE)
    state = StateDirectory(pipeline.state_directory)
    put_batch(state, 3)
    put_batch(state, 5, view="timed")
    taken(tmp_path, other, CONSOLE)
    assert state.batches_done("by_day").finished == 3
    taken(tmp_path, other, *then)
    # A sink that comes in its place begins where the sources begin.
    assert (state.batches_done("by_day").begun, state.batches_done("timed").begun) == (-1, 5)
    taken(tmp_path, other, *then)
