"""Stars stand for the columns of a schema: the text that Spark is given instead."""

from __future__ import annotations

import pytest

from barnabas.pipelines.definition import RECORD_COLUMNS
from barnabas.pipelines.sql_steps import query_for_spark

SOURCES = ["flights", "airlines"]


def h(*names: str) -> str:
    return ", ".join(f"`{name}`.`{column}`" for name in names for column in RECORD_COLUMNS)


def without_key(*names: str) -> str:
    return ", ".join(f"`{name}`.`{column}`" for name in names for column in RECORD_COLUMNS if column != "_key")


@pytest.mark.parametrize(
    ("sql", "given"),
    [
        ("SELECT * FROM flights", f"SELECT * EXCEPT ({h('flights')}) FROM flights"),
        ("SELECT *, 1 AS a FROM FLIGHTS", f"SELECT * EXCEPT ({h('FLIGHTS')}), 1 AS a FROM FLIGHTS"),
        ("SELECT f.* FROM flights AS f", f"SELECT f.* EXCEPT ({h('f')}) FROM flights AS f"),
        (
            "SELECT * FROM flights JOIN airlines USING (carrier)",
            f"SELECT * EXCEPT ({h('flights', 'airlines')}) FROM flights JOIN airlines USING (carrier)",
        ),
        (
            "SELECT * FROM flights LEFT ANTI JOIN airlines USING (carrier)",
            f"SELECT * EXCEPT ({h('flights')}) FROM flights LEFT ANTI JOIN airlines USING (carrier)",
        ),
        (
            "SELECT * FROM flights f JOIN flights g USING (_KEY), airlines",
            "SELECT * EXCEPT (@) FROM flights f JOIN flights g USING (_KEY), airlines".replace(
                "@", f"{h('f')}, {without_key('g')}, {h('airlines')}"
            ),
        ),
        (
            "SELECT * FROM flights f RIGHT JOIN airlines USING (_key)",
            f"SELECT * EXCEPT ({without_key('f')}, {h('airlines')}) FROM flights f RIGHT JOIN airlines USING (_key)",
        ),
        (
            "SELECT * FROM flights f FULL JOIN airlines a USING (_key)",
            f"SELECT * EXCEPT ({without_key('f', 'a')}, `_key`) FROM flights f FULL JOIN airlines a USING (_key)",
        ),
        (
            "SELECT flights.*, airlines.* FROM flights, airlines",
            f"SELECT flights.* EXCEPT ({h('flights')}), airlines.* EXCEPT ({h('airlines')}) FROM flights, airlines",
        ),
        (
            "SELECT * FROM (SELECT * FROM flights)",
            f"SELECT * FROM (SELECT * EXCEPT ({h('flights')}) FROM flights)",
        ),
        (
            "WITH flights AS (SELECT * FROM flights) SELECT * FROM flights",
            f"WITH flights AS (SELECT * EXCEPT ({h('flights')}) FROM flights) SELECT * FROM flights",
        ),
        (
            "SELECT to_json(struct(*)) AS j FROM flights",
            f"SELECT to_json(struct(* EXCEPT ({h('flights')}))) AS j FROM flights",
        ),
        (
            "SELECT * EXCEPT (carrier, _key) FROM flights",
            f"SELECT * EXCEPT ({h('flights').removeprefix('`flights`.`_key`, ')}, carrier, _key) FROM flights",
        ),
        ("FROM flights", f"SELECT * EXCEPT ({h('flights')}) FROM flights"),
        ("SELECT count(*) AS n FROM flights", "SELECT count(*) AS n FROM flights"),
        ("SELECT delay * 2 AS d, _key FROM flights", "SELECT delay * 2 AS d, _key FROM flights"),
        ("SELECT '*' AS s FROM flights -- *", "SELECT '*' AS s FROM flights -- *"),
        ("SELECT * FROM earlier_step", "SELECT * FROM earlier_step"),
        ("SELECT airlines.* FROM earlier AS airlines", "SELECT airlines.* FROM earlier AS airlines"),
    ],
)
def test_a_star_leaves_out_the_columns_of_the_record(sql: str, given: str) -> None:
    assert query_for_spark(sql, SOURCES).text == given


def test_every_offset_leads_back_to_the_query_as_it_was_written() -> None:
    sql = "SELECT *,\n  airlines.*,\n  dela FROM flights JOIN airlines USING (carrier)"
    given = query_for_spark(sql, SOURCES)
    assert len(given.insertions) == 2
    for offset, character in enumerate(sql):
        places = [place for place in range(len(given.text)) if given.written_offset(place) == offset]
        assert given.text[places[-1]] == character
    assert sql[given.written_offset(given.offset_of(3, 2)) :].startswith("dela")
