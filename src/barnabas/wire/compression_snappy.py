"""Snappy as Kafka uses it: raw blocks, or the framing of the xerial library around them.

The Java client writes xerial's framing; librdkafka and others write one raw block. Both are read. A frame is a header
of 16 bytes (a magic of eight bytes, version, lowest compatible version) and then chunks: the compressed size as a
big-endian int32, and a raw block. A header may come again in the middle, where streams were joined.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from barnabas.wire.compression_types import Buffer, CompressionType, too_large
from barnabas.wire.record_errors import InvalidRecordError

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_HEADER_BYTES: Final = len(_XERIAL_HEADER)
_XERIAL_CHUNK_BYTES: Final = 32 * 1024  # of input, as xerial's stream has by default
_INT32: Final = struct.Struct(">i")

_EXPANSION_MAX: Final = 22
"""No element of the format yields more than 64 bytes from 3, so a block cannot become more than this many times as
large.
"""


def compress_snappy(data: Buffer) -> bytes:
    """Writes xerial's framing, in chunks of 32 KiB."""
    import cramjam

    view = memoryview(data)
    pieces: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_CHUNK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_CHUNK_BYTES])
        pieces.append(_INT32.pack(len(block)))
        pieces.append(bytes(block))
    return b"".join(pieces)


def decompress_snappy(data: Buffer, decompressed_bytes_max: int) -> bytearray:
    """Reads a raw block or xerial's framing. Raises as `decompress` says."""
    import cramjam

    view = memoryview(data)
    total_bytes = 0
    for block in _blocks(view):
        size = _decompressed_bytes(block)
        if size > len(block) * _EXPANSION_MAX:
            raise InvalidRecordError(f"snappy data of {len(block)} bytes cannot become the {size} bytes that it claims")
        total_bytes += size
        if total_bytes > decompressed_bytes_max:
            raise too_large(CompressionType.SNAPPY, len(view), decompressed_bytes_max)
    output = bytearray(total_bytes)
    position = 0
    with memoryview(output) as target:
        for block in _blocks(view):
            end = position + _decompressed_bytes(block)
            try:
                written = cramjam.snappy.decompress_raw_into(block, target[position:end])
            except cramjam.DecompressionError as problem:
                raise InvalidRecordError(f"snappy data is damaged: {problem}") from None
            if written != end - position:
                raise InvalidRecordError(f"snappy data claims {end - position} bytes and holds {written}")
            position = end
    return output


def _decompressed_bytes(block: memoryview) -> int:
    """The size that a raw block begins with, an unsigned varint of at most 32 bits."""
    size = 0
    for shift, byte in zip((0, 7, 14, 21, 28), block[:5], strict=False):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if size > 0xFFFFFFFF:
                break
            return size
    raise InvalidRecordError("snappy data does not begin with a size")


def _blocks(view: memoryview) -> Iterator[memoryview]:
    """The raw blocks of the data: one, or those in the chunks of xerial's framing."""
    if bytes(view[:8]) != _XERIAL_MAGIC:
        yield view
        return
    end = len(view)
    position = 0
    while position < end:
        if bytes(view[position : position + 8]) == _XERIAL_MAGIC:
            if position + _XERIAL_HEADER_BYTES > end:
                raise InvalidRecordError("snappy data ends within the header of its framing")
            (lowest_version,) = _INT32.unpack_from(view, position + 12)
            if lowest_version > 1:
                raise InvalidRecordError(f"snappy framing needs version {lowest_version}; version 1 is known")
            position += _XERIAL_HEADER_BYTES
            continue
        if position + 4 > end:
            raise InvalidRecordError("snappy data ends within the size of a chunk")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if size <= 0 or size > end - position:
            raise InvalidRecordError(f"snappy framing has a chunk of {size} bytes where {end - position} remain")
        yield view[position : position + size]
        position += size
