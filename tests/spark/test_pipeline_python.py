"""Pipelines in Python: functions over DataFrames, and state that a processor in Python keeps, also through kill -9.

One Spark for all but the last test, which has a broker, and processes that are killed.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyarrow import dataset

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.new_state import refuse_new_state
from barnabas.pipelines.plan import create_views
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.sources import empty_frame
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.testing import KafkaCluster, PipelineTester
from tests.spark.pipeline_process import PipelineProcess

pytestmark = pytest.mark.timeout(900)

SPLIT = """\
import words
from pyspark.sql import functions as F

from barnabas.pipelines import pipeline


@F.udf("string")
def loud(name):
    return words.louder(name)


@pipeline(
    sources={
        "flights": {"topic": "flights", "schema": "carrier STRING, delay INT"},
        "airlines": {"topic": "airlines", "read": "table", "schema": "carrier STRING, name STRING"},
    },
    steps=[{"name": "keyed", "sql": "SELECT *, _key AS id FROM flights"}],
    sinks=[
        {"topic": "late", "from": "late"},
        {"topic": "counts", "from": "counts", "key": "name"},
    ],
)
def split(keyed, flights, airlines):
    named = flights.join(airlines, "carrier").withColumn("name", loud("name"))
    return {
        "late": keyed.where("delay > 15"),
        "counts": named.groupBy("name").count(),
    }
"""
WORDS = "def louder(name):\n    return name.upper()\n"
SPLIT_TESTS = """\
tests:
  - name: a function makes two results, and only one of them has state
    given:
      airlines: [{carrier: AA, name: American}]
      flights:
        - {carrier: AA, delay: 20, _key: k}
        - {carrier: AA, delay: 5}
    then:
      - flights: [{carrier: AA, delay: 1}, {_value: nonsense}]
    expect:
      late: [{carrier: AA, delay: 20, id: k, _value: '{"carrier":"AA","delay":20,"id":"k"}'}]
      counts: [{name: AMERICAN, count: 3}]
    dead_letters: [{value: nonsense}]
"""
MIXED = """\
name: mixed
sources:
  flights: {topic: flights, schema: "carrier STRING, delay INT, time TIMESTAMP"}
steps:
  - name: late
    python: steps.py:late
    watermark: {column: time, delay: 1 hour}
  - {name: by_hour, sql: "SELECT window.start AS hour, COUNT(*) AS n FROM late GROUP BY window(time, '1 hour')"}
sinks:
  - {topic: by_hour, from: by_hour, key: hour}
