"""Changes of a database as Debezium writes them in Avro, with a registry's framing before keys and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.avro_encoding import encode
from barnabas.pipelines.cases import GivenRecord
from barnabas.pipelines.debezium_envelopes import envelope_of, key_fields_of
from barnabas.pipelines.table_file import TablePlan, envelopes_text, flow_text
from tests.spark.pipeline_runs import Runs
from tests.unit.pipelines.test_debezium_envelopes import ENVELOPE, KEY

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


def before_the_column_came() -> str:
    """The envelope as it was until the database got `born` and `total`."""
    envelope = json.loads(ENVELOPE)
    envelope["fields"][0]["type"][1]["fields"] = envelope["fields"][0]["type"][1]["fields"][:2]
    return json.dumps(envelope)


OLD = before_the_column_came()


def record(
    offset: int, number: int | None, op: str, *, before: Any = None, after: Any = None, old: bool = False
) -> GivenRecord:
    """A change of the row with this number, as its key has it, in one schema or the other."""
    change = {"before": before, "after": after, "op": op, "source": {"table": "customers"}}
    value = b"\0\0\0\0\1" + encode(OLD, change) if old else b"\0\0\0\0\2" + encode(ENVELOPE, change)
    key = None if number is None else b"\0\0\0\0\3" + encode(KEY, {"id": number})
    return GivenRecord("", key, value, 0, offset, offset)


def test_a_table_has_the_rows_of_the_database_whatever_schema_a_change_was_written_with(
    spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "customers.avsc").write_text(ENVELOPE)
    (tmp_path / "key.avsc").write_text(KEY)
    confluent = ("framing", "confluent")
    key_format = ("key_format", flow_text([("format", "avro"), confluent, ("schema_file", "key.avsc")]))
    plan = TablePlan(
        "customers",
        "./out",
        "delta",
        ("id",),
        more=(("format", "avro"), confluent, key_format),
        is_of_changes=True,
        registry="http://unused:1",
    )
    text = envelopes_text(
        plan, envelope_of(ENVELOPE.encode(), None), ("schema_file", "customers.avsc"), key_fields_of(KEY.encode(), None)
    )
    runs = Runs(spark, tmp_path, "delta: unused, from: flights")
    (source,) = runs.reading(text).sources
    assert source.writers is not None
    assert source.key_format is not None
    assert source.key_format.writers is not None
    source.writers.by_id |= {1: OLD, 2: ENVELOPE}
    source.key_format.writers.by_id[3] = KEY
    source.writers.was_asked = source.key_format.writers.was_asked = True
    row = {"id": 1, "full_name": "a", "born": "1999-12-31", "total": "12.50"}
    runs.give(
        [
            record(0, 1, "r", after={"id": 1, "full_name": "old"}, old=True),
            record(1, 2, "c", after={**row, "id": 2}),
            record(2, 4, "c", after={**row, "id": 4, "full_name": None}),
            record(3, 1, "u", after=row),
        ]
    )
    # Of a table whose replica identity is its key, a row that goes has no `before`; a tombstone comes behind it.
    runs.give(
        [
            record(4, 2, "d"),
            GivenRecord("", b"\0\0\0\0\3" + encode(KEY, {"id": 2}), None, 0, 5, 5),
            record(6, 4, "d", before={"id": 4, "full_name": None}, old=True),
            record(7, 5, "r", after={"id": 5, "full_name": "e"}, old=True),
            record(8, None, "m"),
        ]
    )
    runs.run()
    found = [(number, name, str(born), str(total)) for number, name, born, total in runs.table()]
    assert found == [(1, "a", "1999-12-31", "12.50"), (5, "e", "None", "None")]
    runs.give([record(9, None, "d")])
    with pytest.raises(Exception, match="has its key neither in before nor as the key of the record"):
        runs.run()
    assert len(runs.table()) == 2
