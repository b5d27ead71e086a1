"""Joins of topics that the record's columns make impossible are refused where they are, with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.sql_steps import SqlError, refuse_joins_of_topics
from tests.unit.pipelines.pipeline_files import flights

SOURCES = ("flights", "airlines", "ports")


@pytest.mark.parametrize(
    ("sql", "at", "remedy"),
    [
        ("SELECT * FROM flights NATURAL JOIN airlines", "airlines", "flights JOIN airlines USING (...)"),
        ("SELECT f.delay FROM FLIGHTS f NATURAL LEFT JOIN airlines a", "airlines", "f JOIN a USING (...)"),
        ("SELECT 1 FROM late, flights NATURAL JOIN airlines", "airlines", "flights JOIN airlines USING (...)"),
        ("SELECT * FROM (flights NATURAL JOIN airlines)", "airlines", "flights JOIN airlines USING (...)"),
        ("SELECT * FROM late JOIN (SELECT 1 FROM flights NATURAL JOIN ports)", "ports", "flights JOIN ports USING"),
        ("SELECT * FROM (flights JOIN airlines USING (_key))", "airlines", "ON flights._key = airlines._key"),
        ("SELECT * FROM flights JOIN (airlines a JOIN ports p USING (_KEY)) ON 1 = 1", "ports", "ON a._KEY = p._KEY"),
        (
            "SELECT * FROM ((flights f JOIN late) JOIN ports USING (i, _offset))",
            "ports",
            "ON f._offset = ports._offset",
        ),
    ],
)
def test_refuses_and_says_what_to_write(sql: str, at: str, remedy: str) -> None:
    with pytest.raises(SqlError, match=re.escape(remedy)) as caught:
        refuse_joins_of_topics(sql, SOURCES)
    assert caught.value.offset == sql.index(at)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM late NATURAL JOIN airlines",
        "SELECT * FROM late NATURAL JOIN early",
        "SELECT * FROM flights JOIN airlines USING (_key)",
        "SELECT * FROM (flights JOIN airlines USING (carrier))",
        "SELECT delay FROM (flights JOIN airlines USING (_key))",
        "SELECT * FROM (flights JOIN airlines ON flights._key = airlines._key)",
        "SELECT * FROM (SELECT * FROM flights) JOIN (SELECT * FROM airlines) USING (carrier)",
        "SELECT 1",
    ],
)
def test_leaves_others_alone(sql: str) -> None:
    refuse_joins_of_topics(sql, SOURCES)


def test_the_file_is_refused_at_the_line_of_the_join(tmp_path: Path) -> None:
    path = flights(tmp_path)
    text = path.read_text()
    path.write_text(
        f"{text[: text.index('steps:')]}steps:\n  - name: both\n    sql: |\n      SELECT *\n      FROM flights\n"
        "      NATURAL JOIN airlines\nsinks:\n  - parquet: out\n    from: both\n"
    )
    line = path.read_text()[: path.read_text().index("NATURAL")].count("\n") + 1
    with pytest.raises(PipelineError, match=rf":{line}: .*both: NATURAL JOIN of two topics compares _key"):
        read_pipeline(path)


def test_a_name_given_by_with_is_no_topic() -> None:
    hidden = "WITH b AS (SELECT id FROM c) SELECT * FROM a NATURAL JOIN b"
    refuse_joins_of_topics(hidden, ("a", "b", "c"))
    with pytest.raises(SqlError, match="NATURAL JOIN"):
        refuse_joins_of_topics("WITH b AS (SELECT id FROM c) SELECT * FROM a NATURAL JOIN c", ("a", "b", "c"))
