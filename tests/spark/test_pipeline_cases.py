"""`barnabas pipeline test` and `PipelineTester`: what is given, decoded, computed and written, without brokers."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.debezium_envelopes import envelope_of
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.table_file import TablePlan, changes_text, envelopes_text
from barnabas.testing import PipelineTester
from tests.unit.pipelines.test_debezium_envelopes import envelope_descriptors

pytestmark = pytest.mark.timeout(900)

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
PIPELINE = """\
name: delays
sources:
  flights:
    topic: flights
    schema: carrier STRING, delay DOUBLE, fare DECIMAL(10, 2), time TIMESTAMP
  airlines:
    topic: airlines
    read: table
    schema: carrier STRING, name STRING
steps:
  - name: named
    sql: SELECT f.*, a.name FROM flights AS f LEFT JOIN airlines AS a ON a.carrier = f.carrier
    watermark: {column: time, delay: 1 hour}
  - name: by_hour
    sql: |
      SELECT name, window.start AS hour, avg(delay) AS delay, sum(fare) AS fares, count(*) AS flights
      FROM named GROUP BY name, window(time, '1 hour')
sinks:
  - {topic: delays, from: by_hour, key: [name, hour]}
  - {parquet: out/delays, from: by_hour, key: [name, hour]}
  - {console: 2, from: by_hour}
"""
TESTS = """\
tests:
  - name: of a table the newest row is joined, and each sink has the result
    given:
      airlines:
        - {_key: UA, carrier: UA, name: Old}
        - {_key: UA, carrier: UA, name: United}
        - {_key: DL, carrier: DL, name: Delta}
        - {_key: DL, _value: null}
      flights:
        - {carrier: UA, delay: 5, fare: 1.10, time: 2013-01-01T05:00:00Z}
        - {carrier: UA, delay: null, fare: "2.20", time: 2013-01-01T05:10:00Z}
        - {carrier: DL, delay: 0.1, time: "2013-01-01 06:10"}
        - {_value: null}
    expect:
      by_hour:
        - {name: United, hour: 2013-01-01 05:00, delay: 5, fares: 3.30, flights: 2}
        - {name: null, hour: 2013-01-01 06:00, delay: 0.1, fares: null, flights: 1}
      named:
        - {carrier: UA, name: United}
        - {carrier: UA, name: United}
        - {carrier: DL, name: null}
      topic delays:
        - _key: '{"name":"United","hour":"2013-01-01T05:00:00.000000Z"}'
          _value: '{"name":"United","hour":"2013-01-01T05:00:00.000000Z","delay":5.0,"fares":3.30,"flights":2}'
        - {flights: 1}
      console by_hour:
        - {name: United, flights: 2}
        - {name: null, flights: 1}
  - name: a late row is dropped, and records that do not fit are letters
    given:
      flights:
        - {time: 2013-01-01T05:00:00Z}
        - {_value: nonsense, _key: k}
    then:
      - flights: [{time: 2013-01-01T09:00:00Z}]
      - flights: [{time: 2013-01-01T09:10:00Z}]
      - flights:
          - {time: 2013-01-01T05:30:00Z}
          - {time: null}
          - {_value: '{"fare": 1.234}'}
          - {_value: !!binary /w==}
    expect:
      by_hour:
        - {hour: 2013-01-01T05:00:00Z, flights: 1}
        - {hour: 2013-01-01T09:00:00Z, flights: 2}
    dead_letters:
      - {source: flights, value: nonsense, key: k, offset: 1, reason: not one JSON object}
      - {value: '{"fare": 1.234}', offset: 6}
      - {reason: UTF-8, value: "\\\\xff"}
    counts: {records_refused: 3, rows_dropped_by_watermark: 1, rows_without_event_time: 1, rows_ahead: 0}
