"""Compiles what reads the usual shape of a request, and what writes the usual response.

Nearly all requests of the most frequent APIs are alike: each array of structures has the same few elements (one, or
none), what may be null is null, and there are no tagged fields. `usual_reader` makes the function that reads such a
request straight into a tuple of what varies, its holes, without any object of the message; and `response_template` the
function that writes a response of which all but a few numbers is known. Both follow from the schema file, as the codec
does (`compiler_decode`, `compiler_encode`). What is not of the shape, or broken, is left to the codec, which says so.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from barnabas.wire import catalogue, headers
from barnabas.wire.classes import Message
from barnabas.wire.compiler import FORMATS, Source
from barnabas.wire.primitives import Buffer, EncodeError, unsigned_varint
from barnabas.wire.schema import Field, Fresh

_ONE_BYTE_MAX: Final = 127
_VARINT_SHIFT_MAX: Final = 28
_CORRELATION_ID_END: Final = headers.SIZE_BYTES + 4


class UsualReader(NamedTuple):
    """What reads a request of the usual shape in one version."""

    holes: tuple[str, ...]
    """The fields whose values it gives, in their order on the wire. Records are three positions: of their length, of
    their first byte and of the byte behind them."""
    read: Callable[[Buffer, int, int], tuple[Any, ...] | None]
    """(buffer, position of the body, end) -> the values of the holes; None if the bytes are not of the shape, or are no
    such request. Strings are at most 126 bytes long where their lengths are compact."""
    read_records: Callable[[Buffer, int, int], tuple[int, int] | None] | None
    """(buffer, position of the records' length, end) -> where the records begin and end; None as above. For a request
    that is known to be of the shape up to there. None for messages without records."""


@functools.cache
def usual_reader(name: str, version: int, empty: frozenset[str] = frozenset()) -> UsualReader:
    """The reader of the message `name` in `version`; the arrays named in `empty` have no element, all others one.

    Raises `KeyError` if there is no such message, `ValueError` if it has no such version, or holds what no shape has:
    arrays of anything but structures, and structures that may be null without being so by default.
    """
    whole = _Reader(name, version, empty)
    read = whole.source().build("read")
    if not whole.has_records:
        return UsualReader(tuple(whole.holes), read, None)
    rest = _Reader(name, version, empty, is_of_records=True)
    return UsualReader(tuple(whole.holes), read, rest.source().build("read"))


def reader_source(name: str, version: int, empty: frozenset[str] = frozenset()) -> str:
    """The code of a reader, to be looked at."""
    return "\n".join(_Reader(name, version, empty).source().lines)


class _Reader:
    """Writes one reader. `_pending` are targets, formats and conditions of the fixed-width values that come next."""

    def __init__(self, name: str, version: int, empty: Collection[str], *, is_of_records: bool = False) -> None:
        message = catalogue.message(name)
        if version not in message.versions:
            raise ValueError(f"{name} has versions {message.versions}, not {version}")
        self._out = out = Source(message, version)
        self._empty = empty
        self._pending: list[tuple[str, str, str]] = []
        self._targets: list[str] = []
        self._is_of_records = is_of_records
        # What is ahead of the records is left out of a reader that begins there.
        self._is_left_out = is_of_records
        self.has_records = out.has_records(message.fields)
        self.holes: list[str] = []

    def source(self) -> Source:
        out = self._out
        out.refer("faults", (IndexError, UnicodeDecodeError, struct.error))
        with out.block("def read(buffer, p, end):"):
            with out.block("try:"):
                self._struct(out.message.fields)
                self._flush()
            with out.block("except faults:"):
                out.line("return None")
            with out.block("if p != end:"):
                out.line("return None")
            out.line(f"return ({''.join(f'{target}, ' for target in self._targets)})")
        return out

    def _struct(self, fields: tuple[Field, ...]) -> None:
        out = self._out
        for field in out.plain(fields):
            self._value(field)
        if out.flexible:
            self._constant("B", 0)

    def _value(self, field: Field) -> None:
        out, kind = self._out, field.type
        if out.nullable(field) and field.default is None and kind.name != "records":
            if kind.is_struct and not kind.is_array:
                self._constant("b", -1)
            elif out.compact(field):
                self._constant("B", 0)
            else:
                self._constant(out.length_format(field, "array" if kind.is_array else kind.name), -1)
        elif kind.is_array:
            count = 0 if field.name in self._empty else 1
            if count and not kind.is_struct:
                raise ValueError(f"{out.message.name} has no usual shape: {field.name} is an array of {kind.name}")
            self._constant(out.length_format(field, "array"), count + out.compact(field))
            if count:
                self._struct(out.struct_fields(field))
        elif kind.is_struct:
            if out.nullable(field):
                raise ValueError(f"{out.message.name} has no usual shape: {field.name} may be null or not")
            self._struct(out.struct_fields(field))
        elif kind.name in FORMATS:
            self._add(self._hole(field), FORMATS[kind.name])
        elif kind.name == "records":
            self._records(field)
        else:
            self._bytes(field, kind.name)

    def _hole(self, field: Field) -> str:
        self.holes.append(field.name)
        name = self._out.name(field.name)
        if not self._is_left_out:
            self._targets.append(name)
        return name

    def _constant(self, format_: str, value: int) -> None:
        name = self._out.name("n")
        self._add(name, format_, f"{name} != {value}")

    def _add(self, target: str, format_: str, fault: str = "") -> None:
        if not self._is_left_out:
            self._pending.append((target, format_, fault))

    def _flush(self) -> None:
        """Reads the pending values, and leaves what is not of the shape."""
        if not self._pending:
            return
        out = self._out
        format_ = "".join(code for _, code, _ in self._pending)
        targets = ", ".join(target for target, _, _ in self._pending)
        out.line(f"{targets}, = {out.struct_method('unpack_from', format_)}(buffer, p)")
        out.line(f"p += {struct.calcsize(f'>{format_}')}")
        faults = [fault for _, _, fault in self._pending if fault]
        if faults:
            with out.block(f"if {' or '.join(faults)}:"):
                out.line("return None")
        self._pending.clear()

    def _bytes(self, field: Field, type_name: str) -> None:
        """A string or bytes."""
        out = self._out
        target, length = self._hole(field), out.name("n")
        if self._is_left_out:
            return
        compact = out.compact(field)
        fault = f"not 0 < {length} <= {_ONE_BYTE_MAX}" if compact else f"{length} < 0"
        self._add(length, out.length_format(field, type_name), fault)
        self._flush()
        out.line(f"q = p + {length}{' - 1' if compact else ''}")
        out.line(f"{target} = bytes(buffer[p:q]){'.decode()' if type_name == 'string' else ''}")
        out.line("p = q")

    def _records(self, field: Field) -> None:
        out = self._out
        if field.name in self.holes:
            raise ValueError(f"{out.message.name} has no usual shape: there are records twice")
        self.holes.append(field.name)
        self._flush()
        self._is_left_out = False
        if not self._is_of_records:
            out.line("records_at = p")
            self._targets.append("records_at")
        if out.compact(field):
            out.line("length = buffer[p]")
            out.line("p += 1")
            with out.block(f"if length > {_ONE_BYTE_MAX}:"):
                out.line(f"length &= {_ONE_BYTE_MAX}")
                out.line("shift = 7")
                with out.block("while True:"):
                    out.line("byte = buffer[p]")
                    out.line("p += 1")
                    out.line(f"length |= (byte & {_ONE_BYTE_MAX}) << shift")
                    with out.block(f"if byte <= {_ONE_BYTE_MAX}:"):
                        out.line("break")
                    out.line("shift += 7")
                    with out.block(f"if shift > {_VARINT_SHIFT_MAX}:"):
                        out.line("return None")
            out.line("length -= 1")
        else:
            out.line(f"length, = {out.struct_method('unpack_from', 'i')}(buffer, p)")
            out.line("p += 4")
        with out.block("if not 0 <= length <= end - p:"):
            out.line("return None")
        out.line("records_start = p")
        out.line("records_end = p = p + length")
        self._targets += ("records_start", "records_end")


Template = Callable[..., bytes]
"""(correlation id, *values of the holes in the order in which they were named) -> the whole frame"""


def response_template(api_key: int, version: int, response: Message, holes: tuple[str, ...]) -> Template:
    """Makes frames of `response`, each with other values in the fields named in `holes`, which have a fixed width and
    stand outside of arrays with several elements. A hole that the version lacks is left out, as the encoder does.

    Raises `ValueError` for what cannot be a hole, and for tagged fields that are not at their defaults; `EncodeError`
    for null where none may be.
    """
    return _Template(api_key, version, holes).made_of(response)


@functools.cache
def _template_maker(name: str, parameters: tuple[str, ...], arguments: tuple[str, ...]) -> Callable[..., Template]:
    """Makes templates which differ in their constants only: (pack, size, *constants) -> template."""
    out = Source(catalogue.message(name), catalogue.message(name).versions.high)
    constants = "".join(f", {argument}" for argument in arguments if argument not in parameters)
    with out.block(f"def make(pack, size{constants}):"):
        with out.block(f"def template(correlation_id{''.join(f', {name}' for name in parameters)}):"):
            out.line(f"return pack(size, correlation_id{''.join(f', {name}' for name in arguments)})")
        out.line("return template")
    return out.build("make")


class _Template:
    """Writes one template: its format, the constants in it, and the names of the holes between them."""

    def __init__(self, api_key: int, version: int, holes: tuple[str, ...]) -> None:
        self._version = version
        self._holes = holes
        self._out = Source(catalogue.response(api_key), version)
        self._format: list[str] = []
        self._arguments: list[str] = []
        self._constants: list[bytes] = []
        # What is in the header behind the correlation id.
        self._constant = bytearray(headers.response_header(api_key, version)[_CORRELATION_ID_END:])

    def made_of(self, response: Message) -> Template:
        message = self._out.message
        self._struct(response, message.fields)
        self._end_constant()
        known = _field_names(self._out, message.fields)
        for hole in self._holes:
            if hole not in known:
                raise ValueError(f"{message.name} has no field {hole}")
            if self._arguments.count(hole) > 1:
                raise ValueError(f"{hole} stands in several places of this {message.name}")
        whole = struct.Struct(f">ii{''.join(self._format)}")
        make = _template_maker(message.name, self._holes, tuple(self._arguments))
        return make(whole.pack, whole.size - headers.SIZE_BYTES, *self._constants)

    def _end_constant(self) -> None:
        if self._constant:
            self._format.append(f"{len(self._constant)}s")
            self._arguments.append(self._out.name("constant"))
            self._constants.append(bytes(self._constant))
            self._constant.clear()

    def _struct(self, owner: Any, fields: tuple[Field, ...]) -> None:
        out = self._out
        for field in out.plain(fields):
            self._value(field, getattr(owner, field.name))
        if out.flexible:
            for field in out.tagged(fields):
                if not _is_default(field, getattr(owner, field.name)):
                    raise ValueError(f"{field.name} is tagged, and has no place in a template")
            self._constant.append(0)

    def _value(self, field: Field, value: Any) -> None:
        out, kind = self._out, field.type
        name = kind.name
        if field.name in self._holes:
            if kind.is_array or name not in FORMATS or name == "uuid":
                raise ValueError(f"{field.name} has no fixed width, or is an array")
            self._end_constant()
            self._format.append(FORMATS[name])
            self._arguments.append(field.name)
        elif kind.is_array:
            self._length(field, "array", value)
            for element in value or ():
                if kind.is_struct:
                    self._struct(element, out.struct_fields(field))
                else:
                    self._single(field, element)
        elif kind.is_struct:
            if out.nullable(field):
                self._constant += struct.pack(">b", -1 if value is None else 1)
            if value is not None:
                self._struct(value, out.struct_fields(field))
        else:
            self._single(field, value)

    def _single(self, field: Field, value: Any) -> None:
        name = field.type.name
        if name in FORMATS:
            self._constant += struct.pack(f">{FORMATS[name]}", value)
            return
        data = value.encode() if isinstance(value, str) else value
        self._length(field, name, data)
        self._constant += data or b""

    def _length(self, field: Field, type_name: str, value: Any) -> None:
        out = self._out
        if value is None and not (out.nullable(field) or type_name == "records"):
            raise EncodeError(f"{out.message.name} version {self._version}: {field.name} is null, and may not be")
        if out.compact(field):
            self._constant += unsigned_varint(0 if value is None else len(value) + 1)
        else:
            length = -1 if value is None else len(value)
            self._constant += struct.pack(f">{out.length_format(field, type_name)}", length)


def _field_names(out: Source, fields: tuple[Field, ...]) -> set[str]:
    """The names of the fields of a message, in all depths and of all versions."""
    found = {field.name for field in fields}
    for field in fields:
        if field.type.is_struct:
            found |= _field_names(out, out.struct_fields(field))
    return found


def _is_default(field: Field, value: Any) -> bool:
    if field.default is Fresh.LIST:
        return not value
    return value is None if field.default is Fresh.STRUCT else bool(value == field.default)
