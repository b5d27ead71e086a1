"""Readers of the frames of the most frequent requests whose arrays have any number of elements.

Of such a request, all but one array and the numbers ahead of it is the same again and again: header, client id, what
follows behind the array. So it is compared, and only the rest is read; what is made of it is what its handler works
with, without the objects of the message. All positions follow from the schema file, as in `compiler_usual`, which is
for requests of one element. What is not of the shape, or broken, is left to the codec, which says so.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from barnabas.wire import catalogue, codec, headers
from barnabas.wire.classes import Message
from barnabas.wire.compiler import FORMATS, Source
from barnabas.wire.primitives import Buffer
from barnabas.wire.schema import Field

COUNT_MAX: Final = 126
"""Elements of an array in such a frame: its count is a varint of one byte, where it is a varint."""
CORRELATION_ID: Final = "correlation_id"
_HEADER_BYTES: Final = 8
"""Key, version and correlation id, ahead of the client id."""
_AHEAD_BYTES: Final = headers.SIZE_BYTES + _HEADER_BYTES

Parts = tuple[Any, ...]
"""Names of fields, and tuples of them."""


class Made(NamedTuple):
    """What is made of fields."""

    of: Callable[..., Any]
    parts: Parts
    """Its arguments: values of the fields, or tuples of such. A field that a version lacks is at its default."""


class FrameShape(NamedTuple):
    """What the frames of one request have in common."""

    name: str
    """Of the message."""
    array: str
    """The array of structures, which may hold further ones; ahead of it are numbers only."""
    fixed: frozenset[str]
    """The fields ahead of it that are always as in a sample."""
    allowed: tuple[tuple[str, tuple[int, ...]], ...]
    """The fields ahead of it that have few values, and those."""
    element: Made
    """Of each innermost structure, with the fields of those around it."""
    frame: Made
    """Of `CORRELATION_ID`, the fields ahead of the array, and the array's name: the list of all elements."""


Result = TypeVar("Result")
Read = Callable[[Buffer, int, int], Result | None]
"""(buffer, position of the frame behind its size, end) -> what is made of it; None if it is not of the shape."""


def frame_reader(shape: FrameShape, version: int, client_id: str | None, sample: Message) -> Read[Any]:
    """The reader of frames of one client in one version, which are as that of `sample`, whose array is empty.

    Raises `ValueError` for what has no such shape.
    """
    if getattr(sample, shape.array):
        raise ValueError(f"the sample has elements in {shape.array}")
    message = catalogue.message(shape.name)
    if version not in message.versions or message.api_key is None:
        raise ValueError(f"{shape.name} has no frames of version {version}")
    made, body = _maker(shape, version)
    ahead = headers.request_header(message.api_key, version, client_id)[_AHEAD_BYTES:]
    head = struct.Struct(f">ii{len(ahead)}s{body}")
    behind = b"".join(codec.encode(sample, version))[struct.calcsize(f">{body}") :]
    known = (message.api_key << 16 | version, ahead, *(getattr(sample, name) for name in sorted(shape.fixed)))
    read: Read[Any] = made(head.unpack_from, head.size, behind, *known)
    return read


def frame_reader_source(shape: FrameShape, version: int) -> str:
    """The code of what makes readers, to be looked at."""
    return "\n".join(_FrameReader(shape, version).source().lines)


@functools.cache
def _maker(shape: FrameShape, version: int) -> tuple[Callable[..., Read[Any]], str]:
    """What makes the readers of all clients, and the `struct` format of a body up to the array's elements."""
    reader = _FrameReader(shape, version)
    return reader.source().build("make"), reader.body


