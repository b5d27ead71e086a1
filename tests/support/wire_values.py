"""Values for any (message, version) of the Kafka protocol, made from our schemas.

A value is a plain tree: a dict of field names for a message or structure, a list for an array, and bool, int, float,
str, bytes or None for the rest (a uuid is 16 bytes). It holds exactly the fields that the version has; a tagged
structure that is not there is None. The same arguments give the same tree on every run and machine.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from barnabas.wire.schema import INTEGER_RANGES, Field, Fresh, Message

Tree: TypeAlias = dict[str, Any]

# Lengths at which the encoded length itself grows by a byte (compact lengths are one more than the length), and the
# longest string of an int16 length.
_LENGTHS: Final = (126, 127, 128, 16382, 16383, 16384, 32767)
_LONG_ARRAY_LENGTH: Final = 130
_CHARACTERS: Final = "abcXYZ0189._-~ é☃𝄞"
_FLOATS: Final = (0.0, -0.0, 0.1, -1e308, 5e-324, float("inf"), float("-inf"))


class Shape(enum.Enum):
    """What kind of values a tree is made of."""

    EMPTY = "empty"
    """Null where that is allowed, otherwise empty or zero; no tagged field."""
    FULL = "full"
    """Nothing null, nothing empty, every tagged field away from its default, numbers at their extremes."""
    LONG = "long"
    """Strings and bytes around the lengths where encoded lengths grow and at their maximum; arrays of 130."""
    MIXED = "mixed"
    """Anything, by seed."""


def make_tree(message: Message, version: int, shape: Shape, seed: int = 0) -> Tree:
    """A tree of `shape` for one version of a message; `seed` chooses among many."""
    return _Maker(message, version, shape, random.Random(f"{message.name} {version} {shape.value} {seed}")).message()


def fields_of(fields: Sequence[Field], version: int) -> list[Field]:
    """The fields that `version` has, in the order of the schema."""
    return [field for field in fields if version in field.versions]


def is_tagged(field: Field, version: int) -> bool:
    return version in field.tagged_versions


def default_tree(message: Message, field: Field, version: int) -> Any:
    """What a field that is not written reads as; a tagged structure that is not there is None."""
    if field.default is Fresh.LIST:
        return []
    if field.default is Fresh.STRUCT:
        inner = message.structs[field.type.name].fields
        return {each.name: default_tree(message, each, version) for each in fields_of(inner, version)}
    return field.default


class _Maker:
    def __init__(self, message: Message, version: int, shape: Shape, generator: random.Random) -> None:
        self._message = message
        self._version = version
        self._shape = shape
        self._random = generator
        self._long_values_left = len(_LENGTHS)

    def message(self) -> Tree:
        return self._struct(self._message.fields, self._shape, depth=0)

    def _struct(self, fields: Sequence[Field], shape: Shape, depth: int) -> Tree:
        return {field.name: self._field(field, shape, depth) for field in fields_of(fields, self._version)}

    def _field(self, field: Field, shape: Shape, depth: int) -> Any:
        if is_tagged(field, self._version) and (shape is Shape.EMPTY or (shape is Shape.MIXED and self._chance(0.4))):
            return default_tree(self._message, field, self._version)
        if self._version in field.nullable_versions and (
            shape is Shape.EMPTY or (shape is Shape.MIXED and self._chance(0.3))
        ):
            return None
        if field.type.is_array:
            return self._array(field, shape, depth)
        return self._single(field, shape, depth)

    def _array(self, field: Field, shape: Shape, depth: int) -> list[Any]:
        if shape is Shape.EMPTY:
            return []
        if shape is Shape.LONG and depth == 0:
            # Long in number or long inside, never both: the product would be slow and tell nothing more.
            few = [self._single(field, Shape.LONG, depth) for _ in range(2)]
            return few + [self._single(field, Shape.EMPTY, depth) for _ in range(_LONG_ARRAY_LENGTH - len(few))]
        length = self._random.randint(0, 3) if shape is Shape.MIXED else self._random.randint(1, 2)
        return [self._single(field, shape, depth) for _ in range(length)]

    def _single(self, field: Field, shape: Shape, depth: int) -> Any:
        name = field.type.name
        if field.type.is_struct:
            tree = self._struct(self._message.structs[name].fields, shape, depth + 1)
            if field.absent_is_none and tree == self._default_struct(name):
                return None  # a tagged structure at its defaults is not written
            return tree
        value = self._basic(name, shape)
        if is_tagged(field, self._version) and shape is not Shape.EMPTY:
            while value == field.default and not field.type.is_array:
                value = self._basic(name, Shape.FULL)
        return value

    def _default_struct(self, name: str) -> Tree:
        inner = self._message.structs[name].fields
        return {each.name: default_tree(self._message, each, self._version) for each in fields_of(inner, self._version)}

    def _basic(self, name: str, shape: Shape) -> Any:
        if name in INTEGER_RANGES:
            return self._integer(*INTEGER_RANGES[name], shape)
        if name == "bool":
            return shape is not Shape.EMPTY and self._chance(0.5)
        if name == "float64":
            return 0.0 if shape is Shape.EMPTY else self._random.choice(_FLOATS)
        if name == "uuid":
            return bytes(16) if shape is Shape.EMPTY else self._random.randbytes(16)
        length = self._length(shape)
        if name == "string":
            return self._text(length)
        return self._random.randbytes(length)

    def _integer(self, low: int, high: int, shape: Shape) -> int:
        if shape is Shape.EMPTY:
            return 0
        if shape is Shape.FULL or self._chance(0.5):
            return self._random.choice((low, high, -1 if low < 0 else 1, 1))
        return self._random.randint(low, high)

    def _length(self, shape: Shape) -> int:
        if shape is Shape.EMPTY:
            return 0
        if shape is Shape.LONG and self._long_values_left:
            self._long_values_left -= 1
            return _LENGTHS[self._long_values_left]
        return self._random.randint(0, 12) if shape is Shape.MIXED else self._random.randint(1, 6)

    def _text(self, length: int) -> str:
        """A string that takes `length` bytes in UTF-8; short ones mix characters of one to four bytes."""
        if length > 12:
            return "~" * length
        text = ""
        while (left := length - len(text.encode())) > 0:
            character = self._random.choice(_CHARACTERS)
            text += character if len(character.encode()) <= left else "x"
        return text

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability
