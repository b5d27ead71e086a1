"""What the two compilers of the codec share: a function's source while it is written, and what a version holds.

`compiler_decode` and `compiler_encode` turn a message in one version into straight-line Python, once, on first use;
their `source` functions show the code.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from barnabas.wire.schema import Field, Message

FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The `struct` code of every type of fixed width."""
TABLE_SIZE: Final = 16
"""Arrays of fewer numbers have a ready-made `struct.Struct` each."""


class Source:
    """A function's source while it is being written, and the names of objects that it refers to."""

    def __init__(self, message: Message, version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = version in message.flexible_versions
        self.lines: list[str] = []
        self.space: dict[str, Any] = {}
        self._depth = 0
        self._names: dict[str, int] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Writes `head` and indents what is written inside the `with`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, prefix: str) -> str:
        """A local name that the function does not use yet."""
        count = self._names[prefix] = self._names.get(prefix, 0) + 1
        return f"{prefix}_{count}"

    def refer(self, name: str, value: object) -> str:
        """Makes `value` known to the function as `name`; the same name always means the same value."""
        self.space[name] = value
        return name

    def struct_method(self, method: str, format_: str) -> str:
        """The name of the bound method of the big-endian `struct.Struct` of `format_`."""
        return self.refer(f"{method}_{format_.replace('?', 'Z')}", getattr(struct.Struct(f">{format_}"), method))

    def build(self, name: str) -> Callable[..., Any]:
        """Compiles the function, which must be called `name`."""
        code = compile("\n".join(self.lines), f"<{self.message.name} version {self.version}, {name}>", "exec")
        exec(code, self.space)  # noqa: S102 - the text comes from our schema files alone
        function: Callable[..., Any] = self.space[name]
        return function

    # What a version of the message holds.

    def plain(self, fields: tuple[Field, ...]) -> list[Field]:
        """The fields of this version that are not tagged, in the order of the wire."""
        return [
            field for field in fields if self.version in field.versions and self.version not in field.tagged_versions
        ]

    def tagged(self, fields: tuple[Field, ...]) -> list[Field]:
        """The tagged fields of this version, by ascending tag."""
        return [field for field in fields if self.version in field.tagged_versions]

    def absent(self, fields: tuple[Field, ...]) -> list[Field]:
        """The fields that this version lacks."""
        return [field for field in fields if self.version not in field.versions]

    def nullable(self, field: Field) -> bool:
        return self.version in field.nullable_versions

    def compact(self, field: Field) -> bool:
        """True if the lengths in the field's value are unsigned varints, one more than the length."""
        return self.flexible and not field.int16_length

    def length_format(self, field: Field, type_name: str) -> str:
        """The `struct` code of the length that comes ahead of a value of variable width."""
        if self.compact(field):
            return "B"
        return "h" if type_name == "string" else "i"

    def struct_fields(self, field: Field) -> tuple[Field, ...]:
        return self.message.structs[field.type.name].fields

    def has_records(self, fields: tuple[Field, ...]) -> bool:
        """True if records are among the values of the fields, in whatever depth."""
        return any(
            self.has_records(self.struct_fields(field)) if field.type.is_struct else field.type.name == "records"
            for field in fields
        )

    def element_bytes_min(self, field: Field) -> int:
        """The fewest bytes that one element of an array takes, at least 1."""
        if field.type.is_struct:
            return max(1, self._fields_bytes_min(self.struct_fields(field)))
        return self._value_bytes_min(field, field.type.name)

    def _value_bytes_min(self, field: Field, type_name: str) -> int:
        if type_name in FORMATS:
            return struct.calcsize(f">{FORMATS[type_name]}")
        return struct.calcsize(f">{self.length_format(field, type_name)}")

    def _fields_bytes_min(self, fields: tuple[Field, ...]) -> int:
        total = int(self.flexible)
        for field in self.plain(fields):
            if field.type.is_struct and not field.type.is_array:
                total += 1 if self.nullable(field) else self._fields_bytes_min(self.struct_fields(field))
            else:
                total += self._value_bytes_min(field, "array" if field.type.is_array else field.type.name)
        return total


@functools.cache
def number_table(method: str, code: str) -> tuple[Callable[..., Any], ...]:
    """The `struct` method for arrays of 0 to 15 numbers, big-endian."""
    return tuple(getattr(struct.Struct(f">{count}{code}"), method) for count in range(TABLE_SIZE))
