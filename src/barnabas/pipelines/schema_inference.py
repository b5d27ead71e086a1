"""A schema for records in JSON, found in a sample of them. It is written into a file and stays what it is: what comes
later and does not fit is told, and does not change the types of a table behind its readers' backs.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from barnabas.pipelines.definition import DELETED_COLUMN, RECORD_COLUMNS
from barnabas.pipelines.spark_schema import COLUMNS_MAX, quoted_name

_DEPTH_MAX: Final = 10
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1
_DECIMAL_DIGITS_MAX: Final = 38
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[-+]\d{2}:\d{2})", re.ASCII)
_DISTANCE_MAX: Final = dt.timedelta(hours=18)
"""Of a zone: Java's."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT: Final = "STRING"


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """The schema in Spark's DDL, of how many records of the sample, and what was left out of it, in words."""

    schema: str
    records: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Kind:
    """What was seen at one place: names of types that hold no others, the fields of objects, the elements of arrays."""

    leaves: set[str] = field(default_factory=set)
    fields: dict[str, _Kind] | None = None
    elements: _Kind | None = None


def infer_schema(values: Iterable[bytes | None]) -> InferredSchema | None:
    """The schema of those values that are JSON objects; None where none is one that has fields."""
    root, records, others = _Kind(fields={}), 0, 0
    for value in values:
        if value is None:
            continue
        try:
            # Of bytes it would guess UTF-16 too, which is no record that fits.
            content = json.loads(value.decode("utf-8"))
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict):
            records += 1
            _see(root, content, 0)
        else:
            others += 1
    notes = [f"{others} records of the sample are no JSON objects, and are letters"] if others else []
    columns: dict[str, str] = {}
    taken = {name.lower() for name in (*RECORD_COLUMNS, DELETED_COLUMN)}
    for name, kind in (root.fields or {}).items():
        if not _is_text(name):
            notes.append(f"the field {name!a} is left out: its name is no text that a file can have")
            continue
        if name.lower() in taken or len(columns) == COLUMNS_MAX:
            notes.append(f'the field "{name}" is left out: its name is taken, or there are too many')
            continue
        taken.add(name.lower())
        columns[name] = _type(kind)
    if not columns:
        return None
    ddl = ", ".join(
        f"{name if _PLAIN_NAME.fullmatch(name) else quoted_name(name)} {of}" for name, of in columns.items()
    )
    return InferredSchema(ddl, records, tuple(notes))


@dataclass(frozen=True, slots=True)
class InferredChanges:
    """The columns of rows in Debezium's envelopes, name and type; and whether these are in a field `payload`."""

    columns: tuple[tuple[str, str], ...]
    records: int
    is_wrapped: bool


def infer_changes(values: Iterable[bytes | None]) -> InferredChanges | None:
    """What Debezium's envelopes (`before`, `after`, `op`) have of rows; None where no value is one with a row."""
    root, records, wrapped = _Kind(fields={}), 0, 0
    for value in values:
        try:
            content = json.loads(value or b"null")
        except (ValueError, RecursionError):
            continue
        is_wrapped = isinstance(content, dict) and isinstance(content.get("payload"), dict)
        envelope = content["payload"] if is_wrapped else content
        if not isinstance(envelope, dict) or "op" not in envelope:
            continue
        rows = [envelope.get(name) for name in ("before", "after") if isinstance(envelope.get(name), dict)]
        records += bool(rows)
        wrapped += bool(rows) and is_wrapped
        for row in rows:
            _see(root, row, 0)
    columns = tuple((name, _type(kind)) for name, kind in (root.fields or {}).items() if _is_text(name))
    return InferredChanges(columns, records, wrapped * 2 > records) if columns else None


def fields_of_key(key: bytes) -> tuple[str, ...]:
    """The fields of the key of an envelope, in both forms that a converter gives it; none where it is no object."""
    try:
        content = json.loads(key)
    except (ValueError, RecursionError):
        return ()
    if isinstance(content, dict) and "payload" in content:
        content = content["payload"]
    return tuple(content) if isinstance(content, dict) else ()


def _is_text(name: str) -> bool:
    """Whether a field's name can stand in a file: JSON may have halves of surrogate pairs in it, or controls."""
    return bool(name) and not any(unicodedata.category(each) in {"Cc", "Cs"} for each in name)


def _see(kind: _Kind, value: object, depth: int) -> None:
    if value is None:
        return
    if isinstance(value, dict) and value and depth < _DEPTH_MAX:
        kind.fields = {} if kind.fields is None else kind.fields
        for name, inner in value.items():
            if name in kind.fields or len(kind.fields) < COLUMNS_MAX:
                _see(kind.fields.setdefault(name, _Kind()), inner, depth + 1)
    elif isinstance(value, list) and depth < _DEPTH_MAX:
        kind.elements = _Kind() if kind.elements is None else kind.elements
        for inner in value:
            _see(kind.elements, inner, depth + 1)
    else:
        kind.leaves.add(_leaf(value))


def _leaf(value: object) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        if _LONG_MIN <= value <= _LONG_MAX:
            return "BIGINT"
        return f"DECIMAL({_DECIMAL_DIGITS_MAX}, 0)" if abs(value) < 10**_DECIMAL_DIGITS_MAX else _TEXT
    if isinstance(value, float):
        return "DOUBLE"
    return "TIMESTAMP" if isinstance(value, str) and _is_time(value) else _TEXT


def _is_time(value: str) -> bool:
    """Whether it is a time with its zone: anything less may be something else."""
    if not _TIME.fullmatch(value):
        return False
    try:
        distance = dt.datetime.fromisoformat(value).utcoffset()
    except ValueError:
        return False
    return distance is not None and abs(distance) <= _DISTANCE_MAX


def _type(kind: _Kind) -> str:
    """The type that takes all that was seen; a STRING takes any value, as the text that it is in JSON."""
    seen = [kind.fields is not None, kind.elements is not None, bool(kind.leaves)]
    if sum(seen) != 1:
        return _TEXT
    if kind.fields is not None:
        names = {name.lower() for name in kind.fields}
        if len(names) != len(kind.fields) or not all(map(_is_text, names)):
            return _TEXT
        inner = ", ".join(f"{quoted_name(name)}: {_type(each)}" for name, each in kind.fields.items())
        return f"STRUCT<{inner}>"
    if kind.elements is not None:
        return f"ARRAY<{_type(kind.elements)}>"
    if len(kind.leaves) == 1:
        return next(iter(kind.leaves))
    if kind.leaves <= {"BIGINT", f"DECIMAL({_DECIMAL_DIGITS_MAX}, 0)"}:
        return f"DECIMAL({_DECIMAL_DIGITS_MAX}, 0)"
    return "DOUBLE" if kind.leaves == {"BIGINT", "DOUBLE"} else _TEXT