"""


def written(directory: Path, text: str = PIPELINE, tests: str = TESTS) -> Path:
    path = directory / "delays.yaml"
    path.write_text(text)
    (directory / "delays.test.yaml").write_text(tests)
    return path


def test_tests_in_yaml_pass_and_leave_nothing_beside_the_pipeline(tester: PipelineTester, tmp_path: Path) -> None:
    tester.check(written(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["delays.test.yaml", "delays.yaml"]


WRONG = (
    ("delay: 5, fares: 3.30", "delay: null, fares: 3.31", r"delay is 5\.0, not null; fares is 3\.3, not 3\.31"),
    ('"fares":3.30', '"fares":3.3', "_value is"),
    ("      - {value: '{\"fare\": 1.234}', offset: 6}\n", "", r"unexpected: .*1\.234"),
    ("rows_dropped_by_watermark: 1", "rows_dropped_by_watermark: 0", "watermark is 1, not 0"),
)


def test_all_that_is_expected_wrongly_is_told(tester: PipelineTester, tmp_path: Path) -> None:
    tests = TESTS
    for old, new, _ in WRONG:
        assert TESTS.count(old) == 1
        tests = tests.replace(old, new)
    with pytest.raises(AssertionError, match=r"^2 of 2 tests failed\n") as caught:
        tester.check(written(tmp_path, tests=tests))
    told = str(caught.value)
    assert [message for _, _, message in WRONG if not re.search(message, told)] == []


def test_from_python_rows_have_the_types_of_python(tester: PipelineTester, tmp_path: Path) -> None:
    hour = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)
    flight = {"carrier": "UA", "delay": 4, "fare": decimal.Decimal("1.10"), "time": hour}
    ran = tester.run(written(tmp_path), {"flights": [flight]}, [{"flights": [{**flight, "delay": 6}]}], views=["named"])
    row = {"name": None, "hour": hour, "delay": 5.0, "fares": decimal.Decimal("2.20"), "flights": 2}
    assert ran.rows("topic delays") == ran.rows("parquet out/delays") == ran.rows("by_hour") == [row]
    assert [[each["flights"] for each in batch] for batch in ran.batches("by_hour")] == [[1], [2]]
    assert [each["delay"] for each in ran.rows("named")] == [4.0, 6.0]
    assert [json.loads(key or "") for key, _ in ran.records("by_hour")] == [
        {"name": None, "hour": "2013-01-01T05:00:00.000000Z"}
    ] * 2
    assert (ran.dead_letters, ran.counts["records_refused"]) == ([], 0)
    ran.assert_rows("by_hour", [{"hour": "2013-01-01 05:00", "delay": 5}])
    with pytest.raises(AssertionError, match=r"delay is 5\.0, not 6"):
        ran.assert_rows("by_hour", [{"hour": "2013-01-01 05:00", "delay": 6}])
    with pytest.raises(PipelineError, match=r'views=\["flights"\]'):
        ran.rows("flights")


def test_a_source_may_refuse_or_leave_out_what_does_not_fit(tester: PipelineTester, tmp_path: Path) -> None:
    for on_error in ("fail", "skip"):
        text = PIPELINE.replace("    topic: flights\n", f"    topic: flights\n    on_error: {on_error}\n")
        path = written(tmp_path, text)
        given = {"flights": [{"_value": "nonsense"}, {"time": "2013-01-01T05:00:00Z"}]}
        if on_error == "fail":
            with pytest.raises(PipelineError, match="a record is not JSON of the source's schema: topic flights"):
                tester.run(path, given)
        else:
            ran = tester.run(path, given)
            assert (len(ran.rows("by_hour")), ran.counts["records_refused"], ran.dead_letters) == (1, 1, [])


def test_settings_of_spark_are_those_of_the_file(tester: PipelineTester, tmp_path: Path) -> None:
    text = PIPELINE.replace("avg(delay)", "CAST('nonsense' AS INT)")
    flights = {"flights": [{"carrier": "UA", "time": "2013-01-01T05:00:00Z"}]}
    with pytest.raises(PipelineError, match="nonsense"):
        tester.run(written(tmp_path, text), flights)
    ran = tester.run(written(tmp_path, text + "spark: {spark.sql.ansi.enabled: false}\n"), flights)
    assert [row["delay"] for row in ran.rows("by_hour")] == [None]
    # Not all of them can be given to a Spark that runs.
    with pytest.raises(PipelineError, match=r"spark\.task\.cpus counts from the start of Spark"):
        tester.run(written(tmp_path, text + "spark: {spark.task.cpus: 1}\n"), flights)


def test_a_row_of_a_table_without_a_key_ends_the_run(tester: PipelineTester, tmp_path: Path) -> None:
    given: dict[str, list[dict[str, Any]]] = {
        "airlines": [{"_key": None, "carrier": "UA", "name": "x"}],
        "flights": [{"carrier": "UA", "time": "2013-01-01T05:00:00Z"}],
    }
    with pytest.raises(PipelineError, match="a record without a key cannot be a row of a table"):
        tester.run(written(tmp_path), given)


def test_a_query_that_spark_refuses_is_told_at_its_line(tester: PipelineTester, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"delays\.yaml:16: .*nosuch"):
        tester.run(written(tmp_path, PIPELINE.replace("avg(delay)", "avg(nosuch)")), {})


def test_a_hundred_rows_take_seconds_in_a_session_that_is_there(tester: PipelineTester, tmp_path: Path) -> None:
    path = written(tmp_path)
    flights = [{"carrier": "UA", "delay": n, "time": f"2013-01-01T05:{n % 60:02}:00Z"} for n in range(100)]
    began = time.monotonic()
    ran = tester.run(path, {"flights": flights})
    assert ran.rows("by_hour")[0]["flights"] == 100
    # It takes 3 s of processor time, the first in a session 4.5 s; a machine of tests has other things to do.
    assert time.monotonic() - began < 60


def test_the_example_of_the_page_about_tests_passes_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text("utf-8")
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "pipeline_tester" in each]
    (pipeline,) = re.findall(r"```yaml\n(name: revenue.*?)```", page, re.DOTALL)
    (tests,) = re.findall(r"```yaml\n(tests:.*?)```", page, re.DOTALL)
    (tmp_path / "revenue.yaml").write_text(pipeline)
    (tmp_path / "revenue.test.yaml").write_text(tests)
    (tmp_path / "test_revenue.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    plugin = ("-p", "barnabas.testing.pytest_plugin", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", *plugin],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": SOURCE},
    )
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_examples_of_the_page_about_pipelines_pass(tester: PipelineTester, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text("utf-8")
    (pipeline,) = re.findall(r"```yaml\n(name: delays.*?)```", page, re.DOTALL)
    (tests,) = re.findall(r"```yaml\n(tests:.*?)```", page, re.DOTALL)
    tester.check(written(tmp_path, pipeline, tests))


@pytest.mark.night("a Spark of its own, 30 s of processor time; found nothing yet: verdicts and lines are units")
def test_the_command_says_each_test_and_its_exit_status_whether_all_passed(tmp_path: Path) -> None:
    path = written(tmp_path, tests=TESTS.replace("delay: 5, fares", "delay: 6, fares"))
    junit = tmp_path / "out.xml"
    command = [sys.executable, "-m", "barnabas.cli", "pipeline", "test", str(path), "--junit", str(junit)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 1, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("FAILED  of a table the newest row is joined")
    assert lines[2].strip().startswith("differs (line 16): delay is 5.0, not 6; in ")
    assert any(line.startswith("passed  a late row is dropped") for line in lines)
    assert lines[-1].endswith(": 1 failed")
    assert 'failures="1"' in junit.read_text()


def test_a_table_is_as_its_topic_is_at_a_batch_and_state_and_watermark_go_on(
    tester: PipelineTester, tmp_path: Path
) -> None:
    """The row of 05:30 comes with another table, and is not too late: what was new before it moved no watermark yet."""
    path = written(tmp_path)
    path.with_name("delays.test.yaml").write_text("""\
