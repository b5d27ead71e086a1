"""Files of tests beside a pipeline: what they say, and what is refused in them, at its line."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.case_run import parts_of_case
from barnabas.pipelines.cases import (
    ROWS_MAX,
    TIMESTAMP_MS,
    Case,
    RecordMaker,
    path_of_tests,
    read_cases,
)
from barnabas.pipelines.definition import PipelineError, PipelineMissingError, ReadMode
from barnabas.pipelines.reading import read_pipeline
from tests.unit.pipelines.pipeline_files import read_flights
from tests.unit.pipelines.test_protobuf_messages import descriptors

AIR = "protobuf, schema_file: air.desc, message: air.Flight"
TESTS = """\
tests:
  - name: delays by hour
    given:
      airlines:
        - {carrier: UA, name: United}
        - {_key: AA, carrier: AA, name: American}
      flights:
        - {carrier: UA, delay: 5, time: 2013-01-01T05:00:00Z}
        - {_value: nonsense, _key: x, _partition: 1, _timestamp: 2013-01-01T00:00:00.5Z}
    then:
      - flights: []
      - flights: [{carrier: AA, delay: null, _offset: 7}]
    expect:
      by_hour:
        - {name: United, delay: 5}
      topic delays: []
    dead_letters: [{value: nonsense}]
    counts: {rows_dropped_by_watermark: 1}
