"""A run that meets a schema of a registry which nobody has looked up. Spark is played by the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines import runner
from barnabas.pipelines.definition import Pipeline
from tests.unit.pipelines.made_pipelines import made_pipeline
from tests.unit.pipelines.test_runner import FakeQuery, FakeSpark, Told, committed, no_spark, run

__all__ = ["committed", "no_spark"]


def test_a_schema_that_was_not_known_is_learned_and_its_batch_begun_again(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[str] = []
    monkeypatch.setattr(runner, "create_views", lambda *_: views.append("made"))
    monkeypatch.setattr(runner, "learn_unknown", lambda _, failure: "barnabas-unknown-schema:flights:7" in failure)

    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        query.end("[USER_RAISED_EXCEPTION] barnabas-unknown-schema:flights:7")

    def go_on(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 20)
        query.end()

    told, spark = Told(), FakeSpark(fail, go_on)
    summary = run(made_pipeline(tmp_path), spark, told)
    # The second plan is made of the views that know the schema, and it is no failure.
    assert (views, len(spark.started), summary.warnings) == (["made", "made"], 2, ())
    assert [batch.batch_id for batch in told.batches] == [0]


def test_a_table_with_a_schema_that_was_not_known_is_read_anew_once_it_is(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[FakeTable] = []

    class FakeTable:
        def __init__(self) -> None:
            self.is_kept = False
            frames.append(self)

        def persist(self) -> FakeTable:
            self.is_kept = True
            return self

        def unpersist(self) -> None:
            self.is_kept = False

        def count(self) -> int:
            if len(frames) < 3:
                raise RuntimeError(f"barnabas-unknown-schema:airlines:{len(frames)}")
            return 16

    def make_views(made: Pipeline, _session: object, frame_of: Callable[[Any], Any]) -> None:
        frame_of(made.source("airlines"))

    learned: list[str] = []

    def learn(_pipeline: Pipeline, failure: str) -> bool:
        learned.append(failure)
        return True

    monkeypatch.setattr(runner, "create_views", make_views)
    monkeypatch.setattr(runner, "table_frame", lambda *_: FakeTable())
    monkeypatch.setattr(runner, "learn_unknown", learn)
    told = Told()
    run(made_pipeline(tmp_path), FakeSpark(lambda _spark, query: query.end()), told)
    assert learned == ["barnabas-unknown-schema:airlines:1", "barnabas-unknown-schema:airlines:2"]
    assert [frame.is_kept for frame in frames] == [False, False, True]
    assert any(line.startswith("table airlines: 16 rows") for line in told.lines)
