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
from collections.abc import Callable
from typing import Any, Final, NoReturn

from barnabas.wire import catalogue
from barnabas.wire.classes import message_class
from barnabas.wire.compiler import FORMATS, TABLE_SIZE, Source
from barnabas.wire.compiler_faults import first_fault
from barnabas.wire.primitives import STRING_BYTES_MAX, Buffer, EncodeError, unsigned_varint
from barnabas.wire.schema import Field, Fresh

RECORDS_COPIED_BYTES_MAX: Final = 1024
"""Smaller records are copied: that costs less than one more entry in the list of buffers."""

Encoder = Callable[[Any, bytearray], list[Buffer]]


@functools.cache
def encoder(name: str, version: int) -> Encoder:
    """The encoder of the message `name` in `version`.

    Raises `KeyError` if there is no such message, `ValueError` if the message has no such version.
    """
    return _Writer(name, version).source().build("encode")


def source(name: str, version: int) -> str:
    """The code of the encoder of a message, to be looked at."""
    return "\n".join(_Writer(name, version).source().lines)


class _Writer:
    """Writes one encoder. `self._pending` are expressions and formats of the fixed-width values that come next."""

    def __init__(self, name: str, version: int) -> None:
        message = catalogue.message(name)
        if version not in message.versions:
            raise ValueError(f"{name} has versions {message.versions}, not {version}")
        self._out = Source(message, version)
        self._class = message_class(name)
        self._pending: list[tuple[str, str]] = []

    def source(self) -> Source:
        out = self._out
        out.refer("unsigned_varint", unsigned_varint)
        out.refer("faults", (struct.error, TypeError, AttributeError, ValueError, OverflowError))
        out.refer("refuse", functools.partial(_refuse, out.message.name, out.version))
        with out.block("def encode(m, o):"):
            out.line("buffers = [o]")
            with out.block("try:"):
                self._struct("m", out.message.fields)
            with out.block("except faults as fault:"):
                out.line("refuse(m, fault)")
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
                self._pending.append(("", "x"))
        self._flush()
        if len(out.lines) == lines_before:
            out.line("pass")

    # Fixed width.

    def _flush(self) -> None:
        """Writes the pending values."""
        text = self._take_pending()
        if text:
            self._out.line(f"o += {text}" if not text.startswith("o.") else text)

    def _take_pending(self, *more: tuple[str, str]) -> str:
        """An expression for the bytes of the pending values and of `more`; nothing is pending afterwards."""
        values = [*self._pending, *more]
        self._pending.clear()
        if not values:
            return ""
        format_ = "".join(code for _, code in values)
        if set(format_) == {"x"}:
            return repr(bytes(len(format_)))
        arguments = ", ".join(expression for expression, _ in values if expression)
        return f"{self._out.struct_method('pack', format_)}({arguments})"

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
        self._pending.append((expression, FORMATS[type_name]))

    # Variable width.

    def _length(self, field: Field, type_name: str, length: str) -> None:
        """Writes what is pending and the length, which is the local variable `length` and already as it is to be
        written.
        """
        out = self._out
        format_ = out.length_format(field, type_name)
        if format_ != "B":
            self._pending.append((length, format_))
            self._flush()
            return
        pending = list(self._pending)
        with out.block(f"if {length} < 128:"):
            out.line(f"o += {self._take_pending((length, 'B'))}" if pending else f"o.append({length})")
        with out.block("else:"):
            if type_name == "string":
                with out.block(f"if {length} > {STRING_BYTES_MAX + 1}:"):
                    out.line('raise ValueError("too long")')
            self._pending = pending
            self._flush()
            out.line(f"o += unsigned_varint({length})")

    def _bytes(self, field: Field, type_name: str, expression: str, *, nullable: bool) -> None:
        """A string, bytes or records."""
        out = self._out
        compact = out.compact(field)
        plus = " + 1" if compact else ""
        value = expression
        if not value.isidentifier():
            value = out.name("v")
            out.line(f"{value} = {expression}")
        length = out.name("n")
        if nullable:
            with out.block(f"if {value} is None:"):
                out.line(f"{length} = {0 if compact else -1}")
                out.line(f"{value} = b''")
            with out.block("else:"):
                self._measure(type_name, value, length, plus)
        else:
            self._measure(type_name, value, length, plus)
        self._length(field, type_name, length)
        if type_name != "records":
            out.line(f"o += {value}")
            return
        with out.block(f"if {length} <= {RECORDS_COPIED_BYTES_MAX}:"):
            out.line(f"o += {value}")
        with out.block("else:"):
            out.line("o = bytearray()")
            out.line(f"buffers += {value}, o")

    def _measure(self, type_name: str, value: str, length: str, plus: str) -> None:
        if type_name == "string":
            self._out.line(f"{value} = {value}.encode()")
        self._out.line(f"{length} = len({value}){plus}")

    def _array(self, field: Field, expression: str) -> None:
        out = self._out
        plus = " + 1" if out.compact(field) else ""
        value, count = out.name("v"), out.name("n")
        out.line(f"{value} = {expression}")
        pending = list(self._pending)
        if out.nullable(field):
            with out.block(f"if {value} is None:"):
                null = ("", "x") if plus else ("-1", "i")
                out.line(f"o += {self._take_pending(null)}")
            self._pending = pending
            with out.block("else:"):
                self._elements(field, value, count, plus)
        else:
            self._elements(field, value, count, plus)

    def _elements(self, field: Field, value: str, count: str, plus: str) -> None:
        """Writes the array in the local variable `value`, which is not None."""
        out = self._out
        name = field.type.name
        if name in FORMATS and name not in ("uuid", "bool"):
            self._numbers(FORMATS[name], value, count, plus)
            return
        out.line(f"{count} = len({value}){plus}")
        self._length(field, "array", count)
        element = out.name("e")
        with out.block(f"for {element} in {value}:"):
            if field.type.is_struct:
                self._struct(element, out.struct_fields(field))
            elif name in FORMATS:
                self._fixed(name, element)
                self._flush()
            else:
                self._bytes(field, name, element, nullable=False)

    def _numbers(self, code: str, value: str, count: str, plus: str) -> None:
        out = self._out
        length_code = "B" if plus else "i"
        pending = list(self._pending)
        prefix = "".join(code for _, code in pending) + length_code
        table = out.refer(f"pack_{prefix.replace('?', 'Z')}_{code}s", _pack_table(prefix, code))
        arguments = ", ".join(expression for expression, _ in pending if expression)
        out.line(f"{count} = len({value})")
        with out.block(f"if {count} < {TABLE_SIZE}:"):
            out.line(f"o += {table}[{count}]({arguments}{', ' if arguments else ''}{count}{plus}, *{value})")
        with out.block("else:"):
            if plus:
                self._flush()
                out.line(f"o += unsigned_varint({count} + 1)")
            else:
                self._pending.append((count, "i"))
                self._flush()
            out.line(f'o += {out.refer("pack", struct.pack)}(f">{{{count}}}{code}", *{value})')

    def _nested(self, field: Field, expression: str) -> None:
        out = self._out
        if not out.nullable(field):
            self._struct_inline(field, expression)
            return
        pending = list(self._pending)
        with out.block(f"if {expression} is None:"):
            out.line(f"o += {self._take_pending(('-1', 'b'))}")
        with out.block("else:"):
            self._pending = [*pending, ("1", "b")]
            self._struct_inline(field, expression)

    def _struct_inline(self, field: Field, expression: str) -> None:
        value = self._out.name("s")
        self._out.line(f"{value} = {expression}")
        self._struct(value, self._out.struct_fields(field))

    # Tagged fields.

    def _tagged(self, owner: str, fields: list[Field]) -> None:
        """Writes what is pending and the tagged fields that are not at their defaults."""
        out = self._out
        pending = list(self._pending)
        unset = " and ".join(self._surely_default(field, f"{owner}.{field.name}") for field in fields)
        with out.block(f"if {unset}:"):
            text = self._take_pending(("", "x"))
            out.line(f"o += {text}")
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


@functools.cache
def _pack_table(prefix: str, code: str) -> tuple[Callable[..., bytes], ...]:
    """`struct.Struct(...).pack` for the format `prefix` and 0 to 15 numbers behind it."""
    return tuple(struct.Struct(f">{prefix}{count}{code}").pack for count in range(TABLE_SIZE))


def _refuse(name: str, version: int, message: object, fault: Exception) -> NoReturn:
    """Raises `EncodeError`, which names the field that cannot be written."""
    raise EncodeError(f"{name} version {version}: {first_fault(name, version, message) or fault}") from fault
