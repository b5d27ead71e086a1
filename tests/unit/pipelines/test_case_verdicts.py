"""Which outputs of a run pass a test, and what is told of those that do not. Without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from barnabas.pipelines.case_comparison import Difference
from barnabas.pipelines.case_run import CaseOutput, SinkOutput, WrittenRow
from barnabas.pipelines.case_verdicts import Fault, Verdict, faults_of, write_junit
from barnabas.pipelines.cases import Case, Expectation, ExpectedRow, expectation_of
from barnabas.pipelines.definition import Pipeline
from tests.unit.pipelines.pipeline_files import read_flights

TYPES = {"name": "string", "hour": "timestamp", "delay": "double"}
HOUR = "2013-01-01T05:00:00.000000Z"
GOOD = {"name": "United", "hour": HOUR, "delay": 5}
COUNTS = {"records_refused": 0, "rows_dropped_by_watermark": 0, "rows_without_event_time": 0, "rows_ahead": 0}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return read_flights(tmp_path)


def output(pipeline: Pipeline, *rows: WrittenRow, **changes: Any) -> CaseOutput:
    written = tuple(replace(row, value=row.value or "{}") for row in rows)  # without a value it is a tombstone
    sinks = tuple(SinkOutput(sink, TYPES, written) for sink in pipeline.sinks)
    return replace(CaseOutput({"by_hour": sinks}, counts=COUNTS), **changes)


def expecting(pipeline: Pipeline, name: str, *rows: dict[str, Any], **more: Any) -> Case:
    about = expectation_of(pipeline, name, pipeline.error)
    expected = Expectation(about.label, about.view, about.sinks, tuple(ExpectedRow(row, 9) for row in rows))
    return Case("x", (), expected=(expected,), **more)


def told(pipeline: Pipeline, case: Case, given: CaseOutput) -> list[str]:
    return [line for fault in faults_of(pipeline, case, given) for line in fault.lines()]


def test_each_sink_of_a_view_has_the_newest_row_of_a_key(pipeline: Pipeline) -> None:
    given = output(pipeline, WrittenRow(0, {**GOOD, "delay": 4}), WrittenRow(1, GOOD))
    assert told(pipeline, expecting(pipeline, "by_hour", GOOD), given) == []
    old = told(pipeline, expecting(pipeline, "by_hour", {**GOOD, "delay": 4}), given)
    assert old[0] == "by_hour, topic: 1 expected, 1 found"
    assert old[1].startswith("  differs (line 9): delay is 5, not 4; in ")
    assert old[2] == "by_hour, parquet: 1 expected, 1 found"


def test_a_table_has_all_rows_of_a_key_of_its_newest_batch_and_a_topic_the_last(pipeline: Pipeline) -> None:
    given = output(pipeline, *(WrittenRow(n, {**GOOD, "delay": delay}) for n, delay in ((0, 1), (1, 2), (1, 3))))
    assert told(pipeline, expecting(pipeline, "topic delays", {"delay": 3}), given) == []
    assert told(pipeline, expecting(pipeline, "parquet out/delays", {"delay": 2}, {"delay": 3}), given) == []


def test_the_bytes_of_a_record_can_be_expected(pipeline: Pipeline) -> None:
    given = output(pipeline, WrittenRow(0, GOOD, '{"name":"United"}', '{"x":1}'))
    assert told(pipeline, expecting(pipeline, "topic delays", {"_key": '{"name":"United"}'}), given) == []
    wrong = told(pipeline, expecting(pipeline, "topic delays", {"_value": '{"x":2}', "delay": 5}), given)
    assert '_value is "{\\"x\\":1}", not "{\\"x\\":2}"' in wrong[1]
    of_table = told(pipeline, expecting(pipeline, "parquet out/delays", {"_key": "x"}), given)
    assert of_table[0].startswith('parquet out/delays: line 9: there is no column "_key"')


def test_a_column_that_is_none_is_named(pipeline: Pipeline) -> None:
    (line,) = told(pipeline, expecting(pipeline, "topic delays", {"dely": 5}), output(pipeline))
    assert line == 'topic delays: line 9: there is no column "dely"; did you mean "delay"?'


def test_records_that_do_not_fit_must_be_expected(pipeline: Pipeline) -> None:
    letter = {"source": "flights", "reason": "no JSON", "offset": 1}
    case = expecting(pipeline, "by_hour")
    assert told(pipeline, case, output(pipeline, letters=(letter,)))[0] == "dead letters:"
    assert (
        told(pipeline, replace(case, letters=(ExpectedRow({"offset": 1}),)), output(pipeline, letters=(letter,))) == []
    )
    assert "1 do not fit" in told(pipeline, case, output(pipeline, skipped=1))[0]
    counts = {**COUNTS, "records_refused": 1}
    expected = replace(case, counts={"records_refused": 1})
    assert told(pipeline, expected, output(pipeline, skipped=1, counts=counts)) == []
    assert told(pipeline, expected, output(pipeline)) == ["counts: records_refused is 0, not 1"]


def test_an_error_is_expected_or_fails_the_test(pipeline: Pipeline) -> None:
    failing = Case("x", (), error="not JSON of")
    assert told(pipeline, failing, output(pipeline, error="a record is not JSON of the schema")) == []
    assert "ended well" in told(pipeline, failing, output(pipeline))[0]
    assert 'ended with "no disk"' in told(pipeline, failing, output(pipeline, error="no disk"))[0]
    assert told(pipeline, expecting(pipeline, "by_hour"), output(pipeline, error="no disk")) == ["error: no disk"]


def test_very_many_differences_are_counted() -> None:
    fault = Fault("x", "", tuple(Difference("missing", 0, {"a": n}) for n in range(25)))
    assert list(fault.lines())[-1] == "  and 5 more"
    assert len(fault.to_json()["differences"]) == 25


def test_junit_takes_any_name_and_any_value(tmp_path: Path) -> None:
    fault = Fault("by_hour", "", (Difference("missing", 3, {"a": "<\x00\ud800&>"}),))
    path = tmp_path / "out.xml"
    write_junit(path, "delays", (Verdict(Case("good", ()), (), 0.5), Verdict(Case("b\x07d", ()), (fault,), 1.0)))
    suite = ET.parse(path).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("time")) == ("2", "1", "1.500")
    good, bad = suite
    assert (good.get("name"), len(good), bad.get("name")) == ("good", 0, "b\N{REPLACEMENT CHARACTER}d")
    assert "missing (line 3)" in (bad[0].text or "")
    assert list(tmp_path.iterdir()) == [path]
