"""Compiles encoders.

A compiled encoder is `encode(message, out) -> buffers`: it appends to the bytearray `out`, which may already hold a
header, and returns the list of buffers to send, `out` first. Large `records` are entries of that list as they are,
without a copy; so they must stay as they are until they are sent. It raises `EncodeError` for a message that cannot
be written in the version. How it is made fast:

- Neighbours of fixed width, and the length that follows them, are packed by one `struct` call; so is a short array of
  numbers with what stands ahead of it, and the byte that says that there are no tagged fields.
- Nothing is checked that `struct` checks by itself. When something fails, `compiler_faults` looks for the field that
  is to blame.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from barnabas.kernel.facts import fact
from barnabas.kernel.steps import Steps
from barnabas.wire import catalogue
from barnabas.wire.classes import message_class
from barnabas.wire.compiler import FORMATS, TABLE_SIZE, Source, generated
from barnabas.wire.compiler_faults import first_fault
from barnabas.wire.primitives import STRING_BYTES_MAX, Buffer, EncodeError, unsigned_varint
from barnabas.wire.schema import Field, Fresh

RECORDS_COPIED_BYTES_MAX: Final = 1024
"""Smaller records are copied: that costs less than one more entry in the list of buffers."""

Encoder = Callable[[Any, bytearray], list[Buffer]]
StepEncoder = Callable[[Any, bytearray], Steps[list[Buffer]]]
STEP_ELEMENTS: Final = 1024
"""How many elements of arrays an encoder in steps writes until it yields: about a millisecond's worth."""


@functools.cache
def encoder(name: str, version: int) -> Encoder:
    """The encoder of the message `name` in `version`.

    Raises `KeyError` if there is no such message, `ValueError` if the message has no such version.
    """
    file = catalogue.file_of(name)
    made = generated(file, name, version, "encode", _space(name, version), message_class)
    return written(name, version).build("encode") if made is None else made


@functools.cache
def step_encoder(name: str, version: int) -> StepEncoder:
    """The encoder in steps of the message `name` in `version`; raises as `encoder` does."""
    return _Writer(name, version, in_steps=True).source().build("encode")


def source(name: str, version: int, *, in_steps: bool = False) -> str:
    """The code of the encoder of a message, to be looked at."""
    return "\n".join(_Writer(name, version, in_steps=in_steps).source().lines)


def written(name: str, version: int) -> Source:
    """The encoder of a message, written but not compiled; raises as `encoder` does."""
    return _Writer(name, version).source()


def _space(name: str, version: int) -> dict[str, Any]:
    """What every encoder refers to."""
    return {
        "unsigned_varint": unsigned_varint,
        "pack": struct.pack,
        "faults": (struct.error, TypeError, AttributeError, ValueError, OverflowError),
        "refuse": functools.partial(_refuse, name, version),
    }


@fact
class _Item:
    """A value that waits to be packed with its neighbours; `array`: so many numbers as the variable `count` says."""

    expression: str
    format: str
    array: bool = False
    count: str = ""


_NO_TAGS: Final = _Item("", "x")
_NULL: Final = _Item("", "x")


def _arguments(items: Iterable[_Item]) -> str:
    return ", ".join(item.expression for item in items if item.expression)


