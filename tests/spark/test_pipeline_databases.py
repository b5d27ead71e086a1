"""Tables of databases, written by Spark's own streaming engine and by JDBC: H2 and SQLite, which are jars, and a
PostgreSQL of its own where one is installed. Files stand for topics, and one Spark is for all.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines import jdbc_sink
from barnabas.pipelines.definition import JdbcSink, PipelineError
from barnabas.pipelines.jdbc_sink import MARKS, STAGE, JdbcWriter
from barnabas.pipelines.sink import Written
from barnabas.pipelines.sinks import writers_of
from barnabas.pipelines.sources import KafkaOptions
from tests.spark.pipeline_runs import KEYED, PIPELINE, KilledError, Runs, row
from tests.support.postgresql import find_postgresql, postgresql

pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

ONE = "SELECT 3 AS id, 'AA' AS carrier, 'u' AS op, CAST(NULL AS TIMESTAMP) AS at"


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    programs = find_postgresql()
    if programs is None:
        pytest.skip("no PostgreSQL is installed (Debian: apt-get install postgresql)")
    with postgresql(programs) as url:
        yield url


DATABASES = {
    "h2": "jdbc:h2:file:{directory}/base;AUTO_SERVER=FALSE;DB_CLOSE_DELAY=-1",
    "sqlite": "jdbc:sqlite:{directory}/base.db?busy_timeout=60000",
}


def rows_of_base(spark: Any, url: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("jdbc").options(url=url, dbtable=table).load()
    rows = (tuple(row) for row in frame.select(*columns or ("*",)).collect())
    return sorted(rows, key=lambda row: (row[0] is not None, row))


@pytest.mark.parametrize(
    "base",
    ["h2", pytest.param("sqlite", marks=pytest.mark.night("the statements of H2; found nothing yet"))],
)
def test_a_table_of_a_database_has_each_batch_once_whatever_ends_a_run(spark: Any, tmp_path: Path, base: str) -> None:
    url = DATABASES[base].format(directory=tmp_path)
    runs = Runs(spark, tmp_path, f"jdbc: '{url}', table: flights, connections: 1, {KEYED}")
    runs.add([row(1, minute=1), row(2), row(3), row(1, "old", minute=0), row(None, "no id")])
    runs.add([row(2, op="d"), row(1, "DL"), row(4, op="d")])
    runs.run(killed_after=1)
    expected = [(None, "no id"), (1, "DL"), (3, "UA")]
    assert rows_of_base(spark, url, "flights", "id", "carrier") == expected
    runs.run()
    runs.add([row(3, op="d"), row(None, "still none")])
    # A step with another name is the same query.
    sink = f"jdbc: '{url}', table: flights, connections: 1, {KEYED.replace('changes', 'renamed')}"
    runs.having(sink, PIPELINE.replace("name: changes", "name: renamed"))
    runs.run()
    assert rows_of_base(spark, url, "flights", "id", "carrier") == [(None, "still none"), (1, "DL")]
    assert [mark[2] for mark in rows_of_base(spark, url, MARKS)] == [2]


def test_rows_are_added_to_a_database_once_and_by_one_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = DATABASES["h2"].format(directory=tmp_path)
    sink = f"jdbc: '{url}', table: flights, from: flights"
    runs = Runs(spark, tmp_path, sink)
    runs.add([row(1), row(2, "DL")])
    # Cut short within the transaction, and before its answer came.
    whole = JdbcWriter._move_rows

    def cut_short(writer: JdbcWriter, connection: Any) -> None:
        whole(writer, connection)
        connection.prepareStatement("INSERT INTO nowhere VALUES (1)").execute()

    monkeypatch.setattr(JdbcWriter, "_move_rows", cut_short)
    with pytest.raises(
        PipelineError, match=r"yaml:7: the table flights of jdbc:h2:file:\S+ cannot be written: .*NOWHERE"
    ):
        runs.run()
    assert rows_of_base(spark, url, "flights") == []
    monkeypatch.undo()
    shutil.copytree(runs.state.directory, tmp_path / "copy")
    runs.run(killed_after=0)
    runs.run()
    expected = [(1, "UA", "u"), (2, "DL", "u")]
    assert rows_of_base(spark, url, "flights", "id", "carrier", "op") == expected
    tables = rows_of_base(spark, url, "information_schema.tables", "TABLE_NAME")
    assert [name for (name,) in tables if name.lower().startswith(STAGE)] == []
    # A copy of the state, and another state, cannot go on with it; nor can two runs at one batch.
    runs.add([row(3)])
    pipeline, (query,) = runs.pipeline, runs.pipeline.queries
    state_id, _ = runs.state.check_definition(pipeline)
    (one,), (two,) = (writers_of(pipeline, query, KafkaOptions("unused:1")) for _ in range(2))
    frame = spark.sql(ONE)
    for writer in (one, two):
        writer.recover(frame, runs.state, state_id or "")
    one.write(frame, 1)
    two.write(frame, 1)
    two.commit(1, {})
    with pytest.raises(PipelineError, match="is written by another run too"):
        one.commit(1, {})
    # Nor is a commit that nobody has heard of made again.
    assert two.write(frame, 1) == Written(is_computed=False, is_held=False)
    with pytest.raises(PipelineError, match="has batch 1, and the state knows of none after 0"):
        runs.run()
    assert [number for (number,) in rows_of_base(spark, url, "flights", "id")] == [1, 2, 3]
    shutil.rmtree(runs.state.directory)
    with pytest.raises(PipelineError, match="holds rows that another state has written"):
        runs.run()
    with pytest.raises(PipelineError, match=r"No suitable driver .*; name the driver's jar under `jars`"):
        runs.having("jdbc: 'jdbc:nosuch:x', table: flights, from: flights")
        runs.run()


class Tables:
    """Statements to a database, beside what is tested."""

    def __init__(self, spark: Any, url: str) -> None:
        self.url = url
        self._connection = spark._jvm.java.sql.DriverManager.getConnection(url)

    def do(self, *statements: str) -> None:
        for statement in statements:
            jdbc_sink._execute(self._connection, statement)

    def rows(self, sql: str, columns: int) -> list[tuple[str | None, ...]]:
        return sorted((tuple(each) for each in jdbc_sink._rows(self._connection, sql, columns)), key=str)


@pytest.fixture
def tables(spark: Any, server: str) -> Tables:
    found = Tables(spark, server)
    found.do("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DROP SCHEMA IF EXISTS other CASCADE")
    return found


@pytest.fixture
def here(spark: Any, tmp_path: Path) -> Tables:
    return Tables(spark, DATABASES["h2"].format(directory=tmp_path))


class Writers:
    """What writes the rows of a pipeline, without its streams."""

    def __init__(self, spark: Any, directory: Path, sink: str, frame: Any = None) -> None:
        directory.mkdir(exist_ok=True)
        self.runs = Runs(spark, directory, sink)
        self.runs.state.directory.mkdir(parents=True)
        self.frame = spark.sql(ONE) if frame is None else frame

    def recovered(self, state_id: str = "A") -> JdbcWriter:
        (sink,) = self.runs.pipeline.sinks
        assert isinstance(sink, JdbcSink)
        writer = JdbcWriter(self.runs.pipeline, sink)
        writer.recover(self.frame, self.runs.state, state_id)
        return writer


APPENDING = "jdbc: '{url}', table: {table}, from: flights"
UPSERTING = "jdbc: '{url}', table: flights, delivery: {delivery}, from: changes, key: [id, carrier], delete: gone"


@pytest.mark.parametrize(
    "delivery",
    [
        "exactly_once",
        pytest.param("at_least_once", marks=pytest.mark.night("the same statements; found nothing yet")),
    ],
)
def test_a_run_that_ends_before_any_one_of_its_statements_leaves_what_the_next_one_needs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Tables, delivery: str
) -> None:
    asked: list[str] = []
    ends_at = -1

    def counted(whole: Any) -> Any:
        def call(connection: Any, sql: str, *more: Any) -> Any:
            asked.append(sql)
            if len(asked) - 1 == ends_at:
                raise KilledError(sql)
            return whole(connection, sql, *more)

        return call

    values = "(1, 'a', 1, false), (2, NULL, 1, false), (NULL, NULL, 1, false), (3, 'c', 1, true)"
    changes = spark.sql(f"SELECT * FROM VALUES {values} AS changes(id, carrier, n, gone)")
    made = Writers(spark, tmp_path / "w", UPSERTING.format(url=here.url, delivery=delivery), changes)
    # Batch 0 as it is; then each as a run that ends at one statement, and one that does the batch again.
    writer, batch, ended = made.recovered(), 0, []
    while True:
        monkeypatch.setattr(jdbc_sink, "_execute", counted(jdbc_sink._execute))
        monkeypatch.setattr(jdbc_sink, "_rows", counted(jdbc_sink._rows))
        # Each key is there once, and Spark need not find that out twenty times.
        monkeypatch.setattr(jdbc_sink, "newest_of_keys", lambda frame, _sink: frame)
        asked.clear()
        frame = changes.withColumn("n", changes.n + batch)
        with contextlib.suppress(KilledError):
            writer.write(frame, batch)
            asked.clear()
            ends_at = batch - 1
            writer.commit(batch, {})
        is_ended, ends_at = len(asked) == batch and batch > 0, -1
        monkeypatch.undo()
        made.runs.state.checkpoint("changes").joinpath("offsets").mkdir(parents=True, exist_ok=True)
        made.runs.state.checkpoint("changes").joinpath(f"offsets/{batch}").write_text("v1\n{}\n{}")
        writer = made.recovered()
        if is_ended:
            ended.append(asked[-1].split()[0])
            monkeypatch.setattr(jdbc_sink, "newest_of_keys", lambda frame, _sink: frame)
            writer.write(frame, batch)
            writer.commit(batch, {})
            monkeypatch.undo()
        expected = [("1", "a", str(1 + batch)), ("2", None, str(1 + batch)), (None, None, str(1 + batch))]
        assert here.rows("SELECT * FROM flights", 3) == sorted(expected, key=str)
        if batch > 0 and not is_ended:
            break
        batch += 1
    assert "INSERT" in ended
    assert len(ended) >= 7, ended
    stages = "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE LOWER(TABLE_NAME) LIKE 'barnabas_stage%'"
    assert here.rows(stages, 1) == []


def test_of_two_states_that_begin_together_one_has_the_table(spark: Any, tmp_path: Path, here: Tables) -> None:
    names = ("flights", "Public.FLIGHTS")
    one, two = (Writers(spark, tmp_path / name, APPENDING.format(url=here.url, table=name)) for name in names)
    writers = [one.recovered("A"), two.recovered("B")]
    frame = spark.sql(ONE)
    for writer in writers:
        writer.write(frame, 0)
    writers[0].commit(0, {})
    with pytest.raises(PipelineError, match=r"holds rows that another state has written \(\S+-A-flights\)"):
        writers[1].commit(0, {})
    assert here.rows('SELECT "id" FROM flights', 1) == [("3",)]


def test_what_a_task_adds_twice_is_no_row_and_the_batch_is_done_again(spark: Any, tmp_path: Path, here: Tables) -> None:
    made = Writers(spark, tmp_path / "w", APPENDING.format(url=here.url, table="flights"))
    writer = made.recovered()
    frame = spark.sql(ONE)
    writer.write(frame, 0)
    late = writer._stage
    here.do(f"INSERT INTO {late} SELECT * FROM {late}")
    with pytest.raises(PipelineError, match=r"written its rows of .* twice"):
        writer.commit(0, {})
    assert here.rows('SELECT "id" FROM flights', 1) == []
    writer.write(frame, 0)
    # One that nobody hears of any more has nowhere to write.
    assert writer._stage != late
    writer.commit(0, {})
    assert here.rows('SELECT "id" FROM flights', 1) == [("3",)]


@pytest.mark.parametrize("name", ['a"; DROP TABLE x; --', "a`b", "barnabas_row", "Barnabas_goes"])
def test_columns_that_would_be_more_than_names_are_refused(spark: Any, tmp_path: Path, name: str) -> None:
    made = Writers(spark, tmp_path / "w", APPENDING.format(url="jdbc:h2:mem:x", table="flights"))
    (sink,) = made.runs.pipeline.sinks
    assert isinstance(sink, JdbcSink)
    with pytest.raises(PipelineError, match=r"cannot have a column .*: give it another name in a step"):
        JdbcWriter(made.runs.pipeline, sink).check_rows(spark, spark.range(1).toDF(name))


VALUES = """\
name: flights
sources:
  flights: {{topic: flights, schema: "id INT, carrier STRING, op STRING, at TIMESTAMP"}}
