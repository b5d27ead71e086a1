"""Records in Protocol Buffers, decoded in Spark's Python workers by the descriptor set of the source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.definition import Framing, Source
from barnabas.pipelines.protobuf_messages import message_indexes, reader_of
from barnabas.pipelines.record_decoding import Decoding
from barnabas.pipelines.spark_schema import quoted_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HEADER_BYTES: Final = 5
_VARINT_BYTES_MAX: Final = 5


def protobuf_decoding(source: Source, schema: StructType, document: str) -> Decoding:
    """Each value is read once: Spark may not repeat what it is told is not determined."""
    from pyspark.sql import functions as F  # noqa: N812

    read = value_reader(source.descriptors, source.message, source.framing)
    made = F.udf(read, schema).asNondeterministic()(F.col("value")).alias(document)
    columns = {name: F.col(f"{document}.{quoted_name(name)}") for name in schema.fieldNames()}
    return Decoding((made,), F.col(document).isNotNull(), columns)


def value_reader(
    descriptors: bytes, message: str, framing: Framing
) -> Callable[[bytes | bytearray | None], tuple[Any, ...] | None]:
    """Reads the value of a record; None for one that is no message, or, framed, one of another type."""
    wanted = list(message_indexes(descriptors, message))
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
            if found is None or found[0] != wanted:
                return None
            content = found[1]
        return kept[0](content)

    return read


def framed_content(value: bytes) -> tuple[list[int], bytes] | None:
    """Of a value in a registry's framing the place of the message in its file, and its bytes: behind a zero and the
    four of an id there are a count and as many indexes, where a single zero stands for the first message.
    """
    if len(value) <= _HEADER_BYTES or value[0]:
        return None
    place, numbers = _HEADER_BYTES, []
    count = None
    while count is None or len(numbers) < count:
        number, place = _zigzag(value, place)
        if number is None or number < 0:
            return None
        if count is None:
            count = number
            if count == 0:
                return [0], value[place:]
            if count > len(value):
                return None
        else:
            numbers.append(number)
    return numbers, value[place:]


def framed(descriptors: bytes, message: str, content: bytes) -> bytes:
    """The same with a registry's framing, of an id 0."""
    indexes = message_indexes(descriptors, message)
    path = b"\0" if indexes == (0,) else b"".join(_whole(2 * number) for number in (len(indexes), *indexes))
    return bytes(_HEADER_BYTES) + path + content


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
