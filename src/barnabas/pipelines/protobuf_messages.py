"""Messages of Protocol Buffers by a descriptor set, as `protoc --descriptor_set_out=F --include_imports` writes it:
their columns, and their values as those. Google's package reads the bytes; this says what they are for Spark.

A field that can be absent (`optional`, a message, one of a `oneof`) is null then; others have their default.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.pipelines.definition import Column
from barnabas.pipelines.spark_schema import quoted_name

DESCRIPTOR_BYTES_MAX: Final = 16 * 1024 * 1024
DEPTH_MAX: Final = 20
COLUMNS_MAX: Final = 1_000
FIELDS_MAX: Final = 10_000
"""Of a message with those that it contains, each counted wherever it stands: Spark has its columns written out."""
_INSTALL: Final = "`format: protobuf` needs the package of Protocol Buffers: pip install 'barnabas[protobuf]'"
_TYPES: Final = {
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), "INT"),
    **dict.fromkeys(("UINT32", "FIXED32", "INT64", "SINT64", "SFIXED64"), "BIGINT"),
    **dict.fromkeys(("UINT64", "FIXED64"), "DECIMAL(20, 0)"),
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "BOOL": "BOOLEAN",
    "STRING": "STRING",
    "BYTES": "BINARY",
    "ENUM": "STRING",
}
_KNOWN_FILES: Final = ("google/protobuf/", "google/type/", "confluent/")
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Reader = Callable[[Any], Any]


class ProtobufSchemaError(ValueError):
    """What is wrong with a descriptor set or its message, in words that follow its file's name."""


def columns_of_message(descriptors: bytes, message: str) -> tuple[Column, ...]:
    """The columns of a message, by its full name. Raises ProtobufSchemaError."""
    descriptor = _descriptor(descriptors, message)
    types = _Types()
    columns = tuple(Column(field.name, types.of(field, 0, (descriptor.full_name,))) for field in descriptor.fields)
    if not columns:
        raise ProtobufSchemaError(f"has a message {message} without fields")
    if len(columns) > COLUMNS_MAX:
        raise ProtobufSchemaError(f"has a message {message} of more than {COLUMNS_MAX} fields")
    if len({column.name.lower() for column in columns}) != len(columns):
        raise ProtobufSchemaError("has two fields whose names differ by case at most, which SQL cannot tell apart")
    return columns


def message_indexes(descriptors: bytes, message: str, *, counts_maps: bool = True) -> tuple[int, ...]:
    """Where the message stands in its file, from the outermost to itself: as a registry's framing has it.

    protoc makes a message of each map, which counts for those who have a descriptor; it does not for Confluent's client
    in Java where the registry has the text as people write it (`counts_maps`).
    """
    descriptor, found = _descriptor(descriptors, message), []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = outer.nested_types if outer is not None else descriptor.file.message_types_by_name.values()
        counted = (each for each in siblings if counts_maps or not each.GetOptions().map_entry)
        found.append([each.full_name for each in counted].index(descriptor.full_name))
        descriptor = outer
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class ProtoFile:
    """A file as a registry takes it: its name, its descriptor in base64, and the names of those that it imports,
    without those that every registry has.
    """

    name: str
    schema: str
    imports: tuple[str, ...]


def files_to_register(descriptors: bytes, message: str) -> tuple[ProtoFile, ...]:
    """The file of the message, at the end, and before it those that it imports, each behind what it imports itself.

    A descriptor set has no circle of imports: Google's package refuses it.
    """
    found: dict[str, ProtoFile] = {}
    left = [(_descriptor(descriptors, message).file, False)]
    while left:
        file, is_done = left.pop()
        if file.name in found:
            continue
        inner = [each for each in file.dependencies if not each.name.startswith(_KNOWN_FILES)]
        if is_done:
            content = base64.b64encode(file.serialized_pb).decode()
            found[file.name] = ProtoFile(file.name, content, tuple(each.name for each in inner))
        else:
            left.append((file, True))
            left += [(each, False) for each in inner]
    return tuple(found.values())


def reader_of(descriptors: bytes, message: str) -> Callable[[bytes], tuple[Any, ...] | None]:
    """Reads a message as its columns, each as Python's type of Spark's; None for bytes that are no such message, or
    have a value that Spark cannot hold.
    """
    from google.protobuf.message import DecodeError

    descriptor = _descriptor(descriptors, message)
    kind, read = _class_of(descriptor), _message_reader(descriptor)

    def value_of(content: bytes) -> tuple[Any, ...] | None:
        made = kind()
        try:
            if made.ParseFromString(content) != len(content) or not made.IsInitialized():
                return None
            found: tuple[Any, ...] = read(made)
        except (DecodeError, ValueError, OverflowError):
            return None
        return found

    return value_of