tests:
  - name: the airline is named otherwise, and then forgotten
    given:
      airlines: [{_key: UA, carrier: UA, name: Old}]
      flights: [{carrier: UA, time: 2013-01-01T05:00:00Z}]
    then:
      - flights: [{carrier: UA, time: 2013-01-01T09:00:00Z}]
      - airlines: [{_key: UA, carrier: UA, name: United}]
        flights: [{carrier: UA, time: 2013-01-01T05:30:00Z}, {_value: nonsense}]
      - flights: [{carrier: UA, time: 2013-01-01T05:40:00Z}, {carrier: UA, time: 2013-01-01T09:10:00Z}]
      - airlines: [{_key: UA, _value: null}, {carrier: DL, name: Delta}]
      - flights: [{carrier: UA, time: 2013-01-01T09:20:00Z}, {carrier: DL, time: 2013-01-01T09:20:00Z}]
    expect:
      by_hour:
        - {name: Old, hour: 2013-01-01 05:00, flights: 1}
        - {name: Old, hour: 2013-01-01 09:00, flights: 1}
        - {name: United, hour: 2013-01-01 05:00, flights: 1}
        - {name: United, hour: 2013-01-01 09:00, flights: 1}
        - {name: null, hour: 2013-01-01 09:00, flights: 1}
        - {name: Delta, hour: 2013-01-01 09:00, flights: 1}
    dead_letters: [{value: nonsense, offset: 3}]
    counts: {rows_dropped_by_watermark: 1, records_refused: 1}
