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

from barnabas.wire import generated_code
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


PACK_TABLE_MAX: Final = 1024

Reference = tuple[str, ...]
"""What a compiled function refers to, in words: kind and arguments, as `referred` reads them."""


class PackTable(dict[Any, Callable[..., bytes]]):
    """`struct.Struct(...).pack` by how many numbers the arrays of a format have, each made when it is first needed."""

    def __init__(self, format_: str) -> None:
        super().__init__()
        self._format = format_

    def __missing__(self, counts: int | tuple[int, ...]) -> Callable[..., bytes]:
        if len(self) >= PACK_TABLE_MAX:
            self.clear()
        numbers = (counts,) if isinstance(counts, int) else counts
        pack = self[counts] = struct.Struct(f">{self._format.format(*numbers)}").pack
        return pack


def referred(reference: Reference, message_class: type) -> Any:
    """The object that a function of the message refers to."""
    match reference:
        case ("struct", method, format_):
            return getattr(struct.Struct(f">{format_}"), method)
        case ("class",):
            return message_class
        case ("class", name):
            return getattr(message_class, name)
        case ("numbers", method, code):
            return number_table(method, code)
        case ("pack arrays", format_):
            return PackTable(format_)
    raise ValueError(f"nothing is referred to as {reference}")


def generated(
    file: str, name: str, version: int, kind: str, space: dict[str, Any], message_class: Callable[[str], type]
) -> Callable[..., Any] | None:
    """The function that was generated for a message when Barnabas was built, in `space`; None if none was."""
    made = generated_code.function(file, name, version, kind)
    if made is None:
        return None
    function, references = made
    message = message_class(name)
    space.update((key, referred(reference, message)) for key, reference in references)
    return generated_code.bound(function, space)


class Source:
    """A function's source while it is being written, and the names of objects that it refers to."""

    def __init__(self, message: Message, version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = version in message.flexible_versions
        self.lines: list[str] = []
        self.space: dict[str, Any] = {}
        self.references: dict[str, Reference] = {}
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

    def refer_to(self, name: str, reference: Reference, message_class: type) -> str:
        """As `refer`, of what can be found anew where only the code was kept."""
        self.references[name] = reference
        return self.refer(name, referred(reference, message_class))

    def struct_method(self, method: str, format_: str) -> str:
        """The name of the bound method of the big-endian `struct.Struct` of `format_`."""
        return self.refer_to(f"{method}_{format_.replace('?', 'Z')}", ("struct", method, format_), object)

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
