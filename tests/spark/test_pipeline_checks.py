"""What Spark says of a pipeline before it runs, and how it reads records; one session, no broker."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

from barnabas.pipelines.dead_letters import letters_of, unwritten
from barnabas.pipelines.definition import Pipeline, PipelineError, Source, Step, TopicSink
from barnabas.pipelines.parquet_sink import write_hidden
from barnabas.pipelines.parquet_table import ParquetTable
from barnabas.pipelines.plan import OutputMode, check_views, check_with_spark, create_views, rows_to_write
from barnabas.pipelines.progress import Progress, Totals, counted, progress_of
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.record_decoding import json_decoding
from barnabas.pipelines.sources import BAD_RECORD, decoded, empty_frame, refused_metric
from barnabas.pipelines.spark_internals import observed_in_batch
from barnabas.pipelines.topic_sink import records_of

# py4j leaves the sockets by which rows arrive to the garbage collector.
pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

FLIGHTS = '  flights: {topic: flights, on_error: fail, schema: "carrier STRING, time TIMESTAMP, delay INT"}'
AIRLINES = '  airlines: {topic: airlines, read: table, schema: "carrier STRING, name STRING"}'
SKIPPING = FLIGHTS.replace("on_error: fail", "on_error: skip")
SINK = "  - {parquet: table, from: result, key: [carrier]}"


def read(
    directory: Path, *sql: str, sources: str = f"{FLIGHTS}\n{AIRLINES}", sink: str = SINK, more: str = ""
) -> Pipeline:
    """A pipeline whose step `result` is this SQL."""
    path = directory / "pipeline.yaml"
    lines = [f"name: checks\nsources:\n{sources}", "steps:", "  - name: result", "    sql: |"]
    lines += [f"      {line}" for line in sql]
    path.write_text("\n".join([*lines, more, "sinks:", sink, ""]).replace("\n\n", "\n"))
    return read_pipeline(path)


def refusal(pipeline: Pipeline, spark: Any) -> str:
    with pytest.raises(PipelineError) as error:
        check_with_spark(pipeline, spark)
    return str(error.value).removeprefix(str(pipeline.path))


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM flights", ["carrier", "time", "delay"]),
        ("SELECT f.*, f._offset FROM flights f", ["carrier", "time", "delay", "_offset"]),
        ("SELECT * FROM flights JOIN airlines USING (carrier)", ["carrier", "time", "delay", "name"]),
        ("SELECT * FROM flights JOIN airlines USING (_key)", ["carrier", "time", "delay", "carrier", "name"]),
        ("SELECT * FROM flights f FULL JOIN airlines USING (_key)", ["carrier", "time", "delay", "carrier", "name"]),
        ("SELECT a.*, f.delay FROM flights f RIGHT JOIN airlines a USING (_key)", ["carrier", "name", "delay"]),
        ("SELECT * FROM flights f RIGHT JOIN airlines USING (_key)", ["carrier", "time", "delay", "carrier", "name"]),
        ("SELECT * FROM flights LEFT SEMI JOIN airlines USING (carrier)", ["carrier", "time", "delay"]),
        ("SELECT * EXCEPT (delay) FROM flights", ["carrier", "time"]),
        ("SELECT q.* FROM (SELECT *, _key AS k FROM flights) q", ["carrier", "time", "delay", "k"]),
        ("FROM flights |> WHERE delay > 1", ["carrier", "time", "delay"]),
    ],
)
def test_a_star_has_the_columns_of_the_schema_only(spark: Any, tmp_path: Path, sql: str, columns: list[str]) -> None:
    pipeline = read(tmp_path, sql)
    create_views(pipeline, spark, lambda source: empty_frame(spark, source))
    assert spark.table("result").columns == columns


def test_a_sink_from_a_source_has_the_columns_of_its_schema_and_of_its_key(spark: Any, tmp_path: Path) -> None:
    pipeline = read(tmp_path, "SELECT 1 FROM flights", sink="  - {parquet: table, from: flights, key: [_key, carrier]}")
    create_views(pipeline, spark, lambda source: empty_frame(spark, source))
    (query,) = pipeline.queries
    assert rows_to_write(pipeline, spark, query).columns == ["carrier", "time", "delay", "_key"]


@pytest.mark.parametrize(
    ("sql", "place", "told"),
    [
        (("SELECT carrier,", "  dela AS late", "FROM flights"), "  dela", "step result: [UNRESOLVED_COLUMN"),
        (("SELECT carrier", "FROM flights", "WHERE no_such(delay)"), "WHERE", "step result: [UNRESOLVED_ROUTINE]"),
        (("SELECT carrier, delay + time AS sum FROM flights",), "SELECT", "step result: [DATATYPE_MISMATCH"),
        (("SELECT *, delay AS carrier FROM flights",), "from:", "result has two columns named carrier"),
        (("SELECT * EXCEPT (carrier) FROM flights",), "key:", "result has no column carrier for the key; it has time"),
        (("SELECT carrier, 1 AS batch_id FROM flights",), "from:", "result has a column batch_id"),
        (("SELECT carrier, NULL AS nothing FROM flights",), "from:", "Parquet cannot hold nothing (void) of result"),
        (("SELECT carrier FROM flights ORDER BY carrier",), "- name:", "result cannot run on a stream: "),
    ],
)
def test_each_fault_is_told_at_its_line(
    spark: Any, tmp_path: Path, sql: tuple[str, ...], place: str, told: str
) -> None:
    pipeline = read(tmp_path, *sql, sink="  - parquet: table\n    from: result\n    key: [carrier]")
    lines = pipeline.path.read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.lstrip().startswith(place.lstrip()))
    message = refusal(pipeline, spark)
    assert message.startswith(f":{line}: {told}")
    assert "\n" not in message
    assert "SQLSTATE" not in message


def test_a_watermark_needs_a_time(spark: Any, tmp_path: Path) -> None:
    late = "    watermark: {column: delay, delay: 1 hour}"
    message = refusal(read(tmp_path, "SELECT * FROM flights", more=late), spark)
    assert message.startswith(":9: step result, watermark: [EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE]")


def put(directory: Path, number: int, *records: Mapping[str, Any]) -> None:
    """Records for `records_in`, whose values are text."""
    place = {"topic": "flights", "partition": 1, "timestamp": "2013-01-01T00:00:00Z"}
    lines = []
    for offset, record in enumerate(records):
        value = base64.b64encode(json.dumps(record).encode()).decode()
        lines.append(json.dumps({"key": "aw==", "value": value, "offset": offset, **place}))
    directory.mkdir(exist_ok=True)
    path = directory / f"{number}.json"
    path.write_text("\n".join(lines))
    os.utime(path, (number, number))  # Spark reads the oldest first


def records_in(spark: Any, directory: Path) -> Any:
    """What `put` has written there as a stream of records, as Spark's Kafka source has them, a file for each batch."""
    columns = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", "1").json(str(directory))


