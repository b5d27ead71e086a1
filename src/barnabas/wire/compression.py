"""Compression of records: the codecs, their levels, and decompression that never exceeds a bound.

Everything here is a pure function of immutable arguments, so that it can run off the event loop; the libraries release
the GIL. They are imported by the first use of a codec.
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass
from typing import Final

from barnabas.wire.record_errors import DecompressedTooLargeError, InvalidRecordError, UnsupportedCompressionTypeError

Buffer = bytes | bytearray | memoryview

DEFAULT_DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
"""What one batch may become where the caller sets no bound of its own. A broker decompresses what is produced on its
loop: this much keeps it for about half a second, and must stay well below the session time-out.
"""

_GZIP_WINDOW_BITS: Final = 31  # a window of 32 KiB, with gzip's header and trailer
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_FIRST_STEP_BYTES: Final = 1_024
"""What a member is given first; then four times as much each time. The library copies what it was given beyond the end
of a member, so that a stream of tiny members would otherwise cost the square of its size.
"""


class CompressionType(enum.IntEnum):
    """The codec in the lowest three bits of a batch's attributes; `name.lower()` is its name in `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_attributes(cls, attributes: int) -> CompressionType:
        """Raises UnsupportedCompressionTypeError for the values that no codec has."""
        code = attributes & 0x07
        if code > 4:
            raise UnsupportedCompressionTypeError(f"compression type {code} is not known; 0 to 4 are")
        return _COMPRESSION_TYPES[code]


_COMPRESSION_TYPES: Final = tuple(CompressionType)


@dataclass(frozen=True, slots=True)
class LevelRange:
    """The values of `compression.<codec>.level` (KIP-390); `default` is allowed even outside of the range, as gzip's -1
    is.
    """

    lowest: int
    highest: int
    default: int

    def __contains__(self, level: int) -> bool:
        return self.lowest <= level <= self.highest or level == self.default


LEVELS: Final = {
    CompressionType.GZIP: LevelRange(1, 9, -1),
    CompressionType.LZ4: LevelRange(1, 17, 9),
    CompressionType.ZSTD: LevelRange(-131072, 22, 3),
}


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec and its level; without a level, Kafka's default for the codec. Raises ValueError for a level that the
    codec does not have.
    """

    type: CompressionType = CompressionType.NONE
    level: int | None = None

    def __post_init__(self) -> None:
        if self.level is None:
            return
        levels = LEVELS.get(self.type)
        if levels is None:
            raise ValueError(f"compression {self.type.name.lower()} has no levels; leave the level out")
        if self.level not in levels:
            raise ValueError(
                f"compression {self.type.name.lower()} has levels {levels.lowest} to {levels.highest}"
                f" (default {levels.default}), not {self.level}"
            )

    @property
    def effective_level(self) -> int:
        """The level to compress with; 0 for codecs without levels."""
        if self.level is not None:
            return self.level
        levels = LEVELS.get(self.type)
        return 0 if levels is None else levels.default


NO_COMPRESSION: Final = Compression()


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


def too_large(
    compression_type: CompressionType, compressed_bytes: int, decompressed_bytes_max: int
) -> DecompressedTooLargeError:
    """The error for data that would exceed its bound."""
    return DecompressedTooLargeError(
        f"{compressed_bytes} bytes of {compression_type.name.lower()} data decompress to more than the"
        f" {decompressed_bytes_max} bytes that are allowed; send smaller batches"
    )