class _FrameReader:
    """Writes one reader. `_pending` are targets, formats and conditions of the fixed-width values that come next."""

    def __init__(self, shape: FrameShape, version: int) -> None:
        self.body = ""
        self._shape = shape
        self._out = Source(catalogue.message(shape.name), version)
        self._locals: dict[str, str] = {CORRELATION_ID: CORRELATION_ID, shape.array: "found"}
        self._pending: list[tuple[str, str, str]] = []

    def source(self) -> Source:
        out = self._out
        array = self._head()
        fixed = "".join(f", known_{name}" for name in sorted(self._shape.fixed))
        out.refer("faults", (IndexError, UnicodeDecodeError, struct.error))
        with out.block(f"def make(unpack_from, size, behind, known_key, known_ahead{fixed}):"):
            with out.block("def read(buffer, start, end):"):
                with out.block("try:"):
                    targets = ", ".join(target for target, _, _ in self._pending)
                    out.line(f"key, {CORRELATION_ID}, ahead, {targets} = unpack_from(buffer, start)")
                    self._leave_if("key != known_key", "ahead != known_ahead", *self._faults())
                    out.line("p = start + size")
                    out.line("found = []")
                    out.line("add = found.append")
                    self._elements(array, self._pending[-1][0])
                with out.block("except faults:"):
                    out.line("return None")
                self._leave_if("p > end", "buffer[p:end] != behind")
                out.line(f"return {self._made('frame', self._shape.frame)}")
            out.line("return read")
        return out

    def _head(self) -> Field:
        """Adds what is ahead of the array's elements, and its count; returns the array."""
        out, allowed = self._out, dict(self._shape.allowed)
        for field in out.plain(out.message.fields):
            if field.name == self._shape.array:
                self._count(field)
                self.body = "".join(code for _, code, _ in self._pending)
                return field
            if field.type.is_array or field.type.name not in FORMATS:
                raise ValueError(f"{field.name} is ahead of {self._shape.array}, and no number")
            name = self._local(field)
            fault = f"{name} != known_{field.name}" if field.name in self._shape.fixed else ""
            if field.name in allowed:
                fault = f"{name} not in {allowed[field.name]}"
            self._pending.append((name, FORMATS[field.type.name], fault))
        raise ValueError(f"{out.message.name} version {out.version} has no {self._shape.array}")

    def _local(self, field: Field) -> str:
        if field.name in self._locals:
            raise ValueError(f"there are several fields called {field.name}")
        name = self._locals[field.name] = self._out.name(field.name)
        return name

    def _count(self, field: Field) -> None:
        if not (field.type.is_array and field.type.is_struct):
            raise ValueError(f"{field.name} is no array of structures")
        name, is_compact = self._out.name("n"), self._out.compact(field)
        bounds = f"0 < {name} <= {COUNT_MAX + 1}" if is_compact else f"0 <= {name} <= {COUNT_MAX}"
        self._pending.append((name, self._out.length_format(field, "array"), f"not {bounds}"))

    def _elements(self, array: Field, count: str) -> None:
        """What is read again and again of an array, whose count was read."""
        out = self._out
        self._pending.clear()
        inner: Field | None = None
        count = f"{count} - 1" if out.compact(array) else count
        if not any(field.type.is_array for field in out.plain(out.struct_fields(array))):
            # Behind the frame, the buffer has others.
            self._leave_if(f"p + ({count}) * {out.element_bytes_min(array)} > end")
        with out.block(f"for _ in range({count}):"):
            for field in out.plain(out.struct_fields(array)):
                if inner is not None:
                    raise ValueError(f"{field.name} is behind an array")
                if field.type.is_array:
                    inner = field
                    self._count(field)
                    count = self._pending[-1][0]
                    self._flush()
                    self._elements(field, count)
                elif field.type.name in FORMATS:
                    self._pending.append((self._local(field), FORMATS[field.type.name], ""))
                elif field.type.name == "string":
                    self._string(field)
                else:
                    raise ValueError(f"{field.name} is neither a number nor a string nor an array")
            if out.flexible:
                tags = out.name("tags")
                self._pending.append((tags, "B", tags))
            self._flush()
            if inner is None:
                out.line(f"add({self._made('element', self._shape.element)})")

    def _string(self, field: Field) -> None:
        out = self._out
        length, is_compact = out.name("length"), out.compact(field)
        fault = f"not 0 < {length} <= {COUNT_MAX + 1}" if is_compact else f"{length} < 0"
        self._pending.append((length, out.length_format(field, "string"), fault))
        self._flush()
        out.line(f"q = p + {length}{' - 1' if is_compact else ''}")
        out.line(f'{self._local(field)} = str(buffer[p:q], "utf-8")')
        out.line("p = q")

    def _flush(self) -> None:
        """Reads the pending values, and leaves what is not of the shape."""
        if not self._pending:
            return
        out = self._out
        format_ = "".join(code for _, code, _ in self._pending)
        targets = ", ".join(target for target, _, _ in self._pending)
        if format_ == "B":
            out.line(f"{targets} = buffer[p]")
        else:
            out.line(f"{targets}, = {out.struct_method('unpack_from', format_)}(buffer, p)")
        out.line(f"p += {struct.calcsize(f'>{format_}')}")
        self._leave_if(*self._faults())
        self._pending.clear()

    def _faults(self) -> list[str]:
        return [fault for _, _, fault in self._pending if fault]

    def _leave_if(self, *faults: str) -> None:
        if faults:
            with self._out.block(f"if {' or '.join(faults)}:"):
                self._out.line("return None")

    def _made(self, name: str, made: Made) -> str:
        return f"{self._out.refer(f'make_{name}', made.of)}({', '.join(map(self._part, made.parts))})"

    def _part(self, part: Any) -> str:
        if isinstance(part, tuple):
            return f"({''.join(f'{self._part(inner)}, ' for inner in part)})"
        return self._locals.get(part) or repr(self._default(part))

    def _default(self, name: str) -> Any:
        structs = self._out.message.structs.values()
        for fields in (self._out.message.fields, *(inner.fields for inner in structs)):
            for field in fields:
                if field.name == name and self._out.version not in field.versions:
                    return field.default
        raise ValueError(f"{name} is not read")