""")
    tester.check(path)


def test_lines_of_csv_become_rows_of_a_table_with_a_key(tester: PipelineTester, tmp_path: Path) -> None:
    pipeline = tmp_path / "changes.yaml"
    pipeline.write_text("""\
name: changes
sources:
  changes: {topic: changes, format: csv, delimiter: ";", tombstones: keep, schema: "id INT, name STRING, at INT"}
steps:
  - name: named
    sql: SELECT coalesce(id, CAST(_key AS INT)) AS id, name, _offset AS at, _deleted AS gone FROM changes
sinks:
  - {delta: out, from: named, key: id, delete: gone, newest_by: at}
  - {topic: changed, from: changes, key: _key}
""")
    written(tmp_path)
    (tmp_path / "changes.test.yaml").write_text("""\
tests:
  - name: the newest row of a key is there, and goes with a record without a value
    given:
      changes:
        - {_key: "1", id: 1, name: "a;b"}
        - {_key: "1", id: 1, name: 'say "c"'}
        - {_key: "2", id: 2, name: x}
        - {_key: "3", _value: "3;y"}
    then:
      - changes: [{_key: "2", _value: null}, {_key: "4", id: 4, name: null}]
    expect:
      delta out:
        - {id: 1, name: 'say "c"'}
        - {id: 4, name: null}
      topic changed:
        - {_key: '{"_key":"1"}', name: 'say "c"', _deleted: false}
        - {_key: '{"_key":"2"}', id: null, _deleted: true}
        - {id: 4}
    dead_letters:
      - {key: "3", reason: not one line of CSV}