steps:
  - name: changes
    sql: |
      SELECT id, carrier AS `select`, concat(repeat(carrier, 50000), 'é') AS `a b; DROP TABLE x; --`,
        CAST(12345678901234567890.123 AS DECIMAL(38, 10)) AS `Sum`, at, CAST(at AS DATE) AS day,
        CAST(at AS TIMESTAMP_NTZ) AS clock, id = 1 AS is_one, CAST('NaN' AS DOUBLE) AS nan,
        CAST(carrier AS BINARY) AS bytes, op = 'd' AS gone, _offset FROM flights
sinks:
  - {{{sink}}}
"""


def test_postgresql_has_each_value_as_it_is_and_of_each_key_with_nulls_one_row(
    spark: Any, tmp_path: Path, tables: Tables
) -> None:
    # Names alike in another schema, and beside it, are not ours; a table that is there has columns of its own.
    tables.do(
        f"CREATE SCHEMA other; CREATE TABLE other.{MARKS} (a INT); CREATE TABLE other.flights (a INT)",
        f"CREATE TABLE {MARKS}_of_old (a INT)",
        'CREATE TABLE flights (id INT, "select" VARCHAR(9), "a b; DROP TABLE x; --" TEXT, "SUM" NUMERIC, '
        '"at" TIMESTAMPTZ, day DATE, clock TIMESTAMP, is_one BOOLEAN, nan FLOAT8, bytes BYTEA, more INT4RANGE, '
        'UNIQUE (id, "select"))',
    )
    runs = Runs(spark, tmp_path, APPENDING.format(url=tables.url, table="other.unused"))
    key = "from: changes, key: [id, select], delete: gone, newest_by: _offset"
    runs.having(f"jdbc: '{tables.url}', table: flights, {key}", VALUES)
    runs.add([row(1), row(None, "DL"), row(2), row(None, op="d"), row(7), {"op": "u"}])
    runs.add([row(1), row(None, "DL", op="d"), row(2, op="d"), {"id": 4}, {"op": "u"}])
    runs.run(killed_after=1)
    runs.run()
    shown = (
        'id, "select", length("a b; DROP TABLE x; --"), "SUM", "at" AT TIME ZONE \'UTC\'',
        "day, clock, is_one, nan, bytes",
    )
    day, at = "2013-01-01", "2013-01-01 05:00:00"
    usual = ("UA", "100001", "12345678901234567890.1230000000", at, day, at)
    empty = (None, None, "12345678901234567890.1230000000", None, None, None)
    assert tables.rows(f"SELECT {', '.join(shown)} FROM flights", 10) == sorted(
        [
            ("1", *usual, "t", "NaN", "\\x5541"),
            ("7", *usual, "f", "NaN", "\\x5541"),
            ("4", *empty, "f", "NaN", None),
            (None, *empty, None, "NaN", None),
        ],
        key=str,
    )
    assert tables.rows(f"SELECT target, batch FROM {MARKS}", 2) == [("flights", "1")]


def test_a_table_that_may_not_be_read_is_not_taken_for_one_that_is_missing(
    spark: Any, tmp_path: Path, tables: Tables
) -> None:
    tables.do(
        "DROP ROLE IF EXISTS limited",
        "CREATE ROLE limited LOGIN; GRANT ALL ON SCHEMA public TO limited; CREATE TABLE flights (id INT)",
        f"CREATE TABLE {MARKS} (target TEXT, writer TEXT, batch INT, records TEXT); GRANT ALL ON {MARKS} TO limited",
        f"INSERT INTO {MARKS} VALUES ('flights', 'somebody', 5, '')",
    )
    url = tables.url.replace("user=postgres", "user=limited")
    with pytest.raises(PipelineError, match=r"cannot be used: .*permission denied for table flights"):
        Writers(spark, tmp_path / "w", APPENDING.format(url=url, table="flights")).recovered()
    assert tables.rows(f"SELECT writer FROM {MARKS}", 1) == [("somebody",)]
    # What Spark says of columns today is no promise: nulls that come later have room.
    frame = spark.sql("SELECT 1 AS id, CAST(1.5 AS DOUBLE) AS fare")
    Writers(spark, tmp_path / "v", APPENDING.format(url=tables.url, table="others"), frame).recovered()
    tables.do("INSERT INTO others VALUES (NULL, NULL)")
