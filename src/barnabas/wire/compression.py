"""Compression of records, and decompression that never exceeds a bound.

Everything here is a pure function of immutable arguments, so that it can run off the event loop; the libraries release
the GIL. They are imported by the first use of a codec.
"""

from __future__ import annotations

import zlib
from typing import Final

from barnabas.wire.compression_types import (
    DEFAULT_DECOMPRESSED_BYTES_MAX,
    Buffer,
    Compression,
    CompressionType,
    too_large,
)
from barnabas.wire.record_errors import InvalidRecordError

_GZIP_WINDOW_BITS: Final = 31  # a window of 32 KiB, with gzip's header and trailer
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_FIRST_STEP_BYTES: Final = 1_024
"""What a member is given first; then four times as much each time. The library copies what it was given beyond the end
of a member, so that a stream of tiny members would otherwise cost the square of its size.
"""


def compress(data: Buffer, compression: Compression, *, broken_lz4_checksum: bool = False) -> Buffer:
    """Compresses as the Java client does, so that every Kafka client can read it; the data itself where the codec is
    NONE.

    `broken_lz4_checksum`: write the frame header's checksum as the message format of magic 0 has it (KAFKA-3160).
    """
    if not compression.type:
        return data
    match compression.type:
        case CompressionType.GZIP:
            compressor = zlib.compressobj(compression.effective_level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case CompressionType.SNAPPY:
            from barnabas.wire.compression_snappy import compress_snappy

            return compress_snappy(data)
        case CompressionType.LZ4:
            from barnabas.wire.compression_lz4 import compress_lz4

            return compress_lz4(data, compression.effective_level, broken_checksum=broken_lz4_checksum)
        case _:  # zstd
            from barnabas.wire.compression_zstd import compress_zstd

            return compress_zstd(data, compression.effective_level)


def decompress(
    data: Buffer,
    compression_type: CompressionType,
    decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX,
    *,
    ignore_lz4_checksum: bool = False,
) -> Buffer:
    """The bytes that were compressed; the data itself where the codec is NONE.

    Never allocates more than `decompressed_bytes_max` for the result, nor more than the input's own structure can
    justify, however large a size the data claims. Raises DecompressedTooLargeError beyond the bound and
    InvalidRecordError for data that is not of the codec.

    `ignore_lz4_checksum`: accept any checksum of the frame header, as message format 0 needs (KAFKA-3160).
    """
    if not compression_type:
        return data
    match compression_type:
        case CompressionType.GZIP:
            return _decompress_gzip(data, decompressed_bytes_max)
        case CompressionType.SNAPPY:
            from barnabas.wire.compression_snappy import decompress_snappy

            return decompress_snappy(data, decompressed_bytes_max)
        case CompressionType.LZ4:
            from barnabas.wire.compression_lz4 import decompress_lz4

            return decompress_lz4(data, decompressed_bytes_max, ignore_header_checksum=ignore_lz4_checksum)
        case _:  # zstd
            from barnabas.wire.compression_zstd import decompress_zstd

            return decompress_zstd(data, decompressed_bytes_max)


def _decompress_gzip(data: Buffer, decompressed_bytes_max: int) -> Buffer:
    """Several members one after another are one stream; what follows the last member and is none is ignored, as Java
    does.
    """
    view = memoryview(data)
    pieces: list[bytes] = []
    total_bytes = position = 0
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        step_bytes = _GZIP_FIRST_STEP_BYTES
        while not member.eof:
            if position >= len(view):
                raise InvalidRecordError("gzip data ends before its stream does")
            step = view[position : position + step_bytes]
            try:
                output = member.decompress(step, decompressed_bytes_max - total_bytes + 1)
            except zlib.error as problem:
                raise InvalidRecordError(f"gzip data is damaged: {problem}") from None
            total_bytes += len(output)
            if total_bytes > decompressed_bytes_max:
                raise too_large(CompressionType.GZIP, len(data), decompressed_bytes_max)
            pieces.append(output)
            position += len(step)
            step_bytes *= 4
        position -= len(member.unused_data)
        if bytes(view[position : position + 2]) != _GZIP_MAGIC:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
