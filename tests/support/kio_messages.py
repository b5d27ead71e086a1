"""kio, an independent implementation of the Kafka protocol, behind the trees of `wire_values`.

kio has one class per message and version. Three things of it are worked around, none of them in the bytes:

- It reads error codes, durations and points in time as enums, timedeltas and datetimes, which cannot hold every value
  that can be sent. Here it is told to read and write them as the integers that they are.
- It names such fields without their unit (`throttle_time`), appends `_` to Python's own words, and splits KRaft.
- It refuses unknown tagged fields, so those are checked elsewhere.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field as DataclassField
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeAlias, get_args
from unittest import mock
from uuid import UUID

import kio.serial._parse
import kio.serial._serialize
from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.static.constants import EntityType

from barnabas.wire.schema import Field, Kind, Message
from tests.support.wire_values import fields_of

# mypy takes no `type[Any]` for hashable, which arguments of `functools.cache` must be.
EntityClass: TypeAlias = Any

_INTEGER_TYPES: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
_NO_UUID: Final = bytes(16)


@functools.cache
def kio_class(message: Message, version: int) -> EntityClass:
    """kio's class for one version of a message; it raises `KioIndexError` when kio does not have it."""
    if message.kind is Kind.REQUEST and message.api_key is not None:
        return load_request_schema(message.api_key, version)
    if message.kind is Kind.RESPONSE and message.api_key is not None:
        return load_response_schema(message.api_key, version)
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in message.name).lstrip("_")
    return load_entity_schema(name, version, EntityType.header if message.kind is Kind.HEADER else EntityType.data)


def kio_entity(message: Message, version: int, tree: Mapping[str, Any]) -> Any:
    """A tree as kio's object."""
    return _Converter(message, version).struct(kio_class(message, version), message.fields, tree)


def kio_encode(entity: Any) -> bytes:
    """The bytes that kio writes for its object."""
    buffer = io.BytesIO()
    entity_class: EntityClass = type(entity)
    _writer(entity_class)(buffer, entity)
    return buffer.getvalue()


def kio_decode(entity_class: EntityClass, encoded: bytes) -> tuple[Any, int]:
    """kio's object for bytes, and how many of them it took."""
    return _reader(entity_class)(encoded, 0)


@functools.cache
def _reader(entity_class: EntityClass) -> Callable[[bytes, int], tuple[Any, int]]:
    original = kio.serial._parse.get_reader

    def get_reader(kafka_type: str, flexible: bool, optional: bool) -> Any:
        is_integer = kafka_type in _INTEGER_TYPES
        return original(_INTEGER_TYPES.get(kafka_type, kafka_type), flexible, optional and not is_integer)

    with mock.patch.object(kio.serial._parse, "get_reader", get_reader):
        return entity_reader(entity_class)


@functools.cache
def _writer(entity_class: EntityClass) -> Callable[[io.BytesIO, Any], None]:
    original = kio.serial._serialize.get_writer

    def get_writer(kafka_type: str, flexible: bool, optional: bool) -> Any:
        is_integer = kafka_type in _INTEGER_TYPES
        return original(_INTEGER_TYPES.get(kafka_type, kafka_type), flexible, optional and not is_integer)

    with mock.patch.object(kio.serial._serialize, "get_writer", get_writer):
        return entity_writer(entity_class)


class _Converter:
    def __init__(self, message: Message, version: int) -> None:
        self._message = message
        self._version = version

    def struct(self, entity_class: EntityClass, schema_fields: Sequence[Field], tree: Mapping[str, Any]) -> Any:
        pairs = paired_fields(entity_class, tuple(fields_of(schema_fields, self._version)))
        return entity_class(**{theirs.name: self._field(theirs, ours, tree[ours.name]) for theirs, ours in pairs})

    def _field(self, theirs: DataclassField[Any], ours: Field, value: Any) -> Any:
        if value is None and ours.absent_is_none and self._version in ours.tagged_versions:
            return get_tagged_field_default(theirs)
        if value is None:
            return None
        if ours.type.is_struct:
            entity_class = inner_class(theirs.type)
            inner_fields = self._message.structs[ours.type.name].fields
            if ours.type.is_array:
                return tuple(self.struct(entity_class, inner_fields, each) for each in value)
            return self.struct(entity_class, inner_fields, value)
        if ours.type.is_array:
            return tuple(_basic(ours.type.name, each) for each in value)
        return _basic(ours.type.name, value)


def _basic(type_name: str, value: Any) -> Any:
    if type_name == "uuid":
        return None if value == _NO_UUID else UUID(bytes=value)
    return value


def inner_class(annotation: Any) -> EntityClass:
    """The one dataclass inside an annotation such as `tuple[Thing, ...] | None`."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    for argument in get_args(annotation):
        if argument is not Ellipsis and argument is not type(None):
            return inner_class(argument)
    raise TypeError(f"no structure in {annotation!r}")


@functools.cache
def paired_fields(entity_class: EntityClass, ours: tuple[Field, ...]) -> list[tuple[DataclassField[Any], Field]]:
    """kio's fields beside ours; raises when either side has a field that the other lacks."""
    ours_by_name = {field.name: field for field in ours}
    pairs = []
    for theirs in fields(entity_class):
        name = theirs.name.removesuffix("_").replace("k_raft", "kraft")
        found = next((each for each in (name, f"{name}_ms") if each in ours_by_name), None)
        if found is None:
            raise LookupError(
                f"{entity_class.__name__}.{theirs.name} of kio is not in our schema: {sorted(ours_by_name)}"
            )
        pairs.append((theirs, ours_by_name.pop(found)))
    if ours_by_name:
        raise LookupError(f"{entity_class.__name__} of kio has no {sorted(ours_by_name)}")
    return pairs
