"""Spark's process is gone while a pipeline is tested or looked at, or its samples have times that no calendar has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JNetworkError

from barnabas.cli import pipeline_dev
from barnabas.cli.pipeline_dev import DevPlan
from barnabas.pipelines.case_run import record_line, run_case
from barnabas.pipelines.cases import Case, GivenRecord
from barnabas.pipelines.definition import SparkEndedError
from barnabas.pipelines.dev_session import DevSession
from tests.unit.pipelines.made_pipelines import made_pipeline


class Gone:
    """A session of a process that was killed."""

    def newSession(self) -> NoReturn:  # noqa: N802 - pyspark's name
        raise Py4JNetworkError("Answer from Java side is empty")


SESSION: Any = Gone()


def test_is_told_in_a_sentence_by_a_test_and_by_a_look(tmp_path: Path) -> None:
    pipeline, log = made_pipeline(tmp_path), tmp_path / "spark.log"
    told = r"Spark's process ended unexpectedly \(Answer from Java side is empty\); .*spark.log may say why"
    with pytest.raises(SparkEndedError, match=told):
        run_case(SESSION, pipeline, Case("one", ()), tmp_path, log)
    session = DevSession(SESSION, tmp_path, log)
    with pytest.raises(SparkEndedError, match=told):
        session.look(pipeline, [], 10)
    with pytest.raises(SparkEndedError, match=told):
        session.check(pipeline)


def test_ends_the_watching_of_a_file_instead_of_being_told_at_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_dev, "read_pipeline", lambda _: made_pipeline(tmp_path))
    monkeypatch.setattr(pipeline_dev, "_samples", lambda *_: {})
    plan = DevPlan(tmp_path / "delays.yaml", "host:1", 10, 10)
    with pytest.raises(SparkEndedError):
        pipeline_dev._look_again(plan, DevSession(SESSION, tmp_path, tmp_path / "spark.log"))


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (1_356_998_400_007, "2013-01-01T00:00:00.007Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999Z"),
        (-(2**63), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_that_no_calendar_has_becomes_the_nearest(timestamp_ms: int, expected: str) -> None:
    line = record_line("flights", GivenRecord("flights", None, None, 0, 0, timestamp_ms))
    assert line["timestamp"] == expected