class _Writer:
    """Writes one encoder. `self._pending` are the values that come next and can be packed together."""

    def __init__(self, name: str, version: int, *, in_steps: bool = False) -> None:
        message = catalogue.message(name)
        if version not in message.versions:
            raise ValueError(f"{name} has versions {message.versions}, not {version}")
        self._out = out = Source(message, version)
        self._in_steps = in_steps
        self._has_records = out.has_records(message.fields)
        self._pending: list[_Item] = []

    def source(self) -> Source:
        out = self._out
        out.space.update(_space(out.message.name, out.version))
        with out.block("def encode(m, o):"):
            out.line("buffers = [o]")
            if self._in_steps:
                out.line(f"left = {STEP_ELEMENTS}")
                with out.block("if False:"):  # a generator, also where there is no array
                    out.line("yield")
            with out.block("try:"):
                self._struct("m", out.message.fields)
            with out.block("except faults as fault:"):
                out.line("refuse(m, fault)")
            if self._has_records:
                with out.block("if not o and len(buffers) > 1:"):
                    out.line("buffers.pop()")
            out.line("return buffers")
        return out

    def _struct(self, owner: str, fields: tuple[Field, ...]) -> None:
        """Writes the fields of the structure that the expression `owner` gives."""
        out = self._out
        lines_before = len(out.lines)
        for field in out.absent(fields):
            if not field.ignorable:
                with out.block(f"if {self._differs(field, f'{owner}.{field.name}')}:"):
                    out.line(f'raise ValueError("{field.name}")')
        for field in out.plain(fields):
            self._value(field, f"{owner}.{field.name}")
        if out.flexible:
            tagged = out.tagged(fields)
            if tagged:
                self._tagged(owner, tagged)
            else:
                self._pending.append(_NO_TAGS)
        self._flush()
        if len(out.lines) == lines_before:
            out.line("pass")

    # Fixed width, and short arrays of numbers.

    def _flush(self) -> None:
        """Writes the pending values."""
        pending = self._take_pending()
        arrays = [item for item in pending if item.array]
        if not arrays:
            self._pack(pending)
            return
        out = self._out
        short = " and ".join(f"{array.count} < {TABLE_SIZE}" for array in arrays)
        with out.block(f"if {short}:"):
            format_ = "".join(f"{{}}{item.format}" if item.array else item.format for item in pending)
            table = out.refer_to(out.name("pack_arrays"), ("pack arrays", format_), object)
            counts = ", ".join(array.count for array in arrays)
            out.line(f"o += {table}[{counts}]({_arguments(pending)})")
        with out.block("else:"):
            start = 0
            for index, item in enumerate(pending):
                if item.array:
                    self._long_array(pending[start:index], item)
                    start = index + 1
            self._pack(pending[start:])

    def _take_pending(self) -> list[_Item]:
        pending, self._pending = self._pending, []
        return pending

    def _pack(self, items: Sequence[_Item]) -> None:
        """Writes values of fixed width."""
        if not items:
            return
        format_ = "".join(item.format for item in items)
        if set(format_) == {"x"}:
            self._out.line(f"o += {bytes(len(format_))!r}")
        elif format_ == "B":
            self._out.line(f"o.append({items[0].expression})")
        else:
            self._out.line(f"o += {self._out.struct_method('pack', format_)}({_arguments(items)})")

    def _long_array(self, ahead: list[_Item], array: _Item) -> None:
        """Writes an array of any length and what stands ahead of it: the last of that is the byte for its count."""
        out = self._out
        if ahead[-1].format == "B":
            self._pack(ahead[:-1])
            out.line(f"o += unsigned_varint({ahead[-1].expression})")
        else:
            self._pack(ahead)
        out.line(f'o += pack(f">{{{array.count}}}{array.format}", {array.expression})')

    def _value(self, field: Field, expression: str) -> None:
        kind = field.type
        if kind.is_array:
            self._array(field, expression)
        elif kind.is_struct:
            self._nested(field, expression)
        elif kind.name in FORMATS:
            self._fixed(kind.name, expression)
        else:
            self._bytes(field, kind.name, expression, nullable=self._out.nullable(field))

    def _fixed(self, type_name: str, expression: str) -> None:
        if type_name == "uuid":  # struct would cut or pad it without a word
            with self._out.block(f"if len({expression}) != 16:"):
                self._out.line('raise ValueError("uuid")')
        self._pending.append(_Item(expression, FORMATS[type_name]))

    # Variable width.

    def _length(self, field: Field, type_name: str, length: str) -> None:
        """Writes what is pending and the length, which is the local variable `length` and already as it is to be
        written.
        """
        out = self._out
        format_ = out.length_format(field, type_name)
        if format_ != "B":
            self._pending.append(_Item(length, format_))
            self._flush()
            return
        pending = self._pending
        with out.block(f"if {length} < 128:"):
            self._pending = [*pending, _Item(length, "B")]
            self._flush()
        with out.block(f"elif {length} < 16384:"):
            self._pending = [*pending, _Item(f"{length} & 127 | 128", "B"), _Item(f"{length} >> 7", "B")]
            self._flush()
        with out.block("else:"):
            if type_name == "string":
                with out.block(f"if {length} > {STRING_BYTES_MAX + 1}:"):
                    out.line('raise ValueError("too long")')
            self._pending = pending
            self._flush()
            out.line(f"o += unsigned_varint({length})")

    def _null(self, field: Field, type_name: str) -> _Item:
        """The length that stands for null."""
        return _NULL if self._out.compact(field) else _Item("-1", self._out.length_format(field, type_name))

    @contextmanager
    def _unless_null(self, nullable: bool, value: str, null: _Item) -> Iterator[None]:
        """Inside the `with`, code for a value that is not None is written; pending is the same as ahead of it."""
        if not nullable:
            yield
            return
        pending = list(self._pending)
        with self._out.block(f"if {value} is None:"):
            self._pending.append(null)
            self._flush()
        self._pending = pending
        with self._out.block("else:"):
            yield

    def _bytes(self, field: Field, type_name: str, expression: str, *, nullable: bool) -> None:
        """A string, bytes or records."""
        out = self._out
        value, length = out.name("v"), out.name("n")
        encode = type_name == "string"
        out.line(f"{value} = {expression}{'.encode()' if encode and not nullable else ''}")
        with self._unless_null(nullable, value, self._null(field, type_name)):
            if encode and nullable:
                out.line(f"{value} = {value}.encode()")
            out.line(f"{length} = len({value}){' + 1' if out.compact(field) else ''}")
            self._length(field, type_name, length)
            if type_name == "records":
                with out.block(f"if {length} <= {RECORDS_COPIED_BYTES_MAX}:"):
                    out.line(f"o += {value}")
                with out.block("else:"):
                    out.line("o = bytearray()")
                    out.line(f"buffers += {value}, o")
            else:
                out.line(f"o += {value}")

    def _array(self, field: Field, expression: str) -> None:
        out = self._out
        plus = " + 1" if out.compact(field) else ""
        name = field.type.name
        value, count = out.name("v"), out.name("n")
        out.line(f"{value} = {expression}")
        nullable = out.nullable(field)
        with self._unless_null(nullable, value, self._null(field, "array")):
            if name in FORMATS and name not in ("uuid", "bool"):
                out.line(f"{count} = len({value})")
                self._pending.append(_Item(f"{count}{plus}", out.length_format(field, "array")))
                self._pending.append(_Item(f"*{value}", FORMATS[name], array=True, count=count))
                if nullable:
                    self._flush()
            else:
                out.line(f"{count} = len({value}){plus}")
                self._length(field, "array", count)
                self._elements(field, value)

    def _elements(self, field: Field, value: str) -> None:
        """Writes the elements of the array in the local variable `value`."""
        out = self._out
        element = out.name("e")
        with out.block(f"for {element} in {value}:"):
            if field.type.is_struct:
                self._struct(element, out.struct_fields(field))
            elif field.type.name in FORMATS:
                self._fixed(field.type.name, element)
                self._flush()
            else:
                self._bytes(field, field.type.name, element, nullable=False)
            if self._in_steps:
                out.line("left -= 1")
                with out.block("if not left:"):
                    out.line("yield")
                    out.line(f"left = {STEP_ELEMENTS}")

    def _nested(self, field: Field, expression: str) -> None:
        out = self._out
        nullable = out.nullable(field)
        value = out.name("s")
        out.line(f"{value} = {expression}")
        with self._unless_null(nullable, value, _Item("-1", "b")):
            if nullable:
                self._pending.append(_Item("1", "b"))
            self._struct(value, out.struct_fields(field))

    # Tagged fields.

    def _tagged(self, owner: str, fields: list[Field]) -> None:
        """Writes what is pending and the tagged fields that are not at their defaults."""
        out = self._out
        pending = list(self._pending)
        unset = " and ".join(self._surely_default(field, f"{owner}.{field.name}") for field in fields)
        with out.block(f"if {unset}:"):
            self._pending.append(_NO_TAGS)
            self._flush()
        with out.block("else:"):
            self._pending = pending
            self._flush()
            outer, values = out.name("outer"), out.name("values")
            out.line(f"{outer} = o")
            out.line(f"{values} = []")
            for field in fields:
                expression = f"{owner}.{field.name}"
                with out.block(f"if {self._differs(field, expression)}:"):
                    out.line("o = bytearray()")
                    out.line(f"{values}.append(({field.tag}, o))")
                    self._value(field, expression)
                    self._flush()
            out.line(f"o = {outer}")
            out.line(f"o += unsigned_varint(len({values}))")
            tag, value = out.name("tag"), out.name("value")
            with out.block(f"for {tag}, {value} in {values}:"):
                out.line(f"o += unsigned_varint({tag}) + unsigned_varint(len({value})) + {value}")

    def _surely_default(self, field: Field, expression: str) -> str:
        """A cheap condition that holds for values at their default, and for no other value."""
        if field.default is None:
            return f"{expression} is None"
        if field.default is Fresh.LIST or field.type.name == "bytes":
            return f"not {expression}"
        return f"{expression} == {field.default!r}"

    def _differs(self, field: Field, expression: str) -> str:
        """A condition that holds for values which are not the default of the field."""
        if field.type.is_struct and not field.type.is_array:
            inner = [self._differs(inner, f"{expression}.{inner.name}") for inner in self._out.struct_fields(field)]
            if field.absent_is_none:
                return f"{expression} is not None and ({' or '.join(inner)})"
            if field.default is Fresh.STRUCT:
                return " or ".join(f"({condition})" for condition in inner)
        if field.default is None:
            return f"{expression} is not None"
        if field.default is Fresh.LIST or field.default == b"":
            empty = f"len({expression})"
            return f"({expression} is None or {empty})" if field.nullable_versions else empty
        return f"{expression} != {field.default!r}"


def _refuse(name: str, version: int, message: object, fault: Exception) -> NoReturn:
    """Raises `EncodeError`, which names the field that cannot be written."""
    raise EncodeError(f"{name} version {version}: {first_fault(name, version, message) or fault}") from fault
