"""What the pipeline wrote, read back and compared: the newest row of every key, of the Parquet table and the topic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from demo.expected import COLUMNS, KEY_COLUMNS, MEASURES

_INCHES: Final = "precipitation_inches"
_DIFFERENCES_SHOWN_MAX: Final = 3


class DifferenceError(RuntimeError):
    """Two results that must be equal are not; the message says where."""


def read_parquet(directory: Path) -> Any:
    """The newest row of every key: of those in directories batch_id=N, the one with the largest N.

    A frame as `expected_delays` makes it. Raises OSError or ValueError when there is no such table.
    """
    from pyarrow import dataset

    table = dataset.dataset(directory, format="parquet", partitioning="hive").to_table()
    frame = table.to_pandas().sort_values("batch_id", kind="stable")
    return _normal(frame.drop_duplicates(list(KEY_COLUMNS), keep="last"))


def from_topic(newest_values: Iterable[bytes]) -> Any:
    """The rows that are the newest values of the topic's keys, as the same frame."""
    import pandas as pd

    frame = pd.DataFrame([json.loads(value, parse_float=Decimal) for value in newest_values])
    if not frame.empty:
        frame["day"] = pd.to_datetime(frame.day, format="%Y-%m-%d").dt.date
    return _normal(frame)


def check_each_once(values: Iterable[bytes], directory: Path) -> int:
    """Compares all rows that a topic has with all rows that the batches of the Parquet table have, each as often as it
    is there; how many there are. Raises DifferenceError with the first rows that differ.
    """
    import pandas as pd
    from pyarrow import dataset

    rows = pd.DataFrame([json.loads(value, parse_float=Decimal) for value in values])
    if not rows.empty:
        rows["day"] = pd.to_datetime(rows.day, format="%Y-%m-%d").dt.date
    table = dataset.dataset(directory, format="parquet", partitioning="hive").to_table().to_pandas()
    in_topic, in_table = (Counter(_normal(frame).itertuples(index=False, name=None)) for frame in (rows, table))
    more, less = in_topic - in_table, in_table - in_topic
    differences = [
        f"{row} comes {in_topic[row]} times in the topic, and {in_table[row]} in the table" for row in more | less
    ]
    if differences:
        raise DifferenceError("; ".join(differences[:_DIFFERENCES_SHOWN_MAX]))
    return in_topic.total()


def check_equal(found: Any, expected: Any, found_name: str, expected_name: str) -> None:
    """Compares every cell. Raises DifferenceError with the first rows that differ."""
    keys = list(KEY_COLUMNS)
    merged = expected.merge(found, on=keys, how="outer", suffixes=("", "_found"), indicator=True)
    differences = [
        f"{name} has {_key(row)} more than once"
        for frame, name in ((found, found_name), (expected, expected_name))
        for row in frame[frame.duplicated(keys)].to_dict("records")
    ]
    for side, here, there in (("left_only", expected_name, found_name), ("right_only", found_name, expected_name)):
        alone = merged[merged["_merge"] == side]
        differences += [f"{_key(row)} is in {here} and not in {there}" for row in alone.to_dict("records")]
    both = merged[merged["_merge"] == "both"]
    for column in (column for column in COLUMNS if column not in KEY_COLUMNS):
        for row in both[both[column] != both[f"{column}_found"]].to_dict("records"):
            here, there = _shown(row[column]), _shown(row[f"{column}_found"])
            differences.append(f"{_key(row)}: {column} is {here} in {expected_name} and {there} in {found_name}")
    if differences:
        more = len(differences) - _DIFFERENCES_SHOWN_MAX
        rest = f"; and {more:,} more" if more > 0 else ""
        raise DifferenceError("; ".join(differences[:_DIFFERENCES_SHOWN_MAX]) + rest)


def _normal(frame: Any) -> Any:
    """The frame with COLUMNS alone, whole numbers as such, ordered by key. Raises ValueError when it cannot be that."""
    if _INCHES in frame:
        hundredths = frame[_INCHES].map(lambda inches: Decimal(inches) * 100)
        if (hundredths % 1 != 0).any():
            raise ValueError(f"{_INCHES} has more than two decimals")
        frame = frame.assign(precipitation_hundredths=hundredths)
    missing = [column for column in COLUMNS if column not in frame]
    if missing:
        raise ValueError(f"the result has no column {', '.join(missing)}")
    frame = frame[list(COLUMNS)].astype(dict.fromkeys(MEASURES, "int64"))
    return frame.sort_values(list(KEY_COLUMNS)).reset_index(drop=True)


def _key(row: dict[str, Any]) -> str:
    return " ".join(str(row[column]) for column in KEY_COLUMNS)


def _shown(value: Any) -> str:
    # Merging makes floats of whole numbers where a row is missing on one side.
    return f"{int(value):,}" if isinstance(value, int | float) else str(value)
