"""Compiles what reads the usual shape of a message.

Nearly all messages of the most frequent APIs have one shape: each array of structures has the same few elements (one,
or none), what may be null is null, and there are no tagged fields. `usual_reader` makes the function that reads such a
message straight into a tuple of what varies, its holes, without any object of the message. It follows from the schema
file, as the codec does (`compiler_decode`). What is not of the shape, or broken, is left to the codec, which says so.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from barnabas.wire import catalogue
from barnabas.wire.compiler import FORMATS, Source
from barnabas.wire.primitives import Buffer
from barnabas.wire.schema import Field

_ONE_BYTE_MAX: Final = 127
_VARINT_SHIFT_MAX: Final = 28


class UsualReader(NamedTuple):
    """What reads a message of the usual shape in one version."""

    holes: tuple[str, ...]
    """The fields whose values it gives, in their order on the wire. Records are three positions: of their length, of
    their first byte and of the byte behind them."""
    read: Callable[[Buffer, int, int], tuple[Any, ...] | None]
    """(buffer, position of the body, end) -> the values of the holes; None if the bytes are not of the shape, or are no
    such message. Strings are at most 126 bytes long where their lengths are compact."""
    read_records: Callable[[Buffer, int, int], tuple[int, int] | None] | None
    """(buffer, position of the records' length, end) -> where the records begin and end; None as above. For a request
    that is known to be of the shape up to there. None for messages without records."""


@functools.cache
def usual_reader(name: str, version: int, empty: frozenset[str] = frozenset()) -> UsualReader:
    """The reader of the message `name` in `version`; the arrays named in `empty` have no element, or are
    null where they may be, all others have one element.

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
            if not count and out.nullable(field):
                name = out.name("n")
                fault = f"{name} > 1" if out.compact(field) else f"{name} not in (-1, 0)"
                self._add(name, out.length_format(field, "array"), fault)
                return
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
