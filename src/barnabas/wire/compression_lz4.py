"""LZ4 frames as Kafka writes and reads them, around the library's raw blocks.

Kafka's frames have independent blocks of at most 64 KiB, no checksums of blocks or content and no content size. What it
reads may have larger blocks (up to 4 MiB), checksums of blocks (verified) and of the content (skipped, as Kafka does),
and a content size (skipped). Frames with dependent blocks are refused, because the Java client cannot read them.

The header ends with one byte of xxHash-32. Message format 0 had it computed over the frame's magic too, by a mistake
that became part of that format (KAFKA-3160); writing can repeat the mistake, and reading can ignore the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from barnabas.wire.compression_types import LEVELS, Buffer, CompressionType, too_large
from barnabas.wire.record_errors import InvalidRecordError

_MAGIC: Final = b"\x04\x22\x4d\x18"
_DESCRIPTOR: Final = b"\x60\x40"  # version 1, independent blocks; blocks of at most 64 KiB
_BLOCK_BYTES: Final = 64 * 1024
_END_MARK: Final = b"\x00\x00\x00\x00"
_STORED: Final = 0x80000000
_SIZE: Final = struct.Struct("<I")
_EXPANSION_MAX: Final = 256
"""A byte of a block stands for at most 255 bytes of output."""
_LANES: Final = struct.Struct("<IIII")

_FLAG_CONTENT_CHECKSUM: Final = 0x04
_FLAG_CONTENT_SIZE: Final = 0x08
_FLAG_BLOCK_CHECKSUM: Final = 0x10
_FLAG_INDEPENDENT_BLOCKS: Final = 0x20

_FAST_LEVEL: Final = LEVELS[CompressionType.LZ4].default
_HIGH_COMPRESSION_LEVEL_MAX: Final = 12  # of the library; Kafka's levels go on to 17 and mean the same there

_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_MASK: Final = 0xFFFFFFFF


def compress_lz4(data: Buffer, level: int, *, broken_checksum: bool = False) -> bytes:
    """One frame.

    Kafka's default level, 9, means the fast compressor; every other level the high compression of that level.
    """
    view = memoryview(data)
    header_checksum = xxhash32(_MAGIC + _DESCRIPTOR if broken_checksum else _DESCRIPTOR) >> 8 & 0xFF
    pieces: list[Buffer] = [_MAGIC, _DESCRIPTOR, bytes((header_checksum,))]
    for block, is_stored in _fast_blocks(view) if level == _FAST_LEVEL else _high_compression_blocks(view, level):
        pieces += (_SIZE.pack(len(block) | (_STORED if is_stored else 0)), block)
    pieces.append(_END_MARK)
    return b"".join(pieces)


def _fast_blocks(view: memoryview) -> Iterator[tuple[Buffer, bool]]:
    import cramjam

    for start in range(0, len(view), _BLOCK_BYTES):
        block = view[start : start + _BLOCK_BYTES]
        compressed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(compressed) < len(block):
            yield compressed, False
        else:
            yield block, True


def _high_compression_blocks(view: memoryview, level: int) -> Iterator[tuple[Buffer, bool]]:
    """The library has levels only for whole frames, with checksums in them; so the blocks are taken out of one."""
    import cramjam

    compressor = cramjam.lz4.Compressor(
        level=min(level, _HIGH_COMPRESSION_LEVEL_MAX), content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(view))
    frame = memoryview(bytes(compressor.finish()))
    position, block_bytes_max, has_block_checksums = _read_header(frame, ignore_checksum=True)
    while True:
        position, block, is_stored = _read_block(frame, position, block_bytes_max, has_checksum=False)
        if not block:
            return
        yield block, is_stored
        position += 4 if has_block_checksums else 0


def decompress_lz4(data: Buffer, decompressed_bytes_max: int, *, ignore_header_checksum: bool = False) -> bytearray:
    """Reads one frame. Raises as `decompress` says."""
    import cramjam

    view = memoryview(data)
    position, block_bytes_max, has_block_checksums = _read_header(view, ignore_header_checksum)
    scratch = memoryview(b"")
    output = bytearray()
    while True:
        position, block, is_stored = _read_block(view, position, block_bytes_max, has_block_checksums)
        if not block:
            return output
        if not is_stored:
            capacity = min(block_bytes_max, len(block) * _EXPANSION_MAX)
            if len(scratch) < capacity:
                scratch = memoryview(bytearray(capacity))
            try:
                written = cramjam.lz4.decompress_block_into(block, scratch, output_len=len(scratch))
            except cramjam.DecompressionError as problem:
                raise InvalidRecordError(f"lz4 data is damaged: {problem}") from None
            block = scratch[:written]
        if len(output) + len(block) > decompressed_bytes_max:
            raise too_large(CompressionType.LZ4, len(view), decompressed_bytes_max)
        output += block


def _read_block(
    view: memoryview, position: int, block_bytes_max: int, has_checksum: bool
) -> tuple[int, memoryview, bool]:
    """Where the block at `position` ends, its bytes (none for the end mark), and whether they are stored unchanged."""
    if position + 4 > len(view):
        raise InvalidRecordError("lz4 data ends before its frame does")
    (size,) = _SIZE.unpack_from(view, position)
    position += 4
    is_stored, size = bool(size & _STORED), size & ~_STORED
    if size > block_bytes_max or size > len(view) - position:
        raise InvalidRecordError(
            f"lz4 frame has a block of {size} bytes where {min(block_bytes_max, len(view) - position)} are possible"
        )
    block = view[position : position + size]
    position += size
    if has_checksum and size:
        if position + 4 > len(view):
            raise InvalidRecordError("lz4 data ends within the checksum of a block")
        if _SIZE.unpack_from(view, position)[0] != xxhash32(block):
            raise InvalidRecordError("lz4 block does not match its checksum")
        position += 4
    return position, block, is_stored


def _read_header(view: memoryview, ignore_checksum: bool) -> tuple[int, int, bool]:
    """Where the first block begins, how large a block may become, and whether blocks have checksums."""
    if len(view) < 7 or bytes(view[:4]) != _MAGIC:
        raise InvalidRecordError("lz4 data does not begin with a frame")
    flags, block_descriptor = view[4], view[5]
    if flags >> 6 != 1 or flags & 0x03:
        raise InvalidRecordError(f"lz4 frame has flags {flags:#04x}; version 1 without dictionary is known")
    if not flags & _FLAG_INDEPENDENT_BLOCKS:
        raise InvalidRecordError(
            "lz4 frame has dependent blocks, which Kafka's clients cannot read; compress with independent blocks"
        )
    block_size_code = block_descriptor >> 4
    if block_descriptor & 0x0F or not 4 <= block_size_code <= 7:
        raise InvalidRecordError(f"lz4 frame has block descriptor {block_descriptor:#04x}, which has no meaning")
    checksum_position = 14 if flags & _FLAG_CONTENT_SIZE else 6
    if len(view) <= checksum_position:
        raise InvalidRecordError("lz4 data ends within the header of its frame")
    if not ignore_checksum and view[checksum_position] != xxhash32(view[4:checksum_position]) >> 8 & 0xFF:
        raise InvalidRecordError("lz4 frame header does not match its checksum")
    return checksum_position + 1, 1 << (2 * block_size_code + 8), bool(flags & _FLAG_BLOCK_CHECKSUM)


def xxhash32(data: Buffer) -> int:
    """xxHash-32 with seed 0. Meant for headers; blocks with checksums, which no known Kafka client writes, are slow."""
    first, second, third, fourth, fifth = _PRIMES
    length = len(data)
    position = 0
    if length >= 16:
        one, two, three, four = (first + second) & _MASK, second, 0, -first & _MASK
        for lane_one, lane_two, lane_three, lane_four in _LANES.iter_unpack(data[: length - length % 16]):
            one = (one + lane_one * second) & _MASK
            one = ((one << 13 | one >> 19) * first) & _MASK
            two = (two + lane_two * second) & _MASK
            two = ((two << 13 | two >> 19) * first) & _MASK
            three = (three + lane_three * second) & _MASK
            three = ((three << 13 | three >> 19) * first) & _MASK
            four = (four + lane_four * second) & _MASK
            four = ((four << 13 | four >> 19) * first) & _MASK
        position = length - length % 16
        value = _rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)
    else:
        value = fifth
    value = (value + length) & _MASK
    while position + 4 <= length:
        value = _rotated((value + _SIZE.unpack_from(data, position)[0] * third) & _MASK, 17) * fourth & _MASK
        position += 4
    for byte in data[position:]:
        value = _rotated((value + byte * fifth) & _MASK, 11) * first & _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