"""
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHIFTS = (ROOT / "examples" / "shifts.py").read_text()


def test_a_function_makes_results_of_streams_and_tables_with_modules_beside_it(
    tester: PipelineTester, tmp_path: Path
) -> None:
    (tmp_path / "split.py").write_text(SPLIT)
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "split.test.yaml").write_text(SPLIT_TESTS)
    tester.check(tmp_path / "split.py")


def test_the_pipeline_of_the_docs_does_what_they_say(tester: PipelineTester, tmp_path: Path) -> None:
    _, _, section = (DOCS / "pipelines.md").read_text().partition("\n## Pipelines in Python\n")
    (tmp_path / "delays.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    flights = [{"carrier": "UA", "origin": "EWR", "dep_delay": 1, "time_hour": f"2013-01-0{n}"} for n in (1, 1, 2)]
    output = tester.run(tmp_path / "delays.py", {"airlines": [{"carrier": "UA", "name": "United"}], "flights": flights})
    assert [(row["name"], row["day"].day, row["flights"]) for row in output.rows("delays")] == [
        ("United", 1, 2),
        ("United", 2, 1),
    ]


def test_a_step_of_yaml_may_be_a_function_that_steps_in_sql_read(tester: PipelineTester, tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def late(flights):\n    return flights.where('delay > 15')\n")
    (tmp_path / "mixed.yaml").write_text(MIXED)
    rows = [{"carrier": "AA", "delay": 10 * n, "time": f"2013-01-01T05:0{n}:00Z"} for n in range(4)]
    output = tester.run(tmp_path / "mixed.yaml", {"flights": rows})
    assert [row["n"] for row in output.rows("by_hour")] == [2]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return flights.select('carier')", "2: wrong: [UNRESOLVED_COLUMN"),
        ("x = 1\n    return flights.where(x / 0)", "3: wrong: ZeroDivisionError"),
        ("return flights.count", "1: wrong returned a method, not a DataFrame"),
        ("return None", "1: wrong returned nothing, not a DataFrame"),
        ("return flights.sparkSession.range(3)", "1: wrong returned a DataFrame that reads none of the streams"),
        ("return flights.sparkSession.newSession().range(3)", "1: wrong returned a DataFrame of another session"),
        ("x = {'late': flights}\n    return x", "1: wrong returned a dict, not a DataFrame"),
    ],
)
def test_what_a_function_does_wrong_is_told_at_its_line(
    tester: PipelineTester, tmp_path: Path, body: str, told: str
) -> None:
    (tmp_path / "steps.py").write_text(f"def wrong(flights):\n    {body}\n")
    (tmp_path / "mixed.yaml").write_text(MIXED.replace("steps.py:late", "steps.py:wrong"))
    with pytest.raises(PipelineError) as caught:
        tester.run(tmp_path / "mixed.yaml", {"flights": []})
    assert str(caught.value).startswith(f"{tmp_path / 'steps.py'}:{told}")


def test_a_row_that_a_function_fails_at_is_told_with_the_line(tester: PipelineTester, tmp_path: Path) -> None:
    text = "@F.udf('int')\ndef share(delay):\n    return 60 // delay\n\n\ndef late(flights):\n"
    returned = "    return flights.withColumn('delay', share('delay'))\n"
    (tmp_path / "steps.py").write_text(f"from pyspark.sql import functions as F\n\n\n{text}{returned}")
    (tmp_path / "mixed.yaml").write_text(MIXED.replace("by_hour, from: by_hour, key: hour", "late, from: late"))
    with pytest.raises(PipelineError) as caught:
        tester.run(tmp_path / "mixed.yaml", {"flights": [{"carrier": "AA", "delay": 0, "time": "2013-01-01"}]})
    assert f"late failed at a row, {tmp_path / 'steps.py'}:6: ZeroDivisionError" in str(caught.value)


STATELESS = ("where('delay > 1').withColumn('one', F.lit(1)).join(airlines, 'carrier')",)
STATEFUL = (
    "groupBy('carrier').count()",
    "dropDuplicates(['carrier'])",
    "join(flights.withColumnRenamed('delay', 'd'), 'carrier')",
)


def test_a_query_that_has_run_without_state_gets_none_later(tester: PipelineTester, tmp_path: Path) -> None:
    """Its state would begin in the middle. One that was killed in its first batch may have some to come."""
    airlines = '  airlines: {topic: airlines, read: table, schema: "carrier STRING, name STRING"}\nsteps:'
    text = MIXED.replace("steps:", airlines, 1).replace("    watermark: {column: time, delay: 1 hour}\n", "")
    path = tmp_path / "mixed.yaml"
    path.write_text(text[: text.index("  - {name: by_hour")] + "sinks:\n  - {topic: out, from: late}\n")
    refused = []
    for body in (*STATELESS, *STATEFUL):
        head = "from pyspark.sql import functions as F\ndef late(flights, airlines):\n    return flights."
        (tmp_path / "steps.py").write_text(f"{head}{body}\n")
        pipeline = read_pipeline(path)
        session, state = tester._started(pipeline).newSession(), StateDirectory(pipeline.state_directory)
        create_views(pipeline, session, partial(empty_frame, session))
        refuse_new_state(pipeline, session, state)
        for log in ("offsets", "commits"):
            (state.checkpoint("late") / log).mkdir(parents=True, exist_ok=True)
            (state.checkpoint("late") / log / "0").touch()
        try:
            refuse_new_state(pipeline, session, state)
        except PipelineError as error:
            refused.append((body, error.line, error.message.partition(", which")[0]))
        shutil.rmtree(state.directory)
    assert refused == [(body, 6, "late has run without state, and late has some now") for body in STATEFUL]


def test_a_processor_keeps_state_and_its_timers_end_it(tester: PipelineTester, tmp_path: Path) -> None:
    (tmp_path / "shifts.py").write_text(SHIFTS)
    output = tester.run(
        tmp_path / "shifts.py",
        {"flights": [flight("AA", "05:00"), flight("UA", "05:10"), flight("AA", "05:20")]},
        [{"flights": [flight("UA", "05:30")]}, {"flights": [flight("DL", "12:30")]}, {"flights": []}],
    )
    found = {row["carrier"]: (row["flights"], row["is_over"]) for row in output.rows("shifts")}
    assert found == {"AA": (2, True), "UA": (2, True), "DL": (1, False)}


@pytest.mark.night("two whole runs, 60 s of processor time; found nothing yet: kill -9 of other state by day")
def test_state_and_timers_survive_kill_9_and_a_changed_processor_is_refused(tmp_path: Path) -> None:
    """What was counted before the kill is counted on behind it, and ends when its time has come."""
    path = tmp_path / "shifts.py"
    path.write_text(SHIFTS)
    with KafkaCluster() as cluster:
        servers = cluster.bootstrap_servers
        cluster.create_topic("flights")
        write(servers, flight("AA", "05:00"), flight("AA", "05:20"), flight("UA", "05:25"))
        with PipelineProcess(path, servers) as run:
            run.batches(1)
            run.kill()
        write(servers, flight("UA", "05:30"), flight("DL", "12:30"))
        with PipelineProcess(path, servers, "--once") as run:
            run.finish()
        assert shifts(tmp_path) == {
            "AA": [(2, False), (2, True)],
            "UA": [(1, False), (2, False), (2, True)],
            "DL": [(1, False)],
        }
        path.write_text(SHIFTS.replace("hours=4", "hours=5"))
        with PipelineProcess(path, servers, "--once") as run:
            assert run.wait() == 1
        assert (
            "step shifts was changed (PAUSE), without a `revision` by which the state of shifts goes on, since"
            in run.errors()
        )


def flight(carrier: str, time: str) -> dict[str, object]:
    return {"carrier": carrier, "origin": "JFK", "time_hour": f"2013-01-01T{time}:00Z"}


def write(servers: str, *rows: dict[str, object]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for row in rows:
        producer.produce("flights", json.dumps(row), str(row["carrier"]), partition=0)
    assert producer.flush(60) == 0


def shifts(directory: Path) -> dict[str, list[tuple[int, bool]]]:
    """By carrier what each batch has written."""
    rows = dataset.dataset(directory / "out" / "shifts", partitioning="hive").to_table().to_pylist()
    found: dict[str, list[tuple[int, bool]]] = {}
    for row in sorted(rows, key=lambda row: (row["batch_id"], row["is_over"])):
        found.setdefault(row["carrier"], []).append((row["flights"], row["is_over"]))
    return found