"""


def cases_of(directory: Path, text: str) -> tuple[Case, ...]:
    path = directory / "delays.test.yaml"
    path.write_text(text, encoding="utf-8")
    return read_cases(read_flights(directory), path)


def changed(old: str, new: str) -> str:
    assert TESTS.count(old) == 1
    return TESTS.replace(old, new)


def test_records_have_their_columns_as_json_and_stand_behind_each_other(tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path, TESTS)
    first, second, third = case.batches
    tables = [record for record in first if record.source == "airlines"]
    assert [record.key for record in tables] == [b"row 1", b"AA"]
    ua, bad = (record for record in first if record.source == "flights")
    assert json.loads(ua.value or b"") == {"carrier": "UA", "delay": 5, "time": "2013-01-01T05:00:00Z"}
    assert (ua.key, ua.partition, ua.offset, ua.timestamp_ms) == (None, 0, 0, TIMESTAMP_MS)
    assert (bad.value, bad.key, bad.partition, bad.offset) == (b"nonsense", b"x", 1, 0)
    assert bad.timestamp_ms == 1_356_998_400_500
    assert second == ()
    assert [(record.offset, json.loads(record.value or b"")) for record in third] == [
        (7, {"carrier": "AA", "delay": None})
    ]


@pytest.mark.parametrize(
    ("form", "given", "key"),
    [
        ("avro, schema_file: key.avsc", "1", b"\2"),
        ("avro, schema_file: key.avsc, framing: confluent", "1", b"\0\0\0\0\1\2"),
        (AIR, "{id: 1}", b"\x08\1"),
        (
            f"{AIR}, framing: confluent",
            "{id: 1}",
            b"\0\0\0\0\0\2\2\x08\1",
        ),
        ("avro, schema_file: key.avsc", "!!binary /w==", b"\xff"),
        ("avro, schema_file: key.avsc", "null", None),
        ("avro, schema_file: key.avsc", "text", "_key cannot be written: _key is 'text', and must be a whole number"),
        (
            f"{AIR}",
            "1",
            "_key must be a block of keys: fields of air.Flight",
        ),
        (AIR, "{x: 1}", "_key cannot be written"),
    ],
)
def test_keys_with_a_format_are_given_by_their_values(
    tmp_path: Path, form: str, given: str, key: bytes | str | None
) -> None:
    (tmp_path / "key.avsc").write_text('"int"')
    (tmp_path / "air.desc").write_bytes(descriptors())
    (tmp_path / "x.yaml").write_text(
        f"name: x\nsources: {{s: {{topic: t, schema: n INT, key_format: {{format: {form}}}}}}}\n"
        "sinks: [{topic: o, from: s}]\n"
    )
    path = tmp_path / "x.test.yaml"
    path.write_text(f"tests:\n  - {{name: a, given: {{s: [{{_key: {given}, n: 1}}]}}, expect: {{s: []}}}}\n")
    pipeline = read_pipeline(tmp_path / "x.yaml")
    if isinstance(key, str):
        with pytest.raises(PipelineError, match=key):
            read_cases(pipeline, path)
        return
    assert read_cases(pipeline, path)[0].batches[0][0].key == key


def test_expectations_know_their_sinks_and_lines(tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path, TESTS)
    of_view, of_topic = case.expected
    assert [type(sink).__name__ for sink in of_view.sinks] == ["TopicSink", "ParquetSink"]
    assert [(row.line, row.columns) for row in of_view.rows] == [(15, {"name": "United", "delay": 5})]
    assert ([type(sink).__name__ for sink in of_topic.sinks], of_topic.view) == (["TopicSink"], "by_hour")
    assert case.counts == {"rows_dropped_by_watermark": 1}
    assert [letter.columns for letter in case.letters] == [{"value": "nonsense"}]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "      flights:\n        - {carrier: UA, d",
            "      fligts:\n        - {carrier: UA, d",
            '7: .*did you mean "fl',
        ),
        ("delay: 5, time", "dely: 5, time", '8: .*"dely" is not a column of flights; did you mean "delay"'),
        ("_value: nonsense,", "_value: nonsense, carrier: UA,", "9: .*either _value or columns"),
        ("_offset: 7", "_offset: -1", "12: .*_offset must be a whole number from 0"),
        ("_partition: 1", "_partition: true", "9: .*_partition must be a whole number"),
        ("00:00.5Z", "00:00.5Q", "9: .*_timestamp must be a time such as"),
        ("_key: x", "_key: 1", "9: .*_key must be text in quotes"),
        ("      by_hour:", "      by_our:", '14: .*neither a step nor a source; did you mean "by_hour"'),
        ("topic delays", "topic late", '16: .*no sink writes "topic late"; there are: topic delays, parquet'),
        ("topic delays", "airlines", '16: .*"airlines" reads tables only'),
        ("[{value: nonsense}]", "[{reson: x}]", '17: .*unknown key "reson"; did you mean "reason"'),
        ("rows_dropped_by_watermark: 1", "rows: 1", '18: .*unknown key "rows"'),
        ("    counts:", "    error: x\n    counts:", "13: .*a run that ends by an error has no result"),
        ("name: United}\n        - {_key", "name: !!set {United}}\n        - {_key", "5: .*a list, or a block of keys"),
        ("name: United}\n        - {_key", "name: 12:30}\n        - {_key", "5: .*cannot be read as a whole number"),
    ],
)
def test_what_is_wrong_is_told_at_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(PipelineError, match="delays.test.yaml:" + message):
        cases_of(tmp_path, changed(old, new))


def test_a_table_may_change_with_a_batch_unless_it_never_does(tmp_path: Path) -> None:
    text = changed("- flights: []", "- airlines: [{carrier: UA, name: Later}]")
    (case,) = cases_of(tmp_path, text)
    assert [record.offset for record in case.batches[1]] == [2]
    pipeline = read_flights(tmp_path)
    assert parts_of_case(pipeline, case.batches) == [range(1), range(1, 3)]
    assert parts_of_case(pipeline, case.batches[:1]) == [range(1)]
    assert parts_of_case(pipeline, [*case.batches, case.batches[1], ()]) == [range(1), range(1, 3), range(3, 5)]
    assert parts_of_case(pipeline, ()) == [range(0)]
    never = dataclasses.replace(pipeline.sources[1], refresh_ms=None)
    assert never.read is ReadMode.TABLE
    pipeline = dataclasses.replace(pipeline, sources=(pipeline.sources[0], never))
    with pytest.raises(PipelineError, match=r'11: .*"airlines" is a table with `refresh: never`: give its rows under'):
        read_cases(pipeline, tmp_path / "delays.test.yaml")


def test_a_test_expects_something_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r":2: .*nothing is expected"):
        cases_of(tmp_path, "tests:\n  - name: x\n    given: {}\n")
    with pytest.raises(PipelineError, match=r':3: .*a test "x" in line 2 already'):
        cases_of(tmp_path, "tests:\n  - {name: x, given: {}, error: y}\n  - {name: x, given: {}, error: y}\n")


def test_a_file_that_is_not_there_or_is_something_else_says_what_to_do(tmp_path: Path) -> None:
    pipeline = read_flights(tmp_path)
    assert path_of_tests(pipeline.path) == tmp_path / "delays.test.yaml"
    assert path_of_tests(Path("x.yml")) == Path("x.test.yaml")
    with pytest.raises(PipelineMissingError, match="does not exist: write tests of the pipeline there"):
        read_cases(pipeline, path_of_tests(pipeline.path))
    with pytest.raises(PipelineError, match=":1: tests of a pipeline are a block with the key `tests`"):
        cases_of(tmp_path, "[]\n")


def test_aliases_that_name_very_many_values_are_refused_at_once(tmp_path: Path) -> None:
    levels = "\n".join(f"          - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))
    rows = f"        - carrier:\n          - &a0 [x, x]\n{levels}\n"
    text = f"tests:\n  - name: x\n    given:\n      flights:\n{rows}    error: x\n"
    with pytest.raises(PipelineError, match="more than 200000 values"):
        cases_of(tmp_path, text)


def made(directory: Path, row: dict[str, Any]) -> Any:
    maker = RecordMaker(read_flights(directory))
    source = maker.source("FLIGHTS", True, PipelineError)
    return maker.record(source, row, PipelineError)


def test_values_of_python_are_written_as_the_decoding_takes_them(tmp_path: Path) -> None:
    moment = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)
    record = made(tmp_path, {"carrier": decimal.Decimal("1.50"), "delay": float("nan"), "time": moment})
    assert json.loads(record.value) == {"carrier": "1.50", "delay": "NaN", "time": "2013-01-01T05:00:00+00:00"}
    assert made(tmp_path, {"_value": b"\xff"}).value == b"\xff"
    assert made(tmp_path, {"_value": None}).value is None
    with pytest.raises(PipelineError, match="cannot be written as JSON"):
        made(tmp_path, {"carrier": {"x": object()}})


def test_a_test_has_so_many_rows_at_most(tmp_path: Path) -> None:
    maker = RecordMaker(read_flights(tmp_path))
    source = maker.source("flights", True, PipelineError)
    for _ in range(ROWS_MAX):
        maker.record(source, {"_value": "x"}, PipelineError)
    with pytest.raises(PipelineError, match="at most 10000 rows"):
        maker.record(source, {"_value": "x"}, PipelineError)
