from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from demo.expected import COLUMNS, KEY_COLUMNS
from demo.results import DifferenceError, check_each_once, check_equal, from_topic, read_parquet
from tests.unit.demo.frames import daily_rows


def as_values(rows: Any) -> list[bytes]:
    """The rows as the pipeline writes them to a topic."""
    values = []
    for row in rows.to_dict("records"):
        hundredths = row.pop("precipitation_hundredths")
        text = json.dumps({**row, "day": str(row["day"])})
        values.append(f'{text[:-1]}, "precipitation_inches": {Decimal(hundredths) / 100:.2f}}}'.encode())
    return values


def write_parquet(directory: Path, batch_id: int, rows: Any) -> None:
    inches = rows.precipitation_hundredths.map(lambda hundredths: Decimal(hundredths) / 100)
    batch = directory / f"batch_id={batch_id}"
    batch.mkdir(parents=True)
    rows.drop(columns="precipitation_hundredths").assign(precipitation_inches=inches).to_parquet(
        batch / "part-0.parquet"
    )


def test_equal_tables_pass_in_any_order() -> None:
    check_equal(daily_rows().iloc[::-1], daily_rows(), "the table", "the source")


@pytest.mark.parametrize("column", [column for column in COLUMNS if column not in KEY_COLUMNS])
def test_finds_one_cell_that_differs(column: str) -> None:
    changed = daily_rows()
    changed.loc[1, column] += "x" if column == "airline" else 1
    with pytest.raises(DifferenceError, match=f"OO LGA 2013-07-02: {column} is .* in the source and .* in the table"):
        check_equal(changed, daily_rows(), "the table", "the source")


def test_finds_a_row_that_is_missing_and_one_too_many() -> None:
    with pytest.raises(DifferenceError, match="OO LGA 2013-07-02 is in the source and not in the table"):
        check_equal(daily_rows().iloc[:1], daily_rows(), "the table", "the source")
    with pytest.raises(DifferenceError, match="OO LGA 2013-07-02 is in the table and not in the source"):
        check_equal(daily_rows(), daily_rows().iloc[:1], "the table", "the source")


def test_finds_a_row_that_is_there_twice() -> None:
    import pandas as pd

    twice = pd.concat([daily_rows(), daily_rows().iloc[:1]])
    with pytest.raises(DifferenceError, match="the table has AA JFK 2013-07-01 more than once"):
        check_equal(twice, daily_rows(), "the table", "the source")


def test_shows_few_differences_and_counts_the_others() -> None:
    changed = daily_rows()
    changed[["flights", "miles"]] += 1
    changed["departed"] += 1
    with pytest.raises(DifferenceError, match=r"; and 3 more$"):
        check_equal(changed, daily_rows(), "the table", "the source")


def test_reads_what_was_written_to_a_topic() -> None:
    check_equal(from_topic(as_values(daily_rows())), daily_rows(), "the topic", "the source")


def test_an_empty_topic_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no column carrier"):
        from_topic([])


def test_a_sum_that_is_not_exact_is_an_error() -> None:
    (value, _other) = as_values(daily_rows())
    with pytest.raises(ValueError, match="more than two decimals"):
        from_topic([value.replace(b"0.24", b"0.24000001")])


def test_takes_the_row_of_the_newest_batch(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    older = daily_rows().assign(flights=0)
    write_parquet(tmp_path, 9, older)
    write_parquet(tmp_path, 10, daily_rows().iloc[:1])
    found = read_parquet(tmp_path)
    assert found.flights.tolist() == [4, 0]
    check_equal(found.iloc[:1], daily_rows().iloc[:1], "the table", "the source")


def test_each_row_of_all_batches_is_in_the_topic_as_often_as_it_was_written(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    older = daily_rows().assign(flights=0)
    write_parquet(tmp_path, 0, older)
    write_parquet(tmp_path, 1, daily_rows())
    values = [*as_values(daily_rows()), *as_values(older)]
    assert check_each_once(values, tmp_path) == 4
    with pytest.raises(DifferenceError, match="comes 2 times in the topic, and 1 in the table"):
        check_each_once([*values, values[0]], tmp_path)
    with pytest.raises(DifferenceError, match="comes 0 times in the topic, and 1 in the table"):
        check_each_once(values[1:], tmp_path)
