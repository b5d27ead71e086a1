"""A second encoder of the Kafka protocol, for tests: it walks a schema value by value, as plainly as the format allows.

It shares nothing with the compiled codec but the schema, and it can do what no writer of Kafka's does: put unknown
tagged fields into every structure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from barnabas.wire.schema import Field, Message
from tests.support.wire_values import default_tree, fields_of, is_tagged

_FORMATS: Final[Mapping[str, str]] = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}


def encode_tree(
    message: Message, version: int, tree: Mapping[str, Any], unknown: Mapping[int, bytes] | None = None
) -> bytes:
    """The bytes of a tree (see `make_tree`); every structure also gets the tagged fields `unknown` (tag: bytes)."""
    return _Encoder(message, version, unknown or {}).struct(message.fields, tree)


def encode_with_lies(message: Message, version: int, tree: Mapping[str, Any], announced: int) -> Iterator[bytes]:
    """The bytes of a tree once for each length in them, which then says `announced` or the most that it can hold."""
    honest = _Encoder(message, version, {})
    honest.struct(message.fields, tree)
    for index in range(honest.lengths_written):
        liar = _Encoder(message, version, {})
        liar.lie = (index, announced)
        yield liar.struct(message.fields, tree)


def unsigned_varint(value: int) -> bytes:
    """A non-negative integer in groups of seven bits, lowest first; all but the last byte have the top bit set."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _Encoder:
    def __init__(self, message: Message, version: int, unknown: Mapping[int, bytes]) -> None:
        self._message = message
        self._version = version
        self._flexible = version in message.flexible_versions
        self._unknown = unknown
        self.lengths_written = 0
        self.lie: tuple[int, int] | None = None

    def struct(self, fields: Sequence[Field], tree: Mapping[str, Any]) -> bytes:
        encoded = b""
        tagged: dict[int, bytes] = {}
        for field in fields_of(fields, self._version):
            value = tree[field.name]
            if not is_tagged(field, self._version):
                encoded += self._value(field, value)
            elif value != default_tree(self._message, field, self._version):
                if field.tag is None:
                    raise ValueError(f"{field.name} is tagged and has no tag")
                tagged[field.tag] = self._value(field, value)
        if not self._flexible:
            return encoded
        tagged |= self._unknown
        encoded += unsigned_varint(len(tagged))
        for tag, value in sorted(tagged.items()):
            encoded += unsigned_varint(tag) + unsigned_varint(len(value)) + value
        return encoded

    def _value(self, field: Field, value: Any) -> bytes:
        if field.type.is_array:
            length = self._length(None if value is None else len(value), ">i")
            return length + b"".join(self._single(field, item) for item in value or ())
        if field.type.is_struct and self._version in field.nullable_versions:
            return b"\xff" if value is None else b"\x01" + self._single(field, value)
        return self._single(field, value)

    def _single(self, field: Field, value: Any) -> bytes:
        name = field.type.name
        if field.type.is_struct:
            return self.struct(self._message.structs[name].fields, value)
        if name in _FORMATS:
            return struct.pack(_FORMATS[name], value)
        if name == "uuid":
            return bytes(value)
        content = value.encode() if isinstance(value, str) else value
        length = None if content is None else len(content)
        return self._length(length, ">h" if name == "string" else ">i", fixed=field.int16_length) + (content or b"")

    def _length(self, length: int | None, fixed_format: str, *, fixed: bool = False) -> bytes:
        if self.lie is not None and self.lie[0] == self.lengths_written:
            length = self.lie[1]
        self.lengths_written += 1
        if self._flexible and not fixed:
            return unsigned_varint(0 if length is None else length + 1)
        most = 0x7FFF if fixed_format == ">h" else 0x7FFF_FFFF
        return struct.pack(fixed_format, -1 if length is None else min(length, most))
