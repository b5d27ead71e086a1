"""Records in Protocol Buffers, read in Spark's Python workers by the descriptor set of the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.pipelines.definition import Framing
from barnabas.pipelines.protobuf_messages import columns_of_message, message_indexes, reader_of
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA

OTHER: Final = "_barnabas_other"
"""The field behind a message's that is true for a record of another message, of a source that leaves those out."""
DEPTH_MAX: Final = 100
"""How deep a message may be in others."""
_HEADER_BYTES: Final = 5
_VARINT_BYTES_MAX: Final = 5
Places = frozenset[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class KnownPlaces:
    """Where the message is in the schemas of a registry, by their ids; empty where one does not have it.

    A value with another id is none where this `is_careful`, and else an error, which names it behind `mark`.
    """

    mark: str
    by_id: Mapping[int, Places]
    is_careful: bool


class UnknownSchemaError(Exception):
    """A record has a schema that the query does not know."""


def value_reader(
    descriptors: bytes,
    message: str,
    framing: Framing,
    known: KnownPlaces | None = None,
    *,
    tells_others: bool = False,
) -> Callable[[bytes | bytearray | None], tuple[Any, ...] | None]:
    """Reads the value of a record; None for one that is no message, or, framed, one of another type.

    With `tells_others` a row has OTHER behind its columns, and a message of another type is a row of nulls.
    """
    places = frozenset(message_indexes(descriptors, message, counts_maps=each) for each in (False, True))
    width = len(columns_of_message(descriptors, message))
    kept: list[Callable[[bytes], tuple[Any, ...] | None]] = []

    def read(value: bytes | bytearray | None) -> tuple[Any, ...] | None:
        if value is None:
            return None
        if not kept:
            # Google's classes cannot be sent to a worker: each makes its own.
            kept.append(reader_of(descriptors, message))
        content = bytes(value)
        if framing is Framing.CONFLUENT:
            found = framed_content(content)
            if found is None:
                return None
            schema_id, place, content = found
            wanted = places if known is None else known.by_id.get(schema_id)
            if wanted is None:
                if known is None or known.is_careful:
                    return None
                raise UnknownSchemaError(f"{UNKNOWN_SCHEMA}{known.mark}:{schema_id}")
            if tuple(place) not in wanted:
                return (*(None for _ in range(width)), True) if tells_others else None
        row = kept[0](content)
        return row if row is None or not tells_others else (*row, False)

    return read


def framed_content(value: bytes) -> tuple[int, list[int], bytes] | None:
    """Of a value in a registry's framing the id of its schema, the place of the message in its file, and its bytes:
    behind a zero and the four of the id there are a count and as many indexes, in zigzag, where a single zero stands
    for the first message.
    """
    if len(value) <= _HEADER_BYTES or value[0]:
        return None
    schema_id = int.from_bytes(value[1:_HEADER_BYTES], "big")
    count, place = _zigzag(value, _HEADER_BYTES)
    if count == 0:
        return schema_id, [0], value[place:]
    if count is None or not 0 < count <= DEPTH_MAX:
        return None
    numbers = []
    for _ in range(count):
        number, place = _zigzag(value, place)
        if number is None or number < 0:
            return None
        numbers.append(number)
    return schema_id, numbers, value[place:]


def framed(descriptors: bytes, message: str, content: bytes, schema_id: int = 0) -> bytes:
    """The same with a registry's framing, by the places of the descriptor."""
    indexes = message_indexes(descriptors, message)
    path = b"\0" if indexes == (0,) else b"".join(_whole(2 * number) for number in (len(indexes), *indexes))
    return b"\0" + schema_id.to_bytes(4, "big") + path + content


def _whole(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _zigzag(value: bytes, place: int) -> tuple[int | None, int]:
    number = 0
    for shift in range(_VARINT_BYTES_MAX):
        if place >= len(value):
            return None, place
        number |= (value[place] & 0x7F) << (7 * shift)
        place += 1
        if value[place - 1] < 0x80:
            return (number >> 1) ^ -(number & 1), place
    return None, place