def batches_of(frame: Any, checkpoint: Path) -> tuple[list[Any], list[Progress]]:
    """All rows of a stream that ends, in update mode, and what is told of each batch."""
    rows: list[Any] = []
    query = (
        counted(frame)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, _number: rows.extend(batch.collect()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    events = [{**json.loads(event.json), "sources": []} for event in query.recentProgress]
    return rows, [progress_of(event, "result", Totals()) for event in events]


def test_a_row_of_the_far_future_moves_no_watermark_and_rows_without_a_time_are_counted(
    spark: Any, tmp_path: Path
) -> None:
    late = '    watermark: {column: time, delay: 1 hour}\n  - {name: by_day, sql: "%s"}'
    days = "SELECT carrier, window(time, '1 day').start AS day, COUNT(*) AS flights FROM result GROUP BY 1, 2"
    pipeline = read(tmp_path, "SELECT * FROM flights", more=late % days, sink=SINK.replace("result", "by_day"))
    soon = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=20)).isoformat(timespec="seconds")
    first: list[Mapping[str, Any]] = [
        {"carrier": "AA", "time": "2013-01-01T05:00:00Z"},
        {"carrier": "AA"},
        {"carrier": "B6", "time": None},
    ]
    put(tmp_path / "in", 1, *first, {"carrier": "AA", "time": "9999-12-31T00:00:00Z"})
    # Who is ahead of us by less than a day, such as by a zone, is of the present.
    put(tmp_path / "in", 2, {"carrier": "AA", "time": "2013-01-01T05:30:00Z"}, {"carrier": "B6", "time": soon})
    create_views(pipeline, spark, lambda source: decoded(records_in(spark, tmp_path / "in"), source))
    rows, batches = batches_of(spark.table("by_day"), tmp_path / "checkpoint")
    assert sorted((row.carrier, row.flights) for row in rows) == [("AA", 1), ("AA", 2), ("B6", 1)]
    assert sum(batch.rows_without_event_time for batch in batches) == 2
    assert sum(batch.rows_ahead for batch in batches) == 1
    assert sum(batch.rows_dropped_by_watermark for batch in batches) == 0


