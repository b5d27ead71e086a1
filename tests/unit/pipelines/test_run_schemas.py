"""A run that meets a schema of a registry which nobody has looked up. Spark is played by the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines import pipeline_run
from barnabas.pipelines.schema_learning import SchemaLearner
from tests.unit.pipelines.made_pipelines import made_pipeline
from tests.unit.pipelines.test_runner import FakeQuery, FakeSpark, Told, committed, no_spark, run

__all__ = ["committed", "no_spark"]


def test_a_schema_that_was_not_known_is_learned_and_its_batch_begun_again(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[str] = []
    monkeypatch.setattr(pipeline_run, "create_views", lambda *_: views.append("made"))
    monkeypatch.setattr(
        SchemaLearner, "has_learned", lambda _, _view, failure, _error: "barnabas-unknown-schema:flights:7" in failure
    )

    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        query.end("[USER_RAISED_EXCEPTION] barnabas-unknown-schema:flights:7")

    def go_on(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 20)
        query.end()

    told, spark = Told(), FakeSpark(fail, go_on)
    summary = run(made_pipeline(tmp_path), spark, told)
    # Views to look at, and those of both plans: the second knows the schema, and it is no failure.
    assert (len(views), len(spark.started), summary.warnings) == (3, 2, ())
    assert [batch.batch_id for batch in told.batches] == [0]
