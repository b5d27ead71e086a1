"""Writers of the frames of usual responses with records, with any number of elements, without the message's objects.

In such a response, one array of structures holds another one, whose structures have records; all fields that are not
given are at their defaults. All positions follow from the schema file, as in `compiler_frames`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from barnabas.wire import catalogue, headers
from barnabas.wire.compiler import FORMATS, Source
from barnabas.wire.primitives import Buffer
from barnabas.wire.schema import Field

JOINED_BYTES_MAX: Final = 1024
"""Records up to this size are copied between what is ahead of them and what is behind."""
_ONE_BYTE_MAX: Final = 0x7F
_RECORDS: Final = "records"


class ResponseWriter(NamedTuple):
    """What writes the responses of one version."""

    write: Callable[[int, int, Iterable[tuple[Any, ...]]], list[Buffer]]
    """(correlation id, the given field ahead of the array, elements) -> the frame. An element is the key of the outer
    structure, and the fields that are given of the inner one; those with the same key stand together. At most
    `compiler_frames.COUNT_MAX`. Records are among the buffers uncopied where they are large."""
    write_rest: Callable[..., list[Buffer]]
    """(*element) -> what follows `start` in the frame of one element."""
    start: Callable[[int, int, int], bytes]
    """(size of what follows, correlation id, the given field ahead of the array) -> the frame ahead of the array."""
    start_bytes: int
    """Of what `start` gives."""


class ResponseShape(NamedTuple):
    """Which fields are given."""

    array: str
    head: str
    """A number ahead of it, the last one."""
    key: str
    """The only field of the outer structures, besides their arrays."""
    element: tuple[str, ...]
    """Of the inner structures, in the order of the wire, the records last; a nullable array is empty or null."""


@functools.cache
def response_writer(shape: ResponseShape, api_key: int, version: int) -> ResponseWriter:
    """The writer for a version. Raises `ValueError` for what has no such shape."""
    writer = _Writer(shape, api_key, version)
    write, start = writer.source().build("write"), writer.start().build("start")
    return ResponseWriter(write, _Writer(shape, api_key, version).rest().build("rest"), start, writer.start_bytes)


class _Writer:
    def __init__(self, shape: ResponseShape, api_key: int, version: int) -> None:
        self._shape = shape
        self._message, self._version = catalogue.response(api_key), version
        self._out = out = Source(self._message, version)
        fields = out.plain(self._message.fields)
        (self._outer,) = (field for field in fields if field.name == shape.array)
        ahead = fields[: fields.index(self._outer)]
        if self._outer is not fields[-1] or not ahead or ahead[-1].name != shape.head:
            raise ValueError(f"{shape.array} is not last, or {shape.head} not ahead of it")
        tags = headers.response_header(api_key, version)[headers.SIZE_BYTES + 4 :]
        self._head_format = f"ii{len(tags)}s{''.join(FORMATS[field.type.name] for field in ahead)}"
        self._head = [repr(tags), *(repr(field.default) for field in ahead[:-1]), shape.head]
        self.start_bytes = struct.calcsize(f">{self._head_format}")
        key, self._inner = out.plain(out.struct_fields(self._outer))
        if key.name != shape.key:
            raise ValueError(f"the structures of {shape.array} have {key.name}, not {shape.key}")
        self._key = key

    def start(self) -> Source:
        out = Source(self._message, self._version)
        pack = out.struct_method("pack", self._head_format)
        with out.block(f"def start(size, correlation_id, {self._shape.head}):"):
            size = f"size + {self.start_bytes - headers.SIZE_BYTES}"
            out.line(f"return {pack}({size}, correlation_id, {', '.join(self._head)})")
        return out

    def source(self) -> Source:
        out, shape = self._out, self._shape
        count_format = out.length_format(self._outer, "array")
        count_bytes = struct.calcsize(f">{count_format}")
        with out.block(f"def write(correlation_id, {shape.head}, elements):"):
            # Grown in place, and begun anew behind records that are not copied.
            out.line(f"part = bytearray({self.start_bytes + count_bytes})")
            out.line("found = [part]")
            out.line("outer = inner = count_at = 0")
            out.line("key, counted_in = None, part")
            with out.block(f"for {', '.join((shape.key, *shape.element))} in elements:"):
                with out.block(f"if key != {shape.key}:"):
                    with out.block("if outer:"):
                        self._end_outer()
                    out.line(f"key = {shape.key}")
                    out.line("outer += 1")
                    out.line("inner = 0")
                    self._write_key()
                    out.line("counted_in, count_at = part, len(part)")
                    out.line(f"part += {bytes(count_bytes)!r}")
                out.line("inner += 1")
                self._element()
            with out.block("if outer:"):
                self._end_outer()
            if out.flexible:
                out.line("part.append(0)")
            else:
                with out.block("if not part:"):
                    out.line("found.pop()")
            out.line(f"size = (len(part) if part is found[0] else sum(map(len, found))) - {headers.SIZE_BYTES}")
            pack = out.struct_method("pack_into", self._head_format + count_format)
            count = f"outer + {int(out.compact(self._outer))}"
            out.line(f"{pack}(found[0], 0, size, correlation_id, {', '.join(self._head)}, {count})")
            out.line("return found")
        return out

    def rest(self) -> Source:
        out, shape = self._out, self._shape
        count = struct.pack(f">{out.length_format(self._outer, 'array')}", 1 + out.compact(self._outer))
        with out.block(f"def rest({', '.join((shape.key, *shape.element))}):"):
            if self._key.type.name == "uuid" and out.compact(self._inner):
                self._element("B16sB", f"2, {shape.key}, 2, ", begins="found = [part]")
            else:
                out.line(f"part = bytearray({count!r})")
                out.line("found = [part]")
                self._write_key()
                out.line(f"part += {count!r}")
                self._element()
            if out.flexible:
                out.line(f"part += {bytes(2)!r}")
            else:
                with out.block("if not part:"):
                    out.line("found.pop()")
            out.line("return found")
        return out

    def _end_outer(self) -> None:
        out = self._out
        if out.compact(self._inner):
            out.line("counted_in[count_at] = inner + 1")
        else:
            out.line(f"{out.struct_method('pack_into', 'i')}(counted_in, count_at, inner)")
        if out.flexible:
            out.line("part.append(0)")

    def _write_key(self) -> None:
        out, name = self._out, self._key.name
        if self._key.type.name == "uuid":
            out.line(f"part += {name}")
        elif self._key.type.name == "string" and not out.compact(self._key):
            out.line(f"text = {name}.encode()")
            out.line(f"part += {out.struct_method('pack', 'h')}(len(text))")
            out.line("part += text")
        else:
            raise ValueError(f"{name} is of a type that is no key here")

    def _element(self, ahead_format: str = "", ahead: str = "", begins: str = "") -> None:
        """Writes one, up to its records and with them; with what is ahead of it where it `begins` the response."""
        out, given = self._out, self._shape.element
        fields = out.plain(out.struct_fields(self._inner))
        if fields[-1].name != _RECORDS or given[-1] != _RECORDS:
            raise ValueError("the records are not last")
        format_ = "".join(self._format(field) for field in fields[:-1])
        values = [self._value(field, is_given=field.name in given) for field in fields[:-1]]
        if out.compact(fields[-1]):
            packed = f"{out.struct_method('pack', ahead_format + format_)}({ahead}{', '.join(values)})"
            out.line(f"part = bytearray({packed})" if begins else f"part += {packed}")
            if begins:
                out.line(begins)
            out.line("length = len(records) + 1")
            with out.block(f"while length > {_ONE_BYTE_MAX}:"):
                out.line(f"part.append(length & {_ONE_BYTE_MAX} | {_ONE_BYTE_MAX + 1})")
                out.line("length >>= 7")
            out.line("part.append(length)")
        else:
            out.line(f"part += {out.struct_method('pack', f'{format_}i')}({', '.join(values)}, len(records))")
        with out.block(f"if len(records) <= {JOINED_BYTES_MAX}:"):
            out.line("part += records")
            if out.flexible:
                out.line("part.append(0)")
        with out.block("else:"):
            out.line(f"part = bytearray({int(out.flexible)})")
            out.line("found += (records, part)")

    def _format(self, field: Field) -> str:
        return self._out.length_format(field, "array") if field.type.is_array else FORMATS[field.type.name]

    def _value(self, field: Field, *, is_given: bool) -> str:
        if field.type.is_array:
            empty = int(self._out.compact(field))
            return f"{empty - 1} if {field.name} is None else {empty}" if is_given else str(empty)
        return field.name if is_given else repr(field.default)
