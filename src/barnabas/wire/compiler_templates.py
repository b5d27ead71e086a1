"""Compiles what writes frames of which all but a few numbers is known, the holes, and what knows such frames again.

The codec has written the frame that they are like, or has read it; where its numbers stand follows from the schema
file. A template puts others in, a repeated reader takes them out and compares all the rest. Whatever else changes, such
as the length of a string or the count of an array, needs another template.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

from barnabas.wire import catalogue, codec, headers
from barnabas.wire.classes import Message
from barnabas.wire.compiler import FORMATS, Source
from barnabas.wire.compiler_frames import CORRELATION_ID
from barnabas.wire.primitives import Buffer, read_unsigned_varint, skip_tagged_fields
from barnabas.wire.schema import Field

_KEY_AND_VERSION_BYTES: Final = 4
_NULL_STRUCTURE: Final = 0xFF

Template = Callable[..., bytes]
"""(correlation id, *values of the holes in the order in which they were named) -> the whole frame"""


class RepeatedReader(NamedTuple):
    """Reads frames that equal a known one in all but the holes."""

    size_bytes: int
    """Of all such frames, behind their sizes."""
    read: Callable[[Buffer, int], tuple[Any, ...] | None]
    """(buffer, position of a frame of `size_bytes`) -> the values of the holes in the order of the wire, the
    correlation id first; None if another field differs."""


def request_template(
    api_key: int, version: int, client_id: str | None, request: Message, holes: tuple[str, ...]
) -> Template:
    """Makes frames of `request`, each with other values in the fields named in `holes`: numbers that stand in one
    place, not in arrays with several elements nor in tagged fields. One that the version lacks is left out, as the
    encoder does.

    Raises `ValueError` for what cannot be a hole, `EncodeError` as the codec does.
    """
    frame = b"".join(codec.request_encoder(api_key, version, client_id)(0, request))
    body_at = len(headers.request_header(api_key, version, client_id))
    layout = _Layout(catalogue.request(api_key), version, frame, body_at)
    return layout.template(headers.SIZE_BYTES + _KEY_AND_VERSION_BYTES, holes)


def response_template(api_key: int, version: int, response: Message, holes: tuple[str, ...]) -> Template:
    """As `request_template`, of a response."""
    frame = b"".join(codec.response_encoder(api_key, version)(0, response))
    layout = _Layout(catalogue.response(api_key), version, frame, len(headers.response_header(api_key, version)))
    return layout.template(headers.SIZE_BYTES, holes)


def repeated_reader(
    api_key: int, version: int, client_id: str | None, frame: bytes, holes: Collection[str]
) -> RepeatedReader:
    """The reader of requests like the one in `frame`, behind its size, which the codec or a frame reader has read.

    Raises `ValueError` for holes that are not there, or cannot be such.
    """
    body_at = len(headers.request_header(api_key, version, client_id)) - headers.SIZE_BYTES
    return _Layout(catalogue.request(api_key), version, frame, body_at).reader(_KEY_AND_VERSION_BYTES, holes)


class _Layout:
    """Where the numbers of a frame stand."""

    def __init__(self, message: Any, version: int, frame: bytes, body_at: int) -> None:
        self._out = Source(message, version)
        self._frame = frame
        self._places: dict[str, list[tuple[int, str]]] = {}
        self._struct(message.fields, body_at)

    def template(self, correlation_id_at: int, holes: tuple[str, ...]) -> Template:
        there = [hole for hole in holes if self._is_there(hole)]
        names, whole = self._around(correlation_id_at, there)
        make = _template_maker(self._out.message.name, names, holes)
        return make(whole.pack, *self._same(names, whole))

    def reader(self, correlation_id_at: int, holes: Collection[str]) -> RepeatedReader:
        lacking = sorted(hole for hole in holes if not self._is_there(hole))
        if lacking:
            raise ValueError(f"{', '.join(lacking)} is not in this {self._out.message.name}")
        names, whole = self._around(correlation_id_at, holes)
        make = _reader_maker(self._out.message.name, names)
        return RepeatedReader(whole.size, make(whole.unpack_from, *self._same(names, whole)))

    def _is_there(self, hole: str) -> bool:
        """False if the frame has no such field, for its version or for an array without elements."""
        places = self._places.get(hole, ())
        message = self._out.message
        if len(places) > 1:
            raise ValueError(f"{hole} stands in several places of this {message.name}")
        if places:
            return True
        known = [
            field
            for fields in (message.fields, *(inner.fields for inner in message.structs.values()))
            for field in fields
            if field.name == hole
        ]
        if not known:
            raise ValueError(f"{message.name} has no field {hole}")
        if any(field.type.is_array or not _is_number(field) for field in known):
            raise ValueError(f"{hole} has no fixed width, or is an array")
        return False

    def _around(self, correlation_id_at: int, holes: Collection[str]) -> tuple[tuple[str, ...], struct.Struct]:
        """The holes in the order of the wire, "" for what is between them, and the format of all."""
        places = {hole: self._places[hole][0] for hole in holes}
        places[CORRELATION_ID] = correlation_id_at, "i"
        names: list[str] = []
        formats: list[str] = []
        end = 0
        for name, (position, code) in sorted(places.items(), key=lambda item: item[1]):
            if position > end:
                names.append("")
                formats.append(f"{position - end}s")
            names.append(name)
            formats.append(code)
            end = position + struct.calcsize(f">{code}")
        if end < len(self._frame):
            names.append("")
            formats.append(f"{len(self._frame) - end}s")
        return tuple(names), struct.Struct(f">{''.join(formats)}")

    def _same(self, names: tuple[str, ...], whole: struct.Struct) -> Iterator[bytes]:
        return (value for name, value in zip(names, whole.unpack(self._frame), strict=True) if not name)

    # Through the frame, which is whole and right.

    def _struct(self, fields: tuple[Field, ...], position: int) -> int:
        """Notes the numbers of a structure; the position behind it."""
        for field in self._out.plain(fields):
            position = self._value(field, position)
        if self._out.flexible:
            position = skip_tagged_fields(self._frame, position + 1, len(self._frame), self._frame[position])
        return position

    def _value(self, field: Field, position: int) -> int:
        if field.type.is_array:
            count, position = self._length(field, "array", position)
            for _ in range(count):
                position = self._single(field, position)
            return position
        if field.type.is_struct and self._out.nullable(field):
            position += 1
            if self._frame[position - 1] == _NULL_STRUCTURE:
                return position
        elif _is_number(field):
            self._places.setdefault(field.name, []).append((position, FORMATS[field.type.name]))
        return self._single(field, position)

    def _single(self, field: Field, position: int) -> int:
        if field.type.is_struct:
            return self._struct(self._out.struct_fields(field), position)
        if field.type.name in FORMATS:
            return position + struct.calcsize(f">{FORMATS[field.type.name]}")
        length, position = self._length(field, field.type.name, position)
        return position + length

    def _length(self, field: Field, type_name: str, position: int) -> tuple[int, int]:
        """What the length says, 0 for null, and the position behind it."""
        if self._out.compact(field):
            length, position = read_unsigned_varint(self._frame, position, len(self._frame))
            return max(0, length - 1), position
        code = f">{self._out.length_format(field, type_name)}"
        return max(0, struct.unpack_from(code, self._frame, position)[0]), position + struct.calcsize(code)


def _is_number(field: Field) -> bool:
    return field.type.name in FORMATS and field.type.name != "uuid"


@functools.cache
def _template_maker(message: str, names: tuple[str, ...], holes: tuple[str, ...]) -> Callable[..., Template]:
    """Makes templates which differ in what is around the holes only: (pack, *all that) -> template."""
    out, arguments, same = _function(message, names, "same")
    with out.block(f"def make(pack, {', '.join(same)}):"):
        with out.block(f"def template({', '.join((CORRELATION_ID, *holes))}):"):
            out.line(f"return pack({', '.join(arguments)})")
        out.line("return template")
    return out.build("make")


@functools.cache
def _reader_maker(message: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """Makes readers which differ in what is around the holes only: (unpack_from, *all that) -> read."""
    out, targets, found = _function(message, names, "found")
    with out.block(f"def make(unpack_from, {', '.join(f'known_{name}' for name in found)}):"):
        with out.block("def read(buffer, start):"):
            out.line(f"{', '.join(targets)}, = unpack_from(buffer, start)")
            # Client and settings are the same more often than what is named: the last is compared first.
            with out.block(f"if {' or '.join(f'{name} != known_{name}' for name in reversed(found))}:"):
                out.line("return None")
            out.line(f"return ({''.join(f'{name}, ' for name in names if name)})")
        out.line("return read")
    return out.build("make")


def _function(message: str, names: tuple[str, ...], prefix: str) -> tuple[Source, list[str], list[str]]:
    """A function to be written, its names for all parts of a frame, and those of what is around the holes."""
    out = Source(catalogue.message(message), catalogue.message(message).versions.high)
    parts = [name or out.name(prefix) for name in names]
    return out, parts, [part for part, name in zip(parts, names, strict=True) if not name]
