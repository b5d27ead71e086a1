"""Zstandard frames (KIP-110): the library does the work, and the frames' own structure bounds the memory.

A frame says at the head of each block how large the block is in the frame, and no block yields more than 128 KiB. So a
walk over the blocks' headers, without decompressing, bounds the result; that many bytes, or as many as are allowed, are
reserved, and no more are ever written.
"""

from __future__ import annotations

import mmap
from typing import Final

from barnabas.wire.compression_types import Buffer, CompressionType, too_large
from barnabas.wire.record_errors import InvalidRecordError

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGIC_MIN: Final = 0x184D2A50
_SKIPPABLE_MAGIC_MAX: Final = 0x184D2A5F
_BLOCK_BYTES_MAX: Final = 128 * 1024
_WINDOW_BYTES_MAX: Final = 1 << 27  # the library's own limit, and that of the Java client
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_SMALL_BYTES: Final = 256 * 1024
_RAW, _RUN, _COMPRESSED = 0, 1, 2


def compress_zstd(data: Buffer, level: int) -> bytes:
    """One frame."""
    import cramjam

    return bytes(cramjam.zstd.compress(data, level=level))


def decompress_zstd(data: Buffer, decompressed_bytes_max: int) -> Buffer:
    """Reads one or more frames. Raises as `decompress` says."""
    import cramjam

    view = memoryview(data)
    bound = _bound_of_frames(view)
    try:
        if bound <= min(_SMALL_BYTES, decompressed_bytes_max):
            output = bytearray(bound)
            del output[cramjam.zstd.decompress_into(view, output) :]
            return output
        # Anonymous memory costs nothing until it is written, so a bound that is far too high costs nothing.
        with mmap.mmap(-1, max(min(bound, decompressed_bytes_max), 1)) as area:
            with memoryview(area) as target:
                written = cramjam.zstd.decompress_into(view, target)
            return area[:written]
    except cramjam.DecompressionError as problem:
        # The library reports a full output like any other failure; where there was room for all that the blocks can
        # hold, it is damage.
        if bound > decompressed_bytes_max:
            raise too_large(CompressionType.ZSTD, len(view), decompressed_bytes_max) from None
        raise InvalidRecordError(f"zstd data is damaged: {problem}") from None


def _bound_of_frames(view: memoryview) -> int:
    position = 0
    bound = 0
    if not view:
        raise InvalidRecordError("zstd data is empty")
    while position < len(view):
        if bytes(view[position : position + 4]) == _MAGIC:
            position, frame_bound = _bound_of_frame(view, position)
            bound += frame_bound
            continue
        magic = int.from_bytes(view[position : position + 4], "little")
        if position + 8 > len(view) or not _SKIPPABLE_MAGIC_MIN <= magic <= _SKIPPABLE_MAGIC_MAX:
            raise InvalidRecordError("zstd data does not begin with a frame")
        position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
        if position > len(view):
            raise InvalidRecordError("zstd data ends within a frame")
    return bound


def _bound_of_frame(view: memoryview, start: int) -> tuple[int, int]:
    """Where the frame that begins at `start` ends, and how many bytes it can become at most."""
    position = start + 4
    if position >= len(view):
        raise InvalidRecordError("zstd data ends within the header of a frame")
    descriptor = view[position]
    position += 1
    is_single_segment = bool(descriptor & 0x20)
    if not is_single_segment:
        if position >= len(view):
            raise InvalidRecordError("zstd data ends within the header of a frame")
        window = view[position]
        window_bytes = (1 << (10 + (window >> 3))) // 8 * (8 + (window & 7))
        if window_bytes > _WINDOW_BYTES_MAX:
            raise InvalidRecordError(
                f"zstd frame needs a window of {window_bytes} bytes; {_WINDOW_BYTES_MAX} are the most"
            )
        position += 1
    if descriptor & 0x03:
        raise InvalidRecordError("zstd frame needs a dictionary; Kafka has none")
    size_code = descriptor >> 6
    position += 1 if is_single_segment and size_code == 0 else _CONTENT_SIZE_BYTES[size_code]
    bound = 0
    is_last = False
    while not is_last:
        if position + 3 > len(view):
            raise InvalidRecordError("zstd data ends before its frame does")
        block = int.from_bytes(view[position : position + 3], "little")
        position += 3
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind > _COMPRESSED or size > _BLOCK_BYTES_MAX:
            raise InvalidRecordError("zstd frame has a block of no known kind or size")
        bound += _BLOCK_BYTES_MAX if kind == _COMPRESSED else size
        position += 1 if kind == _RUN else size
    if descriptor & 0x04:
        position += 4
    if position > len(view):
        raise InvalidRecordError("zstd data ends before its frame does")
    return position, bound