""")
    tester.check(pipeline)


def test_changes_of_a_database_become_its_rows(tester: PipelineTester, tmp_path: Path) -> None:
    pipeline = tmp_path / "customers.table.yaml"
    plan = TablePlan("customers", "./out", "iceberg", ("id",), is_of_changes=True)
    pipeline.write_text(changes_text(plan, [("id", "BIGINT"), ("full name", "STRING")], is_wrapped=True))

    def change(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
        return {"payload": {"op": op, "before": before, "after": after}}

    changes = [
        change("r", None, {"id": 1, "full name": "a"}),
        change("c", None, {"id": 2, "full name": "b"}),
        change("u", {"id": 1, "full name": "a"}, {"id": 1, "full name": "c"}),
        change("d", {"id": 2, "full name": "b"}, None),
        {"_value": None},
        change("m", None, None),
    ]
    output = tester.run(pipeline, {"records": changes}, then=[{"records": [change("c", None, {"id": 3})]}])
    output.assert_rows("iceberg out", [{"id": 1, "full name": "c"}, {"id": 3, "full name": None}])
    # The connector's converter was changed: the envelope stands without its schema.
    bare = {"_value": json.dumps({"op": "c", "before": None, "after": {"id": 4, "full name": "d"}})}
    with pytest.raises(PipelineError, match="no envelope of Debezium"):
        tester.run(pipeline, {"records": [*changes, bare]})
    # Nobody would hear that the rows which the database has not any more are here still.
    with pytest.raises(PipelineError, match="the database has truncated the table"):
        tester.run(pipeline, {"records": [*changes, change("t", None, None)]})
    for wrong, told in (
        (change("x", None, {"id": 1}), "has an op that this file does not know: .*op x"),
        (change("u", {"id": 1}, None), r"puts a row \(op c, r or u\) has no after"),
        (change("u", {"id": 1}, {"id": 2}), "has another key before than after"),
    ):
        with pytest.raises(PipelineError, match=told):
            tester.run(pipeline, {"records": [*changes, wrong]})


def test_a_row_that_goes_has_the_key_of_its_record_where_the_database_has_logged_no_more(
    tester: PipelineTester, tmp_path: Path
) -> None:
    """A column that was not logged, and cannot be null, is empty in `before`."""
    pipeline = tmp_path / "customers.table.yaml"
    plan = TablePlan("customers", "./out", "delta", ("id", "email"), is_of_changes=True)
    columns = [("id", "BIGINT"), ("email", "STRING"), ("age", "INT")]
    pipeline.write_text(changes_text(plan, columns, is_wrapped=False))
    changes: list[dict[str, Any]] = [
        {"op": "c", "after": {"id": number, "email": email, "age": 7}} for number, email in ((0, "a"), (1, "b"))
    ]
    gone = {"op": "d", "before": {"id": 0, "email": "", "age": 0}}
    output = tester.run(pipeline, {"records": [*changes, {**gone, "_key": '{"id": 0, "email": "a"}'}]})
    output.assert_rows("delta out", [{"id": 1, "email": "b", "age": 7}])
    with pytest.raises(PipelineError, match="has its key neither in before nor as the key of the record"):
        tester.run(pipeline, {"records": [*changes, {**gone, "_key": '{"id": 0}'}]})


def test_changes_in_protobuf_become_rows_and_what_has_no_op_is_none(tester: PipelineTester, tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(envelope_descriptors())
    more = (("format", "protobuf"), ("message", "air.Envelope"), ("framing", "confluent"))
    plan = TablePlan("customers", "./out", "delta", ("id",), more=more, is_of_changes=True)
    envelope = envelope_of(envelope_descriptors(), "air.Envelope")
    pipeline = tmp_path / "customers.table.yaml"
    pipeline.write_text(envelopes_text(plan, envelope, ("schema_file", "shop.desc")))
    changes: list[dict[str, Any]] = [
        {"op": "r", "after": {"id": 1, "full_name": "a"}},
        {"op": "c", "after": {"id": 2, "full_name": "b"}},
        {"op": "u", "before": {"id": 1}, "after": {"id": 1}},
        {"op": "d", "before": {"id": 2, "full_name": "b"}},
        {"op": "d", "_key": '{"id": 3}'},
        {"_value": None},
    ]
    output = tester.run(pipeline, {"records": changes})
    output.assert_rows("delta out", [{"id": 1, "full_name": None}])
    with pytest.raises(PipelineError, match="no envelope of Debezium"):
        tester.run(pipeline, {"records": [{"after": {"id": 1}}]})
