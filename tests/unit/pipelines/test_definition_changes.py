"""A changed pipeline over the state of the former one: what goes on, and what does not, with the step and the why."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.state_definition import changes_since, definition_of
from tests.unit.pipelines.pipeline_files import read_flights

Change = tuple[str, str]
ALL_SINKS = """\
sinks:
  - topic: delays
    from: by_hour
    key: [name, hour]
  - parquet: out/delays
    from: by_hour
    key: [name, hour]
"""
FLAT = (ALL_SINKS, "sinks:\n  - {parquet: out/flights, from: named, key: carrier}\n")
RATIO = (
    ALL_SINKS,
    '  - {name: late, sql: "SELECT name, delay FROM by_hour"}\nsinks:\n  - {topic: delays, from: late}\n',
)
TWO = (
    ALL_SINKS,
    """\
  - {name: both, sql: SELECT a.carrier FROM named a JOIN flights b ON a.time = b.time}
sinks:
  - {topic: delays, from: both}
""",
)
GROUPING = "      SELECT name, window.start AS hour, avg(delay) AS delay\n      FROM named\n"
GROUPED = f"{GROUPING}      GROUP BY name, window(time, '1 hour')\n"


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (
            (),
            [("f.delay, f.time", "f.delay, f.time, f.delay > 9 AS late")],
            "step named was changed (column late was added)",
        ),
        (
            (),
            [("a.carrier = f.carrier\n", "a.carrier = f.carrier WHERE delay > 0\n")],
            "step named was changed (filter)",
        ),
        ((), [(GROUPING, f"{GROUPING}      WHERE delay > 0\n")], "step by_hour was changed (filter)"),
        ((), [(GROUPED, f"{GROUPED}      HAVING avg(delay) > 0\n")], "step by_hour was changed (filter)"),
        ((), [("avg(delay) AS delay", "avg(delay) / 60 AS delay")], "step by_hour was changed (column delay)"),
        (
            (),
            [("name: named", "name: with_name"), ("FROM named", "FROM with_name")],
            "step named is named with_name now",
        ),
        ([RATIO], [RATIO, ('FROM by_hour"', 'FROM by_hour WHERE delay > 0"')], "step late was changed (filter)"),
        ([FLAT], [FLAT, ("f.delay, f.time", "f.delay * 2 AS delay, f.time")], "step named was changed"),
        ([FLAT], [FLAT, ("f.delay, f.time", "f.time, f.delay, a.name AS airline")], "step named was changed"),
    ],
)
def test_what_the_state_knows_nothing_of_may_change(
    tmp_path: Path, before: list[Change], now: list[Change], told: str
) -> None:
    state = definition_of(read_flights(tmp_path, *before))
    changes = changes_since(read_flights(tmp_path, *now), state)
    assert changes.refused is None
    assert changes.taken == (told,)


@pytest.mark.parametrize(
    ("before", "now", "line", "told"),
    [
        ((), [("avg(delay)", "max(delay)")], 17, "by_hour was changed (without AVG(delay), with MAX(delay))"),
        ((), [("avg(delay) AS", "count(*) AS flights, avg(delay) AS")], 17, "by_hour was changed (with COUNT(*))"),
        ((), [("f.delay, f.time", "f.delay + 1 AS delay, f.time")], 11, "named was changed (column delay)"),
        ((), [("1 hour')", "2 hours')")], 17, "by_hour was changed (sql)"),
        ((), [("delay: 1 hour", "delay: 2 hours")], 11, "named was changed (watermark)"),
        ((), [("JOIN airlines", "LEFT JOIN airlines")], 11, "named was changed (sql)"),
        (
            (),
            [(GROUPED, f"{GROUPED}      HAVING max(delay) > 0\n")],
            17,
            "by_hour was changed (another function in HAVING)",
        ),
        (
            (),
            [(GROUPING, f"{GROUPING}      WHERE delay > (SELECT 1)\n")],
            17,
            "by_hour was changed (a filter with a query",
        ),
        (
            [RATIO],
            [RATIO, ("SELECT name, delay FROM by_hour", "SELECT name FROM by_hour")],
            22,
            "late was changed (uses other",
        ),
        (
            [RATIO],
            [RATIO, ("delay FROM by_hour", "hour, delay FROM by_hour")],
            22,
            "late was changed (uses other columns: hour",
        ),
        ([TWO], [TWO, ("f.delay, f.time", "f.delay, f.time, 1 AS one")], 11, "named was changed (sql)"),
        (
            [FLAT],
            [FLAT, ("SELECT f.carrier", "SELECT lower(f.carrier) AS carrier")],
            11,
            "named was changed (column carrier)",
        ),
        (
            [FLAT],
            [FLAT, ("FROM flights AS f", "FROM (SELECT * FROM flights UNION ALL SELECT * FROM flights) f")],
            11,
            "named was changed (sql)",
        ),
    ],
)
def test_what_the_state_was_made_from_may_not(
    tmp_path: Path, before: list[Change], now: list[Change], line: int, told: str
) -> None:
    state = definition_of(read_flights(tmp_path, *before))
    refused = changes_since(read_flights(tmp_path, *now), state).refused
    assert refused is not None
    assert refused[0].startswith(f"step {told}")
    assert refused[1] == line


def test_a_step_that_is_written_may_have_another_name_and_keeps_its_state(tmp_path: Path) -> None:
    """Through later runs too; and no other step may take the name that the state is kept under."""
    state = definition_of(read_flights(tmp_path))
    text = (tmp_path / "delays.yaml").read_text()
    tail = text[text.index("  - name: by_hour") :]
    hourly = tail.replace("by_hour", "hourly")
    renamed = read_flights(tmp_path, (tail, hourly))
    changes = changes_since(renamed, state)
    assert (changes.refused, changes.names) == (None, {"hourly": "by_hour"})
    again = changes_since(renamed, definition_of(renamed), changes.names)
    assert (again.taken, again.names) == ((), {"hourly": "by_hour"})
    other = hourly.replace("sinks:", "  - {name: by_hour, sql: SELECT * FROM flights}\nsinks:")
    taking = read_flights(tmp_path, (tail, f"{other}  - {{parquet: o, from: by_hour}}\n"))
    refused = changes_since(taking, definition_of(renamed), changes.names).refused
    assert refused is not None
    assert "has the name that hourly had, whose state is kept under it" in refused[0]


def test_a_sink_may_be_added_where_its_query_has_not_run(tmp_path: Path) -> None:
    state = definition_of(read_flights(tmp_path))
    more = read_flights(tmp_path, (ALL_SINKS, f"{ALL_SINKS}  - {{parquet: out/all, from: named}}\n"))
    changes = changes_since(more, state)
    assert (changes.refused, len(changes.taken)) == (None, 1)
    back = changes_since(read_flights(tmp_path), definition_of(more))
    assert back.refused is not None
    assert back.refused[0] == f"sink parquet {tmp_path}/out/all was removed"


def test_what_rows_are_let_through_once_by_is_no_detail(tmp_path: Path) -> None:
    """Spark keeps what it has let through, so that the step must stay as it is."""
    once = (
        "    watermark: {column: time, delay: 1 hour}\n",
        "    watermark: {column: time, delay: 1 hour}\n    deduplicate: carrier\n",
    )
    plain, state = read_flights(tmp_path, FLAT), definition_of(read_flights(tmp_path, FLAT, once))
    assert changes_since(read_flights(tmp_path, FLAT, once), state).taken == ()
    for other in (plain, read_flights(tmp_path, FLAT, (once[0], once[1].replace("carrier", "[carrier, time]")))):
        refused = changes_since(other, state).refused
        assert refused is not None
        assert refused[0].startswith("step named was changed (deduplicate), and Spark keeps what it has let through")
    filtered = read_flights(
        tmp_path, FLAT, once, ("a.carrier = f.carrier\n", "a.carrier = f.carrier WHERE delay > 0\n")
    )
    refused = changes_since(filtered, state).refused
    assert refused is not None
    assert refused[0].startswith("step named was changed (sql)")
