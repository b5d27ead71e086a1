"""The SQL by which a batch moves from its stage to the table: what all databases have, and in time that grows with the
rows, not with their square. No Spark and no connection in here.

Keys may be null, and `=` knows no nulls. To compare by `a = b OR (a IS NULL AND b IS NULL)` would keep each database
from its indexes and from hashing. So rows are told apart by which of their key's columns are null: most batches have
none, and each such pattern that a batch has costs a DELETE of its own, by `=` over the other columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

NullPattern = tuple[bool, ...]
"""For each column of a key whether it is null."""

# Spark puts names of columns in quotes as they are, and what stands behind a quote is SQL.
_UNFIT: Final = re.compile(r'["`\[\]\x00-\x1f\x7f]')


def is_unfit(name: str) -> bool:
    """Whether a column's name cannot stand in the SQL that Spark makes: it would end the quotes, or the line."""
    return _UNFIT.search(name) is not None


def quoted_by(name: str, quote: str) -> str:
    """The name as this database quotes it; as it is where that has no quotes."""
    return f"{quote}{name.replace(quote, quote * 2) if quote else name}{quote}"


def patterns_query(stage: str, names: Sequence[str]) -> str:
    """Asks which patterns the stage has: a 1 for each column, in order, that is null. `names` are quoted."""
    columns = ", ".join(f"CASE WHEN {name} IS NULL THEN 1 ELSE 0 END" for name in names)
    return f"SELECT DISTINCT {columns} FROM {stage}"  # noqa: S608


def delete_statements(
    table: str, stage: str, keys: Sequence[tuple[str, str]], patterns: Iterable[NullPattern], *, has_row_values: bool
) -> list[str]:
    """What removes the rows whose keys are in the stage. `keys` are its columns, quoted, by name there and in the
    table. `has_row_values`: whether `(a, b) IN (SELECT ...)` may be said, which no optimizer makes a nested loop of.
    """
    return [_deletion(table, stage, keys, pattern, has_row_values=has_row_values) for pattern in patterns]


def _deletion(
    table: str, stage: str, keys: Sequence[tuple[str, str]], pattern: NullPattern, *, has_row_values: bool
) -> str:
    nulls = [key for key, is_null in zip(keys, pattern, strict=True) if is_null]
    others = [key for key, is_null in zip(keys, pattern, strict=True) if not is_null]
    conditions = [f"{table}.{there} IS NULL" for _, there in nulls]
    within = [f"{stage}.{name} IS NULL" for name, _ in nulls]
    if others and (has_row_values or len(others) == 1):
        of_table = ", ".join(f"{table}.{there}" for _, there in others)
        of_stage = ", ".join(f"{stage}.{name}" for name, _ in others)
        of_table = f"({of_table})" if len(others) > 1 else of_table
        where = f" WHERE {' AND '.join(within)}" if within else ""
        conditions.append(f"{of_table} IN (SELECT {of_stage} FROM {stage}{where})")  # noqa: S608
    elif others:
        within += [f"{stage}.{name} = {table}.{there}" for name, there in others]
        conditions.append(f"EXISTS (SELECT 1 FROM {stage} WHERE {' AND '.join(within)})")  # noqa: S608
    return f"DELETE FROM {table} WHERE {' AND '.join(conditions)}"  # noqa: S608