def test_a_step_that_is_read_twice_counts_its_rows_once(spark: Any, tmp_path: Path) -> None:
    late = '    watermark: {column: time, delay: 1 hour}\n  - {name: twice, sql: "%s"}'
    both = "SELECT carrier FROM result UNION ALL SELECT carrier FROM result"
    pipeline = read(tmp_path, "SELECT * FROM flights", more=late % both, sink=SINK.replace("result", "twice"))
    put(tmp_path / "in", 1, {"carrier": "AA"}, {"carrier": "B6", "time": "9999-12-31T00:00:00Z"})
    create_views(pipeline, spark, lambda source: decoded(records_in(spark, tmp_path / "in"), source))
    rows, (batch,) = batches_of(spark.table("twice"), tmp_path / "checkpoint")
    assert [row.carrier for row in rows] == ["AA", "AA"]
    assert (batch.rows_without_event_time, batch.rows_ahead) == (1, 1)


def test_a_schema_that_spark_does_not_know(spark: Any, tmp_path: Path) -> None:
    pipeline = read(tmp_path, "SELECT carrier FROM flights")
    (source, table) = pipeline.sources
    wrong = Source(source.name, source.topic, "carrier STRANG", source.columns, 3, 3, 3)
    changed = Pipeline(pipeline.name, pipeline.path, tmp_path, (wrong, table), pipeline.steps, pipeline.sinks)
    assert ":3: source flights: " in refusal(changed, spark)


def modes(pipeline: Pipeline, spark: Any) -> Mapping[str, OutputMode]:
    create_views(pipeline, spark, lambda source: empty_frame(spark, source))
    return check_views(pipeline, spark)


def test_the_output_mode_is_what_the_query_needs(spark: Any, tmp_path: Path) -> None:
    counted = read(
        tmp_path, "SELECT carrier, COUNT(*) AS flights FROM flights JOIN airlines USING (carrier) GROUP BY 1"
    )
    assert modes(counted, spark) == {"result": OutputMode.UPDATE}
    other = FLIGHTS.replace("flights", "others", 1)
    joined = read(
        tmp_path, "SELECT f.carrier FROM flights f JOIN others o ON f.time = o.time", sources=f"{FLIGHTS}\n{other}"
    )
    assert modes(joined, spark) == {"result": OutputMode.APPEND}
    both = read(
        tmp_path,
        "SELECT f.carrier, COUNT(*) FROM flights f JOIN others o ON f.time = o.time GROUP BY 1",
        sources=f"{FLIGHTS}\n{other}",
    )
    assert "cannot run on a stream: " in refusal(both, spark)


