"""Compiles decoders.

A compiled decoder is `decode(buffer, position, end) -> (message, position)`; it reads the message that begins at
`position` of a bytes-like `buffer` and does not go beyond `end`. It raises `ProtocolError` for whatever is wrong with
the bytes and nothing else. How it is made fast:

- Neighbours of fixed width, and the length or number of tagged fields that follows them when it is one byte (or has a
  fixed width), come from one `unpack_from`, straight into the slots of the message. A message is made without its
  `__init__`.
- A length or count of one byte is looked at in place; only longer varints and null go through a function.
- The bytes are not checked one by one. Positions only grow, so if the last is not beyond the end, none was; what was
  read past the end before that (a slice comes out short, an index or `unpack_from` raises) is never returned. Counts
  are the exception: they are held against the bytes that are left before anything is made, so that a hostile count
  allocates nothing.
- A message without `records` is decoded from a copy as `bytes`, which is cheaper to slice; one with `records` in
  place, and its `records` are a memoryview of the caller's buffer, writable if that is.

For frames that may hold very many elements there is a decoder in steps, `decode(buffer, position, end)` being a
generator that returns the same: it yields after so many elements, always decodes in place, and refuses more elements
than a message may have in all. The code is the same but for that.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from barnabas.kernel.steps import Steps
from barnabas.wire import catalogue, primitives
from barnabas.wire.classes import Message, message_class
from barnabas.wire.compiler import FORMATS, TABLE_SIZE, Source, generated
from barnabas.wire.primitives import Buffer, ProtocolError
from barnabas.wire.schema import Field, Fresh

AnyMessage = TypeVar("AnyMessage", bound=Message)
Decoder = Callable[[Buffer, int, int], tuple[AnyMessage, int]]
StepDecoder = Callable[..., Steps[tuple[Any, int]]]
"""As `Decoder`; may be given how many elements are read at most, in place of `primitives.ELEMENTS_MAX`."""
STEP_ELEMENTS: Final = 1024
"""How many elements of arrays a decoder in steps reads until it yields: about a millisecond's worth."""
NUMBERS_PER_ELEMENT: Final = 8
"""So many numbers of a long array take the room of one element, which is a structure or a string."""


@functools.cache
def decoder(name: str, version: int) -> Decoder[Any]:
    """The decoder of the message `name` in `version`.

    Raises `KeyError` if there is no such message, `ValueError` if the message has no such version.
    """
    file = catalogue.file_of(name)
    made = generated(file, name, version, "decode", _space(name, version), message_class)
    return written(name, version).build("decode") if made is None else made


@functools.cache
def step_decoder(name: str, version: int) -> StepDecoder:
    """The decoder in steps of the message `name` in `version`; raises as `decoder` does."""
    return _Writer(name, version, in_steps=True).source().build("decode")


def source(name: str, version: int, *, in_steps: bool = False) -> str:
    """The code of the decoder of a message, to be looked at."""
    return "\n".join(_Writer(name, version, in_steps=in_steps).source().lines)


def written(name: str, version: int) -> Source:
    """The decoder of a message, written but not compiled; raises as `decoder` does."""
    return _Writer(name, version).source()


def _space(name: str, version: int) -> dict[str, Any]:
    """What every decoder refers to."""
    return {
        "read_long_string": primitives.read_long_string,
        "read_long_bytes": primitives.read_long_bytes,
        "read_many": primitives.read_many,
        "read_many_in_steps": primitives.read_many_in_steps,
        "read_tag": primitives.read_tag,
        "read_unsigned_varint": primitives.read_unsigned_varint,
        "skip_tagged_fields": primitives.skip_tagged_fields,
        "skip_tagged_fields_in_steps": primitives.skip_tagged_fields_in_steps,
        "new": object.__new__,
        "repeat": itertools.repeat,
        "ProtocolError": ProtocolError,
        "too_many": _TOO_MANY,
        "faults": (IndexError, UnicodeDecodeError, struct.error, ProtocolError),
        "refuse": functools.partial(_refuse, name, version),
    }


