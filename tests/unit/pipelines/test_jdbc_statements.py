"""What removes the rows whose keys a batch has, in a database that is here: nulls, several columns, how fast."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator

import pytest

from barnabas.pipelines.jdbc_statements import delete_statements, is_unfit, patterns_query, quoted_by

KEYS = [('"a"', '"A"'), ('"b"', '"b"')]
VALUES = (None, 1, 2)


@pytest.fixture
def base() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute('CREATE TABLE t ("A" INT, "b" INT)')
    connection.execute('CREATE TABLE s ("a" INT, "b" INT)')
    yield connection
    connection.close()


def remove(base: sqlite3.Connection, keys: list[tuple[str, str]], *, has_row_values: bool) -> int:
    """How many statements it took."""
    found = base.execute(patterns_query("s", [name for name, _ in keys])).fetchall()
    patterns = [tuple(bool(each) for each in row) for row in found]
    statements = delete_statements("t", "s", keys, patterns, has_row_values=has_row_values)
    for statement in statements:
        base.execute(statement)
    return len(statements)


@pytest.mark.parametrize("has_row_values", [True, False])
@pytest.mark.parametrize("count", range(4))
def test_the_rows_of_the_keys_of_a_batch_are_removed_nulls_too_and_no_others(
    base: sqlite3.Connection, count: int, has_row_values: bool
) -> None:
    pairs = list(itertools.product(VALUES, VALUES))
    for batch in itertools.combinations(pairs, count):
        base.execute("DELETE FROM t")
        base.execute("DELETE FROM s")
        base.executemany("INSERT INTO t VALUES (?, ?)", pairs)
        base.executemany("INSERT INTO s VALUES (?, ?)", batch)
        remove(base, KEYS, has_row_values=has_row_values)
        assert set(base.execute("SELECT * FROM t")) == set(pairs) - set(batch)
    base.executemany("INSERT INTO s VALUES (?, ?)", [(1, 1), (1, 2)])
    assert remove(base, KEYS, has_row_values=has_row_values) <= 4


def test_a_batch_is_removed_in_time_that_grows_with_its_rows(base: sqlite3.Connection) -> None:
    """Row by row against row by row, 30,000 of each would take a minute."""
    rows = [(number, number % 7) for number in range(30_000)]
    base.executemany("INSERT INTO t VALUES (?, ?)", rows)
    base.executemany("INSERT INTO s VALUES (?, ?)", [*rows, (None, None)])
    began = time.process_time()
    assert remove(base, KEYS, has_row_values=True) == 2
    assert time.process_time() - began < 5
    assert base.execute("SELECT COUNT(*) FROM t").fetchone() == (0,)


def test_names_are_quoted_and_what_would_end_the_quotes_is_unfit() -> None:
    assert quoted_by("select", '"') == '"select"'
    assert quoted_by('a"b', '"') == '"a""b"'
    assert quoted_by("a", "") == "a"
    assert [is_unfit(name) for name in ('a"b', "a`b", "a]b", "a\nb", "a\0", "a b; --", "été", "order")] == [
        *[True] * 5,
        *[False] * 3,
    ]