def encode_message(descriptors: bytes, message: str, columns: Mapping[str, object]) -> bytes:
    """A message with these fields, as the JSON form of Protocol Buffers has them, their names in any case. Raises
    ValueError, in words.
    """
    from google.protobuf import json_format
    from google.protobuf.message import EncodeError

    descriptor = _descriptor(descriptors, message)
    names = _names_of(descriptors, message)
    try:
        given = {names.get(name.lower(), name): value for name, value in columns.items() if value is not None}
        content: bytes = json_format.ParseDict(given, _class_of(descriptor)()).SerializeToString()
    except (json_format.ParseError, EncodeError) as error:
        raise ValueError(str(error)) from None
    return content


@functools.lru_cache(maxsize=64)
def _names_of(descriptors: bytes, message: str) -> dict[str, str]:
    """The names of a message's fields by themselves in small letters, as SQL knows them."""
    return {field.name.lower(): field.name for field in _descriptor(descriptors, message).fields}


@functools.lru_cache(maxsize=64)
def _descriptor(descriptors: bytes, message: str) -> Any:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError:
        raise ProtobufSchemaError(f"cannot be read: {_INSTALL}") from None
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptors)
    except DecodeError:
        raise ProtobufSchemaError("is no descriptor set: protoc --descriptor_set_out=F --include_imports") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        # protoc writes what a file imports before it.
        for file in files.file:
            pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = sorted(f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type)
        raise ProtobufSchemaError(f"has no message {message}; it has: {', '.join(known[:20]) or 'none'}") from None
    except TypeError as error:
        message_text = f"is not whole ({error}): have protoc write it with --include_imports"
        raise ProtobufSchemaError(message_text) from None


def _class_of(descriptor: Any) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor)


def _name_of_type(field: Any) -> str:
    from google.protobuf import descriptor_pb2

    return str(descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def _is_repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


class _Types:
    """Spark's types, in DDL."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, field: Any, depth: int, within: tuple[str, ...]) -> str:
        """The type of a field of a message that is in those of these names, `depth` levels down."""
        self._count += 1
        if self._count > FIELDS_MAX:
            raise ProtobufSchemaError(f"has more than {FIELDS_MAX} fields, with those of the messages in it")
        if _is_map(field):
            parts = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            key, value = (self._of_one(part, depth, within) for part in parts)
            return f"MAP<{key}, {value}>"
        of_one = self._of_one(field, depth, within)
        return f"ARRAY<{of_one}>" if _is_repeated(field) else of_one

    def _of_one(self, field: Any, depth: int, within: tuple[str, ...]) -> str:
        kind = field.message_type
        if kind is None:
            return _TYPES[_name_of_type(field)]
        if kind.full_name == _TIMESTAMP:
            return "TIMESTAMP"
        if kind.full_name in _WRAPPERS:
            return _TYPES[_name_of_type(kind.fields_by_name["value"])]
        if kind.full_name in within:
            raise ProtobufSchemaError(f"has a message {kind.full_name} that contains itself, which Spark cannot read")
        if depth >= DEPTH_MAX:
            raise ProtobufSchemaError(f"is deeper than {DEPTH_MAX} levels")
        if not kind.fields:
            return "STRUCT<>"
        inside = (*within, kind.full_name)
        inner = (f"{quoted_name(each.name)}: {self.of(each, depth + 1, inside)}" for each in kind.fields)
        return f"STRUCT<{', '.join(inner)}>"


def _text(value: str | bytes) -> str:
    """Of proto2 it may be bytes, where they are no UTF-8. Raises ValueError for those."""
    return value if isinstance(value, str) else value.decode("utf-8")


def _message_reader(descriptor: Any) -> Reader:
    readers = [_field_reader(field) for field in descriptor.fields]
    return lambda message: tuple(read(message) for read in readers)


def _field_reader(field: Any) -> Reader:
    name = field.name
    if _is_map(field):
        of_key, of_value = (_value_reader(field.message_type.fields_by_name[part]) for part in ("key", "value"))
        return lambda message: {of_key(key): of_value(value) for key, value in getattr(message, name).items()}
    read = _value_reader(field)
    if _is_repeated(field):
        return lambda message: [read(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _value_reader(field: Any) -> Reader:
    kind = field.message_type
    if kind is not None:
        if kind.full_name == _TIMESTAMP:
            return lambda value: _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
        if kind.full_name in _WRAPPERS:
            inner = _value_reader(kind.fields_by_name["value"])
            return lambda value: inner(value.value)
        return _message_reader(kind)
    if field.enum_type is not None:
        # Of several names of a number the first is the one that others write.
        names = {each.number: each.name for each in reversed(field.enum_type.values)}
        return lambda value: names.get(value, str(value))
    if _name_of_type(field) in {"UINT64", "FIXED64"}:
        return decimal.Decimal
    if _name_of_type(field) == "STRING":
        return _text
    return lambda value: value
