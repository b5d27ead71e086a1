"""The types of columns where the words that most databases share are not known, or lose something. No connection here.

Spark makes tables with the types that it has for a database; for Oracle those are NUMBER(19, 4) of a DOUBLE and a
FLOAT, which cuts digits off, and VARCHAR2(255) of text. So tables of Oracle are made here, also those that a batch
passes through, whose values would be rounded on their way to a table of any types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from barnabas.pipelines.jdbc_statements import quoted_by

_ORACLE: Final = {
    "boolean": "NUMBER(1)",
    "tinyint": "NUMBER(3)",
    "smallint": "NUMBER(5)",
    "int": "NUMBER(10)",
    "bigint": "NUMBER(19)",
    "float": "BINARY_FLOAT",
    "double": "BINARY_DOUBLE",
    "string": "VARCHAR2(4000)",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP(6)",
    "timestamp_ntz": "TIMESTAMP(6)",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")
_KEY_TEXT: Final = "VARCHAR2(1000)"
"""Of a column of a key, which has an index: of larger ones Oracle makes none."""


def has_types_of_its_own(url: str) -> bool:
    """Whether tables of the database at this address are made by `create_statement`."""
    return url.lower().startswith("jdbc:oracle:")


def whole_number_type(url: str) -> str:
    """A column of whole numbers of 64 bits. Oracle has no BIGINT."""
    return _ORACLE["bigint"] if has_types_of_its_own(url) else "BIGINT"


def create_statement(table: str, columns: Sequence[tuple[str, str]], quote: str, keys: Sequence[str] = ()) -> str:
    """A table with these columns, name and Spark's type, of a database that has types of its own; of those in `keys`
    text is short enough for an index. Raises ValueError for a type that it has not.
    """
    short = {name.lower() for name in keys}
    written = ", ".join(
        f"{quoted_by(name, quote)} {_type(kind, is_key=name.lower() in short)}" for name, kind in columns
    )
    return f"CREATE TABLE {table} ({written})"


def _type(kind: str, *, is_key: bool) -> str:
    if is_key and kind == "string":
        return _KEY_TEXT
    found = _DECIMAL.fullmatch(kind)
    if found is not None:
        return f"NUMBER({found[1]}, {found[2]})"
    if kind not in _ORACLE:
        raise ValueError(f"Oracle has no type for {kind.upper()}")
    return _ORACLE[kind]