def test_a_check_leaves_no_view_behind(spark: Any, tmp_path: Path) -> None:
    before = [table.name for table in spark.catalog.listTables()]
    pipeline = read(tmp_path, "SELECT carrier FROM flights")
    fresh = Pipeline(
        pipeline.name, pipeline.path, tmp_path, pipeline.sources, (Step("once", "SELECT * FROM flights", 5),), ()
    )
    check_with_spark(fresh, spark)
    assert {table.name for table in spark.catalog.listTables()} <= set(before) - {"flights", "airlines"}


def test_records_of_a_topic_keep_every_microsecond_in_key_and_value(spark: Any) -> None:
    times = ("05:00:00.123456", "05:00:00.123999", "05:00:00")
    made = ", ".join(f"(TIMESTAMP '2013-01-01 {time}')" for time in times)
    columns = "t, CAST(t AS TIMESTAMP_NTZ) AS n, DATE(t) AS d, array(t) AS a, 'x' AS c"
    frame = spark.sql(f"SELECT {columns} FROM VALUES {made} AS made(t)")
    written = [(row.key, row.value) for row in records_of(frame, TopicSink("out", "v", 1, 1, ("T", "d"))).collect()]
    expected = []
    for digits in ("05:00:00.123456", "05:00:00.123999", "05:00:00.000000"):
        time = f'"2013-01-01T{digits}Z"'
        value = f'{{"t":{time},"n":"2013-01-01T{digits}","d":"2013-01-01","a":[{time}],"c":"x"}}'
        expected.append((f'{{"t":{time},"d":"2013-01-01"}}', value))
    assert written == expected


def rows(spark: Any, source: Source, *values: str | None) -> list[Any]:
    """The records of these values as the source's rows, through a condition that Spark would gladly move."""
    records = [(b"k", None if value is None else value.encode(), "flights", 1, n) for n, value in enumerate(values)]
    frame = spark.createDataFrame(records, "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT")
    frame = frame.selectExpr("*", "TIMESTAMP '2013-01-01' AS timestamp")
    return list(decoded(frame, source).where("carrier IS NOT NULL").collect())


@pytest.fixture
def source(tmp_path: Path) -> Source:
    nested = FLIGHTS.replace("delay INT", "delay INT, at STRUCT<x: INT>")
    return read(tmp_path, "SELECT carrier FROM flights", sources=f"{nested}\n{AIRLINES}").sources[0]


def test_records_become_rows(spark: Any, source: Source) -> None:
    whole = {"carrier": "AA", "time": "2013-01-01T05:00:00+01:00", "delay": -3, "at": {"x": 1}, "more": "ignored"}
    first, second = rows(spark, source, json.dumps(whole), None, '{"carrier": "B6"}')
    assert (first.carrier, first.delay, first["at"].x) == ("AA", -3, 1)
    assert (first["_key"], first["_topic"], first["_partition"], first["_offset"]) == ("k", "flights", 1, 0)
    assert (second.carrier, second.time, second["_offset"]) == ("B6", None, 2)