_TOO_MANY: Final = f"more than {primitives.ELEMENTS_MAX:,} elements: make it in several requests"


class _Writer:
    """Writes one decoder. `self._pending` are targets and formats of the fixed-width values that come next."""

    def __init__(self, name: str, version: int, *, in_steps: bool = False) -> None:
        message = catalogue.message(name)
        if version not in message.versions:
            raise ValueError(f"{name} has versions {message.versions}, not {version}")
        self._out = out = Source(message, version)
        self._class = message_class(name)
        self._in_steps = in_steps
        self._in_place = in_steps or out.has_records(message.fields)
        self._pending: list[tuple[str, str]] = []

    def source(self) -> Source:
        out = self._out
        out.space.update(_space(out.message.name, out.version))
        room = f", room={primitives.ELEMENTS_MAX}" if self._in_steps else ""
        with out.block(f"def decode(buffer, position, end{room}):"):
            with out.block("try:"):
                if self._in_place:
                    out.line("b = buffer")
                    out.line("view = memoryview(b)")
                    out.line("p = position")
                else:
                    out.line("b = bytes(buffer[position:end])")
                    out.line("p = 0")
                    out.line("end -= position")
                if self._in_steps:
                    out.line(f"left = {STEP_ELEMENTS}")
                    with out.block("if False:"):  # a generator, also where there is no array
                        out.line("yield")
                out.line(f"m = new({out.refer_to('Message', ('class',), self._class)})")
                self._struct("m", out.message.fields)
            with out.block("except faults as fault:"):
                out.line("refuse(fault)")
            with out.block("if p > end:"):
                out.line("refuse(None)")
            out.line("return m, p" if self._in_place else "return m, position + p")
        return out

    def _struct(self, owner: str, fields: tuple[Field, ...]) -> None:
        """Reads the fields of a structure into the slots of the local variable `owner`."""
        out = self._out
        for field in out.plain(fields):
            self._value(field, f"{owner}.{field.name}")
        tagged = out.tagged(fields)
        count = ""
        if out.flexible:
            count = out.name("tags")
            self._pending.append((count, "B"))
        self._flush()
        for field in (*tagged, *out.absent(fields)):
            out.line(f"{owner}.{field.name} = {self._default(field)}")
        if out.flexible:
            with out.block(f"if {count}:"):
                if tagged:
                    self._tagged(owner, count, tagged)
                else:
                    self._skip_tagged(count)

    def _skip_tagged(self, count: str) -> None:
        self._out.line(
            f"p = yield from skip_tagged_fields_in_steps(b, p, end, {count})"
            if self._in_steps
            else f"p = skip_tagged_fields(b, p, end, {count})"
        )

    def _step(self, elements: str = "1") -> None:
        """Counts elements that are read, and yields after so many."""
        if self._in_steps:
            out = self._out
            out.line(f"left -= {elements}")
            with out.block("if left <= 0:"):
                out.line("yield")
                out.line(f"left = {STEP_ELEMENTS}")

    def _take_room(self, field: Field, count: str) -> None:
        """Refuses an array with which the message has too many elements."""
        if self._in_steps:
            out = self._out
            out.line(f"room -= {count}")
            with out.block("if room < 0:"):
                out.line(f'raise ProtocolError("with those of {field.name} it has " + too_many)')

    def _default(self, field: Field) -> str:
        if field.default is Fresh.LIST:
            return "[]"
        if field.default is Fresh.STRUCT:
            return f"{self._struct_class(field)}()"
        return repr(field.default)

    def _struct_class(self, field: Field) -> str:
        name = field.type.name
        return self._out.refer_to(name, ("class", name), self._class)

    def _tagged(self, owner: str, count: str, fields: list[Field]) -> None:
        out = self._out
        with out.block(f"if {count} > 127:"):
            out.line(f"{count}, p = read_unsigned_varint(b, p - 1, end)")
        tag, size, stop = out.name("tag"), out.name("size"), out.name("stop")
        out.line(f"{tag} = -1")
        with out.block(f"for _ in range({count}):"):
            out.line(f"{tag}, {size}, p = read_tag(b, p, end, {tag})")
            out.line(f"{stop} = p + {size}")
            self._step()
            word = "if"
            for field in fields:
                with out.block(f"{word} {tag} == {field.tag}:"):
                    self._value(field, f"{owner}.{field.name}")
                    self._flush()
                word = "elif"
            with out.block("else:"):
                out.line(f"p = {stop}")
            with out.block(f"if p != {stop}:"):
                out.line(
                    f'raise ProtocolError(f"tagged field {{{tag}}} does not have the {{{size}}} bytes that it says")'
                )

    def _flush(self) -> None:
        """Reads the pending values."""
        if not self._pending:
            return
        out = self._out
        targets = ", ".join(target for target, _ in self._pending)
        format_ = "".join(code for _, code in self._pending)
        if format_ == "B":
            out.line(f"{targets} = b[p]")
        else:
            comma = "," if len(self._pending) == 1 else ""
            out.line(f"{targets}{comma} = {out.struct_method('unpack_from', format_)}(b, p)")
        out.line(f"p += {struct.calcsize(f'>{format_}')}")
        self._pending.clear()

    def _value(self, field: Field, target: str) -> None:
        kind = field.type
        if kind.is_array:
            self._array(field, target)
        elif kind.is_struct:
            self._nested(field, target)
        elif kind.name in FORMATS:
            self._pending.append((target, FORMATS[kind.name]))
        else:
            self._bytes(field, kind.name, target, nullable=self._out.nullable(field))

    def _length(self, field: Field, type_name: str) -> str:
        """Reads the length ahead of a value, with all that is pending; its variable."""
        length = self._out.name("n")
        self._pending.append((length, self._out.length_format(field, type_name)))
        self._flush()
        return length

    def _long_length(self, length: str) -> None:
        """Completes a compact length of which the first byte is read; one of two bytes is put together in place."""
        out = self._out
        with out.block(f"if {length} > 127:"):
            with out.block("if b[p] < 128:"):
                out.line(f"{length} += b[p] - 1 << 7")
                out.line("p += 1")
            with out.block("else:"):
                out.line(f"{length}, p = read_unsigned_varint(b, p - 1, end)")

    def _bytes(self, field: Field, type_name: str, target: str, *, nullable: bool) -> None:
        """A string, bytes or records."""
        out = self._out
        length = self._length(field, type_name)
        if type_name == "records":
            self._records(field, length, target, nullable=nullable)
            return
        compact = out.compact(field)
        with out.block(f"if 0 < {length} < 128:" if compact else f"if {length} >= 0:"):
            out.line(f"q = p + {length}{' - 1' if compact else ''}")
            out.line(f"{target} = {self._slice(type_name)}")
            out.line("p = q")
        if compact:
            with out.block("else:"):
                out.line(f"{target}, p = read_long_{type_name}(b, p, end, {length})")
                if not nullable:
                    with out.block(f"if {target} is None:"):
                        self._refuse_null(field)
        else:
            with out.block("else:"):
                if nullable:
                    out.line(f"{target} = None")
                else:
                    self._refuse_null(field)

    def _slice(self, type_name: str) -> str:
        """The bytes from `p` to `q` as a value; as bytes object or memoryview, by what `b` is."""
        raw = "view[p:q].tobytes()" if self._in_place else "b[p:q]"
        return f"{raw}.decode()" if type_name == "string" else raw

    def _records(self, field: Field, length: str, target: str, *, nullable: bool) -> None:
        out = self._out
        if out.compact(field):
            self._long_length(length)
            out.line(f"{length} -= 1")
        with out.block(f"if {length} >= 0:"):
            out.line(f"q = p + {length}")
            out.line(f"{target} = view[p:q]")
            out.line("p = q")
        with out.block("else:"):
            if nullable:
                out.line(f"{target} = None")
            else:
                self._refuse_null(field)

    def _refuse_null(self, field: Field) -> None:
        self._out.line(f'raise ProtocolError("{field.name} is null, and may not be")')

    def _array(self, field: Field, target: str) -> None:
        out = self._out
        count = self._length(field, "array")
        compact = out.compact(field)
        name = field.type.name
        numbers = name in FORMATS and name != "uuid"
        if numbers and name != "bool":
            code = FORMATS[name]
            table = out.refer_to(f"unpack_{code}s", ("numbers", "unpack_from", code), object)
            size = struct.calcsize(f">{code}")
            if compact:
                out.line(f"{count} -= 1")
            with out.block(f"if 0 <= {count} < {TABLE_SIZE}:"):
                out.line(f"{target} = [*{table}[{count}](b, p)]")
                out.line(f"p += {count} * {size}" if size > 1 else f"p += {count}")
            with out.block("else:"):
                self._many(field, count, target, compact=compact)
            return
        if compact:
            self._long_length(count)
            out.line(f"{count} -= 1")
        self._elements(field, count, target)

    def _many(self, field: Field, count: str, target: str, *, compact: bool) -> None:
        """Null, or more numbers than the table has methods for."""
        out = self._out
        if compact:
            with out.block(f"if {count} > 126:"):
                out.line(f"{count}, p = read_unsigned_varint(b, p - 1, end)")
                out.line(f"{count} -= 1")
        with out.block(f"if {count} < 0:"):
            if out.nullable(field):
                out.line(f"{target} = None")
            else:
                self._refuse_null(field)
        with out.block("else:"):
            self._take_room(field, f"{count} // {NUMBERS_PER_ELEMENT}")
            read = "yield from read_many_in_steps" if self._in_steps else "read_many"
            out.line(f'{target}, p = {read}(b, p, end, {count}, "{FORMATS[field.type.name]}")')

    def _elements(self, field: Field, count: str, target: str) -> None:
        out = self._out
        with out.block(f"if {count} < 0:"):
            if out.nullable(field):
                out.line(f"{target} = None")
            else:
                self._refuse_null(field)
        least = out.element_bytes_min(field)
        with out.block(f"elif {count}{f' * {least}' if least > 1 else ''} > end - p:"):
            out.line(
                f'raise ProtocolError(f"{field.name} says it has {{{count}}} elements, and {{end - p}} bytes are left")'
            )
        with out.block("else:"):
            self._take_room(field, count)
            elements = out.name("elements")
            out.line(f"{target} = {elements} = []")
            element = out.name("e")
            if field.type.is_struct:
                with out.block(f"for {element} in map(new, repeat({self._struct_class(field)}, {count})):"):
                    self._struct(element, self._out.struct_fields(field))
                    out.line(f"{elements}.append({element})")
                    self._step()
                return
            with out.block(f"for _ in range({count}):"):
                if field.type.name in FORMATS:
                    self._pending.append((element, FORMATS[field.type.name]))
                    self._flush()
                else:
                    self._bytes(field, field.type.name, element, nullable=False)
                out.line(f"{elements}.append({element})")
                self._step()

    def _nested(self, field: Field, target: str) -> None:
        """A single structure, which has a byte of its own ahead of it if it may be null."""
        out = self._out
        made = out.name("s")
        if not out.nullable(field):
            self._flush()
            out.line(f"{target} = {made} = new({self._struct_class(field)})")
            self._struct(made, out.struct_fields(field))
            return
        present = out.name("present")
        self._pending.append((present, "b"))
        self._flush()
        with out.block(f"if {present} < 0:"):
            out.line(f"{target} = None")
        with out.block("else:"):
            out.line(f"{target} = {made} = new({self._struct_class(field)})")
            self._struct(made, out.struct_fields(field))


def _refuse(name: str, version: int, fault: Exception | None) -> NoReturn:
    """Raises `ProtocolError`, with what went wrong while a message was decoded; None: it ends too early."""
    if isinstance(fault, ProtocolError):
        why = str(fault)
    elif isinstance(fault, UnicodeDecodeError):
        why = "a string is not UTF-8, or ends early"
    else:
        why = "the bytes end too early"
    raise ProtocolError(f"{name} version {version}: {why}") from fault
