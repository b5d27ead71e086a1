"""Tables of Delta Lake and Iceberg, each batch once, whatever ends a run of Spark's.

Files stand for topics, as in tests of pipelines, and one Spark is for all. That a run is killed between the table's
commit and Spark's own note of it is what the wrapper around the batches' writer does: Spark never hears of its end.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.cases import GivenRecord
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.sinks import writers_of
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.table_file import TablePlan, changes_text
from tests.spark.pipeline_runs import APPENDED, KEYED, PIPELINE, Row, Runs, row, runs_at, uncommit

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

KINDS = ("delta", "iceberg")
AGAIN = pytest.mark.night("15 s of processor time; our code is the same: of this format alone it found nothing yet")
AT_A_URL = pytest.mark.night("49 s; found nothing yet: test_pipeline_urls is by day, and both ends of a run above")
DELTA_BY_DAY = ("delta", pytest.param("iceberg", marks=AGAIN))


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


@pytest.mark.parametrize(
    ("kind", "place", "is_committed"),
    [
        ("delta", "a table", True),
        ("iceberg", "a table", False),
        pytest.param("delta", "store/flights", False, marks=AT_A_URL),
        pytest.param("iceberg", "store/flights", True, marks=AGAIN),
        pytest.param("delta", "a table", False, marks=AGAIN),
        pytest.param("delta", "store/flights", True, marks=AGAIN),
        pytest.param("iceberg", "a table", True, marks=AGAIN),
        pytest.param("iceberg", "store/flights", False, marks=AGAIN),
    ],
)
def test_rows_are_added_once_although_a_run_ends_in_a_commit_and_between_it_and_sparks_note(
    spark: Any, tmp_path: Path, kind: str, place: str, is_committed: bool
) -> None:
    sink = f"{kind}: '{place}', {APPENDED}"
    runs = Runs(spark, tmp_path, sink) if place == "a table" else runs_at(spark, tmp_path, kind, APPENDED)
    runs.add([row(1), row(2, "DL")])
    runs.add([row(3)])
    runs.run(killed_after=1)
    expected = [(1, "UA", "u"), (2, "DL", "u"), (3, "UA", "u")]
    assert runs.table() == expected
    assert runs.state.batches_done("flights").finished == 0
    for note in runs.state.table_notes.iterdir():
        note.write_text(json.dumps({**json.loads(note.read_text()), "next_batch": 1, "mark": 0}))
    if not is_committed:
        uncommit(runs, kind, tmp_path / place)
        assert runs.table() == expected[:2]
    runs.run()
    assert runs.table() == expected
    assert runs.state.batches_done("flights").finished == 1
    for rows in ([], [row(4)]):
        runs.add(rows)
    runs.run()
    runs.run()
    assert runs.table() == [*expected, (4, "UA", "u")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_has_its_newest_row_and_goes_with_its_deletion(spark: Any, tmp_path: Path, kind: str) -> None:
    runs = Runs(spark, tmp_path, f"{kind}: table, {KEYED}")
    runs.add([row(1, minute=1), row(2), row(3), row(1, "old", minute=0), row(None, "no id")])
    runs.add([row(2, op="d"), row(1, "DL"), row(4, op="d"), row(5, minute=1, op="d"), row(5, "again", minute=2)])
    runs.run(killed_after=1)
    expected = [(None, "no id"), (1, "DL"), (3, "UA"), (5, "again")]
    assert runs.table() == expected
    runs.run()
    assert runs.table() == expected
    runs.add([row(5, op="d"), row(None, "still none")])
    runs.run()
    assert runs.table() == [(None, "still none"), (1, "DL"), (3, "UA")]


@pytest.mark.parametrize("kind", DELTA_BY_DAY)
def test_a_source_gives_the_last_record_of_a_key_and_a_column_more(spark: Any, tmp_path: Path, kind: str) -> None:
    runs = Runs(spark, tmp_path, f"{kind}: table, from: flights, key: id")
    runs.add([row(1, "UA"), row(1, "DL"), row(2, "UA")])
    runs.run()
    assert runs.table() == [(1, "DL", "u"), (2, "UA", "u")]
    wider = PIPELINE.replace("at TIMESTAMP", "at TIMESTAMP, seats BIGINT")
    runs.having(f"{kind}: table, from: flights, key: id", wider)
    runs.add([{**row(1, "AA"), "seats": 100}])
    runs.run()
    assert runs.table() == [(1, "AA", "u", 100), (2, "UA", "u", None)]
    runs.having(f"{kind}: table, from: flights, key: id", PIPELINE.replace("id INT", "id STRING"))
    with pytest.raises(PipelineError, match=r"has id as int, and flights gives string: cast it in a step"):
        runs.run()


@pytest.mark.parametrize("kind", DELTA_BY_DAY)
def test_a_table_and_a_state_of_different_times_are_refused(spark: Any, tmp_path: Path, kind: str) -> None:
    runs = Runs(spark, tmp_path, f"{kind}: table, {APPENDED}")
    runs.add([row(1)])
    runs.run()
    shutil.copytree(tmp_path / "table", tmp_path / "older")
    shutil.copytree(runs.state.directory, tmp_path / "older state")
    runs.add([row(2)])
    runs.run()
    table, state = tmp_path / "table", runs.state.directory
    shutil.copytree(table, tmp_path / "newer")
    shutil.copytree(state, tmp_path / "newer state")

    def place(of_table: str | None, of_state: str | None) -> None:
        for there, what in ((table, of_table), (state, of_state)):
            shutil.rmtree(there, ignore_errors=True)
            if what is not None:
                shutil.copytree(tmp_path / what, there)

    place("older", "newer state")
    with pytest.raises(PipelineError, match=r"yaml:7: \S+ has no batch 1 any more, as with an older copy"):
        runs.run()
    place("newer", "older state")
    with pytest.raises(PipelineError, match="has batch 1, and the state knows of none after 0"):
        runs.run()
    place("newer", None)
    with pytest.raises(PipelineError, match="holds rows that another state has written"):
        runs.run()
    place(None, "newer state")
    with pytest.raises(PipelineError, match=r"table \S+ is gone, and the state says that batches were written"):
        runs.run()
    place("newer", "newer state")
    runs.add([row(3)])
    runs.run()
    assert [number for number, *_ in runs.table()] == [1, 2, 3]


def test_a_table_of_a_catalog_is_named(spark: Any, tmp_path: Path) -> None:
    runs = Runs(spark, tmp_path, f"iceberg: ./unused, {APPENDED}")
    catalog = "spark.sql.catalog.lake"
    settings = [f"{catalog}: org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type: hadoop"]
    settings.append(f"{catalog}.warehouse: file://{tmp_path}/warehouse")
    text = "\n".join([PIPELINE, "spark:", *(f"  {setting}" for setting in settings)])
    runs.having(f"iceberg: lake.db.flights, {KEYED}", text)
    runs.add([row(1), row(2)])
    runs.run(killed_after=0)
    runs.add([row(2, op="d")])
    runs.run()
    found = spark.read.format("iceberg").load(str(tmp_path / "warehouse" / "db" / "flights")).drop("at").collect()
    assert [tuple(each) for each in found] == [(1, "UA")]


def test_a_table_of_a_catalog_has_one_state_although_its_snapshots_are_expired_and_one_run(
    spark: Any, tmp_path: Path
) -> None:
    runs = Runs(spark, tmp_path, f"iceberg: ./unused, {APPENDED}")
    catalog = "spark.sql.catalog.lake_too"
    settings = {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop"}
    settings[f"{catalog}.warehouse"] = f"file://{tmp_path}/warehouse"
    runs.having(
        f"iceberg: lake_too.db.flights, {APPENDED}",
        PIPELINE + f"spark: {json.dumps(settings)}\n".translate({ord("{"): "{{", ord("}"): "}}"}),
    )
    runs.add([row(1), row(2, "DL")])
    runs.run()
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    procedures = "lake_too.system"
    # A compaction, and then only its own snapshot is left.
    session.sql("INSERT OVERWRITE lake_too.db.flights SELECT * FROM lake_too.db.flights WHERE id < 9").collect()
    session.sql(
        f"CALL {procedures}.expire_snapshots(table => 'db.flights', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01 00:00:00')"
    ).collect()
    runs.run()
    state = runs.state.directory
    state.rename(tmp_path / "state")
    with pytest.raises(PipelineError, match="holds rows that another state has written"):
        runs.run()
    shutil.rmtree(state)
    (tmp_path / "state").rename(state)
    # Another run takes the table while this one has it.
    pipeline, (query,) = runs.pipeline, runs.pipeline.queries
    (one,), (two,) = (writers_of(pipeline, query, KafkaOptions("unused:1")) for _ in range(2))
    state_id, _ = runs.state.check_definition(pipeline)
    frame = session.table("lake_too.db.flights")
    for writer in (one, two):
        writer.recover(frame, runs.state, state_id or "")
    with pytest.raises(PipelineError, match="is written by another run too"):
        one.write(frame, 1)
    assert session.table("lake_too.db.flights").count() == 2


def test_changes_of_a_database_have_the_key_of_the_record_and_the_order_of_the_records(
    spark: Any, tmp_path: Path
) -> None:
    runs = Runs(spark, tmp_path, f"delta: table, {APPENDED}")
    plan = TablePlan("flights", "table", "delta", key=("id",), is_of_changes=True)
    runs.reading(changes_text(plan, [("id", "BIGINT"), ("at", "STRING")], is_wrapped=True))

    def change(op: str, key: object, row: Row | None, place: tuple[int, int, int]) -> GivenRecord:
        value: Row = {"op": op, "after": None if op == "d" else row, "before": row if op == "d" else None}
        whole = {"payload": value, "schema": {}}
        return GivenRecord("", None if key is None else json.dumps(key).encode(), json.dumps(whole).encode(), *place)

    def table() -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in spark.read.format("delta").load(str(tmp_path / "table")).collect())

    # The number of partitions was raised: what came last of key 1 has a lower offset.
    first = [
        change("c", {"id": 1}, {"id": 1, "at": "JFK"}, (0, 900, 1)),
        change("u", None, {"id": 1, "at": "LGA"}, (1, 3, 2)),
    ]
    # Whose time is that of its producer, and may be behind within a partition.
    first += [
        change("c", None, {"id": 2, "at": "new"}, (2, 6, 1)),
        change("c", None, {"id": 2, "at": "old"}, (2, 5, 9)),
    ]
    runs.give([*first, change("c", None, {"id": 3, "at": "ATL"}, (0, 2, 3))])
    runs.run()
    assert table() == [(1, "LGA"), (2, "new"), (3, "ATL")]
    runs.give(
        [
            change("d", {"id": 1}, None, (1, 4, 4)),
            change("d", {"payload": {"id": 3}, "schema": {}}, {"at": "ATL"}, (1, 5, 4)),
        ]
    )
    runs.run()
    assert table() == [(2, "new")]
    runs.give([change("d", None, None, (1, 6, 5))])
    with pytest.raises(Exception, match="has its key neither in before nor as the key of the record"):
        runs.run()