@pytest.mark.parametrize(
    "value",
    [
        '{"carrier": "AA", "delay": "late"}',
        '{"carrier": "AA", "delay": 1.5}',
        '{"carrier": "AA", "delay": 99999999999}',
        '{"carrier": "AA", "time": "yesterday"}',
        '{"carrier": "AA", "at": {"x": "y"}}',
        '{"carrier": "AA", "at": 7}',
        '{"carrier": "AA"',
        '[{"carrier": "AA"}]',
        "not json",
        "null",
        '"AA"',
        "",
        '{"carrier": "AA"}{"carrier": "B6"}',
        '{"carrier": "AA", "time": "12:30"}',
    ],
)
def test_a_record_that_does_not_fit_is_never_dropped(spark: Any, source: Source, value: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as error:
        rows(spark, source, '{"carrier": "AA"}', value)
    text = str(error.value)
    assert BAD_RECORD in text
    place, _ = json.JSONDecoder().raw_decode(text, text.index(BAD_RECORD) + len(BAD_RECORD))
    assert (place["topic"], place["partition"], place["offset"], place["value"]) == ("flights", 1, 1, value)


def test_records_that_do_not_fit_are_left_out_and_counted_and_become_letters(spark: Any, tmp_path: Path) -> None:
    pipeline = read(tmp_path, "SELECT carrier FROM flights WHERE carrier IS NOT NULL", sources=SKIPPING)
    (source,) = pipeline.sources
    fitting = {"carrier": "AA"}
    put(tmp_path / "in", 1, fitting, {"carrier": "B6", "delay": "none"}, {**fitting, "time": "12:30"}, fitting, {})
    create_views(pipeline, spark, lambda source: decoded(records_in(spark, tmp_path / "in"), source))
    rows, (batch,) = batches_of(spark.table("result"), tmp_path / "checkpoint")
    assert [row.carrier for row in rows] == ["AA", "AA"]
    assert (batch.rows_in, batch.rows_out, batch.records_refused) == (5, 2, 2)

    values = [b'{"carrier": "AA"}', b"\xff", None, b"x"]
    headers = [[("trace", b"\x00"), ("none", None)], None, None, []]
    records = [(b"k", value, "flights", 1, n, headers[n]) for n, value in enumerate(values)]
    columns = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    frame = spark.createDataFrame(records, columns + "headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    frame = frame.selectExpr("*", "TIMESTAMP '2013-01-01 00:00:00.123' AS timestamp")
    found = letters_of(frame, source, "checks", "result/7").collect()
    assert [(bytes(letter.key), bytes(letter.value)) for letter in found] == [(b"k", b"\xff"), (b"k", b"x")]
    first, second = ({name: bytes(value).decode() for name, value in letter.headers} for letter in found)
    assert first["barnabas.error.reason"] == "the value is not valid UTF-8"
    assert second == {
        "barnabas.error.reason": f"the value is not one JSON object of the schema {source.schema}",
        "barnabas.error.topic": "flights",
        "barnabas.error.partition": "1",
        "barnabas.error.offset": "3",
        "barnabas.error.timestamp": "1356998400123",
        "barnabas.error.pipeline": "checks",
        "barnabas.error.source": "flights",
        "barnabas.error.batch": "result/7",
    }
    # Of those that have a letter in the topic, in another batch, no other is written. Records of others are no letters.
    again = letters_of(frame, source, "checks", "other/3")
    foreign = frame.selectExpr("key", "value", "headers")
    of_another = again.selectExpr(
        "key",
        "value",
        "transform(headers, h -> struct(h.key AS key, IF(h.key LIKE '%source', X'78', h.value) AS value)) AS headers",
    )
    written = letters_of(frame.where("offset = 3"), source, "checks", "result/7").union(foreign).union(of_another)
    (left,) = unwritten(again, written).collect()
    assert (left.asDict().keys(), bytes(left.value)) == ({"key", "value", "headers"}, b"\xff")
    assert unwritten(again, again).isEmpty()


def test_a_query_tells_what_it_has_counted_while_its_batch_is_written(spark: Any, tmp_path: Path) -> None:
    pipeline = read(tmp_path, "SELECT carrier FROM flights", sources=SKIPPING)
    put(tmp_path / "in", 1, {"carrier": "AA"}, {"carrier": "AA", "time": "12:30"})
    put(tmp_path / "in", 2, {"carrier": "AA"})
    create_views(pipeline, spark, lambda source: decoded(records_in(spark, tmp_path / "in"), source))
    told = []

    def write(batch: Any, _number: int) -> None:
        batch.write.mode("overwrite").parquet(str(tmp_path / "written"))
        told.append(observed_in_batch(spark, "counting", refused_metric("flights")))
        told.append(observed_in_batch(spark, "counting", "no such metric"))

    writer = spark.table("result").writeStream.queryName("counting").foreachBatch(write)
    checkpoint = str(tmp_path / "checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    assert told == [1, None, 0, None]


def in_field(*texts: str) -> list[bytes]:
    return [f'{{"a": {text}}}'.encode() for text in texts]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            "a INT, s STRING",
            [b'\n {"a": 1}\t\n', b"{}", b'{"a": null}', b'{"s": "]}{[,:"}', '{"s": "\u00e9"}'.encode()],
            [
                *(
                    b'{"a": 1}' + more
                    for more in (b"{}", b" x", b'\n{"a": 2}', b"}", b',"b": 2', b"]", b",", b"\x00", b"//")
                ),
                *(
                    b'[{"a": 1}]',
                    b'{"a": 1},{"a": 2}',
                    b'{"a": 1}],"b":[3',
                    b"null",
                    b"",
                    b"{'a': 1}",
                    b'\xef\xbb\xbf{"a": 1}',
                ),
                *(
                    b'{"s": "\xff"}',
                    b'{"s": "\xc3"}',
                    b'{"\xff": 1}',
                    b'{"a": 1.0}',
                    b'{"a": "1"}',
                    b'{"a": 2147483648}',
                ),
            ],
        ),
        (
            "a DECIMAL(5, 2)",
            in_field("1", "1.25", "-1.5", "1.500", '"1.00"', "1e2", "1.2e1", "15000e-2", "0E-8", "999.99"),
            in_field(
                *("1.005", '"1.005"', "1000", "999.995", "1e-3", "1e-40", "1e-400", "1.0000000000000001e0", "true"),
                "1." + "0" * 40 + "1",
            ),
        ),
        (
            "a DECIMAL(5, 2), x DOUBLE, s STRING",
            [
                b'{"a": 1.5, "x": 1.2345678901234567e-05}',
                b'{"a": 1.5, "more": [1e300, 0.' + b"0" * 40 + b"1]}",
                b'{"a": 1.5, "s": "at 1e100"}',
                b'{"a": 1e1, "s": "sha256:7e245f0c"}',
                b'{"a": 1e1, "s": "\\\\\\"sha256:7e245f0c"}',
                b'{"a": "1.50", "1234567890123456e2": "x:1234567890123456e2"}',
                b'{"a": 1e1, "s": "' + b"x" * 100_000 + b':7e245"}',
                b'{"a": null, "x": 1.2345678901234567e-05}',
            ],
            [
                b'{"s": "", "a": 1.0000000000000001e0}',
                b'{"s": "\\\\", "a": 1.0000000000000001e0}',
                b'{"s": "\\"", "a":1.0000000000000001e0}',
                b'{"a": 1.005, "x": 1.2345678901234567e-05}',
            ],
        ),
        (
            "a DOUBLE, b FLOAT",
            [*in_field("1", "1.5", '"NaN"', '"Infinity"', "1e308"), b'{"b": 1e38}', b'{"b": "-Infinity"}'],
            [*in_field("1e400", "-1e400", "NaN", "Infinity", '"1"'), b'{"b": 1e39}'],
        ),
        (
            "a TIMESTAMP",
            in_field(
                *('"2013-01-01T05:00:00Z"', '"2013-01-01 05:00:00.123456"', '"2013-01-01T05:00:00.123456789+01:00"'),
                *('"2013-01-01T05:00"', '"2013-01-01"', '"2013-01-01T05:00:00+0100"', "1357016400", "-5", "2013"),
            ),
            in_field(
                *('"12:30"', '"T12"', '"2013"', '"2013-01"', '"2013-1-1"', '"2013-01-01T24:00:00Z"', '" 2013-01-01"'),
                *('"1357016400"', "1357016400000", "9223372036854775807", "1.5", '"now"', '"+12013-01-01T00:00:00Z"'),
                '"2013-01-01T05:00:00 America/New_York"',
            ),
        ),
        (
            "a TIMESTAMP_NTZ",
            in_field('"2013-01-01T05:00:00"', '"2013-01-01"'),
            in_field('"2013-01-01T05:00:00Z"', '"12:30"', "1357016400", '"2013"'),
        ),
        ("a DATE", in_field('"2013-01-01"'), in_field('"2013"', '"2013-01-01T05:00:00Z"', '"15000"', '"2013-1-1"')),
        (
            "a ARRAY<STRUCT<d: DECIMAL(3, 1), t: INT>>, m MAP<STRING, DATE>, `x y` STRUCT<`a.b`: DOUBLE>",
            [
                b'{"a": [{"d": 1.5}, null, {"t": 1}], "m": {"q": "2013-01-01", "r": null}, "x y": {"a.b": 1}}',
                *(b'{"a": []}', b'{"m": {}}', b'{"x y": {}}', b'{"x y": {"a.b": "NaN"}}'),
            ],
            [
                *(
                    b'{"a": [{"d": 1.5}, {"d": 1.55}]}',
                    b'{"a": [{"t": "x"}]}',
                    b'{"m": {"a": "2013-01-01", "b": "2013"}}',
                ),
                b'{"x y": {"a.b": 1e999}}',
            ],
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_record_is_what_its_schema_says_or_does_not_fit(
    spark: Any, schema: str, good: list[bytes], bad: list[bytes]
) -> None:
    from pyspark.sql.types import StructType

    frame = spark.createDataFrame(list(enumerate([*good, *bad])), "number INT, value BINARY")
    decoding = json_decoding(StructType.fromDDL(schema), "document", "raw")
    rows = frame.select("*", *decoding.prepared).select("number", "value", decoding.fits.alias("fits"))
    found = sorted(rows.collect())
    assert [(bytes(row.value), row.fits) for row in found] == [
        *((value, True) for value in good),
        *((value, False) for value in bad),
    ]


def test_bytes_of_a_key_that_are_no_text_become_text(spark: Any, source: Source) -> None:
    keys = [b"AA", "\u00e9".encode(), b"\x00\xff", None]
    records = [(key, b"{}", "flights", 0, number) for number, key in enumerate(keys)]
    frame = spark.createDataFrame(records, "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT")
    found = decoded(frame.selectExpr("*", "TIMESTAMP '2013-01-01' AS timestamp"), source).orderBy("_offset")
    assert [row["_key"] for row in found.collect()] == ["AA", "\u00e9", "X'00FF'", None]


def test_a_table_is_one_that_pandas_reads(spark: Any, source: Source, tmp_path: Path) -> None:
    record = (b"\x00\xff", b'{"carrier": "AA", "time": "2013-01-01T05:00:00.123456Z"}', "flights", 0, 7)
    frame = spark.createDataFrame([record], "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT")
    rows = decoded(frame.selectExpr("*", "TIMESTAMP '2013-01-01' AS timestamp"), source)
    table = ParquetTable(tmp_path / "table")
    table.take("checks", "one")
    table.publish(write_hidden(rows, table.directory, 0), 0, {})
    read = pd.read_parquet(table.directory)
    assert (read["_key"][0], read["time"][0]) == ("X'00FF'", pd.Timestamp("2013-01-01T05:00:00.123456Z"))
    forms = {
        parquet.ParquetFile(part).schema.column(1).physical_type
        for part in table.directory.glob("batch_id=0/*.parquet")
    }
    assert forms == {"INT64"}


def test_a_table_keeps_its_columns(spark: Any, tmp_path: Path) -> None:
    pipeline = read(tmp_path, "SELECT carrier, CAST(delay AS INT) AS delay FROM flights")
    table = ParquetTable(tmp_path / "table")
    table.take("checks", "one")
    table.note_columns({"delay": "int", "carrier": "string"})
    wider = read(tmp_path, "SELECT carrier, CAST(delay AS STRING) AS delay, 1 AS more FROM flights")
    check_with_spark(wider, spark)  # nothing was written yet
    hidden = table.directory / ".batch_id=0.being-written"
    hidden.mkdir()
    table.publish(hidden, 0, {})
    check_with_spark(pipeline, spark)
    told = refusal(wider, spark)
    assert "was written with other columns (delay was int, is string; more was absent, is int), which readers" in told
