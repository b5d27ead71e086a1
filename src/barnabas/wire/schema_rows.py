"""A message's schema as a row of plain values, and back: a tuple of tuples that Python keeps in compiled code.

To read a schema file takes ten times as long as to make its messages of their rows.
"""

from __future__ import annotations

import functools
from typing import Any

from barnabas.wire.schema import Default, Field, FieldType, Fresh, Kind, Message, Struct, Versions

Row = tuple[Any, ...]


def row(message: Message) -> Row:
    """The message as a row."""
    structs = tuple((struct.name, _field_rows(struct.fields), struct.meaning) for struct in message.structs.values())
    return (
        message.name,
        message.kind.value,
        message.api_key,
        _pair(message.versions),
        _pair(message.flexible_versions),
        message.open_ended,
        _field_rows(message.fields),
        structs,
        message.meaning,
        message.file,
    )


def message(of: Row) -> Message:
    """The message of a row."""
    name, kind, api_key, versions, flexible, open_ended, fields, structs, meaning, file = of
    return Message(
        name=name,
        kind=Kind(kind),
        api_key=api_key,
        versions=_versions(*versions),
        flexible_versions=_versions(*flexible),
        open_ended=open_ended,
        fields=_fields(fields),
        structs={struct: Struct(struct, _fields(inner), what) for struct, inner, what in structs},
        meaning=meaning,
        file=file,
    )


def _pair(versions: Versions) -> tuple[int, int]:
    return versions.low, versions.high


@functools.cache
def _versions(low: int, high: int) -> Versions:
    return Versions(low, high)


def _field_rows(fields: tuple[Field, ...]) -> tuple[Row, ...]:
    return tuple(
        (
            field.name,
            tuple(field.type),
            _pair(field.versions),
            _pair(field.nullable_versions),
            (field.default.value,) if isinstance(field.default, Fresh) else field.default,
            field.tag,
            _pair(field.tagged_versions),
            *field[7:],
        )
        for field in fields
    )


def _fields(rows: tuple[Row, ...]) -> tuple[Field, ...]:
    return tuple(
        Field(
            name,
            FieldType(*kind),
            _versions(*versions),
            _versions(*nullable),
            _default(default),
            tag,
            _versions(*tagged),
            *others,
        )
        for name, kind, versions, nullable, default, tag, tagged, *others in rows
    )


def _default(kept: Any) -> Default:
    """A default that every message gets anew stands in a tuple."""
    default: Default = Fresh(kept[0]) if isinstance(kept, tuple) else kept
    return default
