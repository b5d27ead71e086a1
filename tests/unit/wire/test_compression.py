"""Codecs: round trips, what other libraries wrote, bounds, and garbage."""

from __future__ import annotations

import gzip
import os
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib
from typing import Any

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.compression import compress, decompress
from barnabas.wire.compression_lz4 import xxhash32
from barnabas.wire.compression_types import LEVELS, Compression, CompressionType
from barnabas.wire.record_errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    RecordsError,
    UnsupportedCompressionTypeError,
)

CODECS = [codec for codec in CompressionType if codec is not CompressionType.NONE]
NOISE = random.Random(5).randbytes(70_000)
TEXT = b"the messenger in the castle " * 6_000
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize(
    "data", [b"", b"x", NOISE, TEXT, bytes(300_000), TEXT + NOISE], ids=lambda data: str(len(data))
)
def test_every_codec_returns_what_it_was_given(codec: CompressionType, data: bytes) -> None:
    compressed = compress(memoryview(data), Compression(codec))
    assert bytes(decompress(memoryview(bytes(compressed)), codec)) == data


@given(data=st.binary(max_size=3_000), codec=st.sampled_from(CODECS))
def test_every_codec_returns_any_bytes(data: bytes, codec: CompressionType) -> None:
    assert bytes(decompress(compress(data, Compression(codec)), codec)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_the_bound_is_exact(codec: CompressionType) -> None:
    compressed = compress(TEXT, Compression(codec))
    assert bytes(decompress(compressed, codec, len(TEXT))) == TEXT
    with pytest.raises(DecompressedTooLargeError, match="send smaller batches"):
        decompress(compressed, codec, len(TEXT) - 1)
    with pytest.raises(DecompressedTooLargeError):
        decompress(compressed, codec, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_stops_at_the_bound(codec: CompressionType) -> None:
    bomb = bytes(compress(bytes(24 * 1024 * 1024), Compression(codec)))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLargeError):
            decompress(bomb, codec, 1024 * 1024)
        assert tracemalloc.get_traced_memory()[1] < 3 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_claimed_size_alone_reserves_nothing() -> None:
    snappy = b"\xff\xff\xff\xff\x0f" + b"\x00a"
    many_blocks = b"".join((5 << 3 | 2 << 1).to_bytes(3, "little") + b"\xff" * 5 for _ in range(900))
    zstd = b"\x28\xb5\x2f\xfd\x00\x58" + many_blocks + b"\x01\x00\x00"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecordError, match="cannot become"):
            decompress(snappy, CompressionType.SNAPPY)
        with pytest.raises(InvalidRecordError):
            decompress(zstd, CompressionType.ZSTD)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("level", [1, 3, 9])
def test_levels_change_the_bytes_and_not_the_data(codec: CompressionType, level: int) -> None:
    if codec is CompressionType.SNAPPY:
        with pytest.raises(ValueError, match="no levels"):
            Compression(codec, level)
        return
    assert bytes(decompress(compress(TEXT + NOISE, Compression(codec, level)), codec)) == TEXT + NOISE


def test_a_higher_level_compresses_better() -> None:
    words = random.Random(1)
    data = b" ".join(b"%06d" % words.randrange(3_000) for _ in range(20_000))
    for codec, low, high in (
        (CompressionType.GZIP, 1, 9),
        (CompressionType.LZ4, 9, 17),
        (CompressionType.ZSTD, -5, 19),
    ):
        small = compress(data, Compression(codec, high))
        assert len(small) < len(compress(data, Compression(codec, low)))
        assert bytes(decompress(small, codec)) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (CompressionType.GZIP, 0),
        (CompressionType.GZIP, 10),
        (CompressionType.LZ4, 0),
        (CompressionType.LZ4, 18),
        (CompressionType.ZSTD, 23),
        (CompressionType.ZSTD, -131073),
        (CompressionType.NONE, 1),
    ],
)
def test_levels_that_kafka_does_not_have_are_refused(codec: CompressionType, level: int) -> None:
    with pytest.raises(ValueError, match="level"):
        Compression(codec, level)


def test_default_levels_are_kafkas() -> None:
    assert {codec.name: levels.default for codec, levels in LEVELS.items()} == {"GZIP": -1, "LZ4": 9, "ZSTD": 3}
    assert Compression(CompressionType.GZIP, -1).effective_level == -1


def test_codes_of_no_codec_are_refused() -> None:
    for code in (5, 6, 7):
        with pytest.raises(UnsupportedCompressionTypeError, match=str(code)):
            CompressionType.of_attributes(0x18 | code)


# gzip


def test_gzip_reads_the_standard_librarys_and_several_members() -> None:
    two = gzip.compress(TEXT) + gzip.compress(NOISE)
    assert bytes(decompress(two, CompressionType.GZIP)) == TEXT + NOISE
    assert bytes(decompress(two + b"trailing", CompressionType.GZIP)) == TEXT + NOISE
    with pytest.raises(DecompressedTooLargeError):
        decompress(two, CompressionType.GZIP, len(TEXT) + len(NOISE) - 1)


def test_gzip_of_many_members_takes_time_in_proportion() -> None:
    """Each member must not make the bytes after it be copied: the work is counted, not timed."""
    member = gzip.compress(b"", mtime=0)
    copied_bytes = 0

    class Counted:
        def __init__(self, window_bits: int) -> None:
            self._member = decompressobj(window_bits)

        def decompress(self, data: bytes, length_max: int) -> bytes:
            nonlocal copied_bytes
            output = self._member.decompress(data, length_max)
            copied_bytes += len(self._member.unused_data)
            return output

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

    decompressobj = zlib.decompressobj
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zlib, "decompressobj", Counted)
        assert decompress(member * 2_000 + gzip.compress(TEXT), CompressionType.GZIP) == TEXT
    assert copied_bytes < 2_000 * 2_048


@pytest.mark.parametrize("extra_bytes", range(-40, 41))
def test_gzip_members_end_wherever_the_input_is_cut(extra_bytes: int) -> None:
    first = gzip.compress(random.Random(1).randbytes(1_024 - 41 + extra_bytes), compresslevel=0)
    second = gzip.compress(NOISE * 20)
    data = first + second + b"what is no member"
    expected = gzip.decompress(first) + NOISE * 20
    assert decompress(data, CompressionType.GZIP, len(expected)) == expected
    with pytest.raises(DecompressedTooLargeError):
        decompress(data, CompressionType.GZIP, len(expected) - 1)
    with pytest.raises(InvalidRecordError):
        decompress(data[: len(first) + 10], CompressionType.GZIP)


def test_the_standard_library_reads_our_gzip() -> None:
    assert gzip.decompress(bytes(compress(TEXT, Compression(CompressionType.GZIP)))) == TEXT


# snappy


def test_snappy_is_written_in_xerials_chunks() -> None:
    compressed = bytes(compress(NOISE, Compression(CompressionType.SNAPPY)))
    assert compressed.startswith(XERIAL_HEADER)
    position, plain = 16, []
    while position < len(compressed):
        (size,) = struct.unpack_from(">i", compressed, position)
        plain.append(bytes(cramjam.snappy.decompress_raw(compressed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert [len(chunk) for chunk in plain] == [32_768, 32_768, len(NOISE) - 65_536]
    assert b"".join(plain) == NOISE


def test_snappy_reads_raw_blocks_and_joined_streams() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert bytes(decompress(raw, CompressionType.SNAPPY)) == TEXT
    joined = bytes(compress(TEXT, Compression(CompressionType.SNAPPY))) * 2
    assert bytes(decompress(joined, CompressionType.SNAPPY)) == TEXT * 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "begin with a size"),
        (b"\xff\xff\xff\xff\xff\xff", "begin with a size"),
        (b"\xff\xff\xff\xff\x7f", "begin with a size"),
        (XERIAL_HEADER + b"\x00\x00", "size of a chunk"),
        (XERIAL_HEADER[:12], "header"),
        (XERIAL_HEADER + struct.pack(">i", -1), "chunk of -1"),
        (XERIAL_HEADER + struct.pack(">i", 0), "chunk of 0"),
        (XERIAL_HEADER + struct.pack(">i", 9) + b"abc", "chunk of 9"),
        (XERIAL_HEADER[:8] + struct.pack(">ii", 2, 2) + b"abc", "version 2"),
        (b"\x05\x00a", "damaged"),
    ],
)
def test_snappy_names_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        decompress(data, CompressionType.SNAPPY)


# lz4


def test_xxhash32_has_the_published_values() -> None:
    assert [xxhash32(data) for data in (b"", b"a", b"abc", b"Nobody inspects the spammish repetition")] == [
        0x02CC5D05,
        0x550D7456,
        0x32D153FF,
        0xE2293B2F,
    ]


@given(st.binary(max_size=200))
def test_xxhash32_is_that_of_the_reference_implementation(data: bytes) -> None:
    assert xxhash32(memoryview(data)) == xxhash.xxh32(data).intdigest()


@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_reads_the_reference_implementations_frames(
    block_size: int, content_checksum: bool, block_checksum: bool, store_size: bool
) -> None:
    frame = lz4.frame.compress(
        TEXT + NOISE,
        block_size=block_size,
        block_linked=False,
        content_checksum=content_checksum,
        block_checksum=block_checksum,
        store_size=store_size,
    )
    assert bytes(decompress(frame, CompressionType.LZ4)) == TEXT + NOISE


def test_the_reference_implementation_reads_our_lz4() -> None:
    for data in (b"", TEXT, NOISE):
        assert lz4.frame.decompress(bytes(compress(data, Compression(CompressionType.LZ4)))) == data


def test_lz4_headers_are_those_of_kafka() -> None:
    correct = bytes(compress(b"abc", Compression(CompressionType.LZ4)))
    broken = bytes(compress(b"abc", Compression(CompressionType.LZ4), broken_lz4_checksum=True))
    assert correct[:7] == bytes.fromhex("04224d18604082")
    assert broken[:6] == correct[:6]
    assert broken[6] != correct[6]
    assert broken[7:] == correct[7:]
    with pytest.raises(InvalidRecordError, match="header does not match"):
        decompress(broken, CompressionType.LZ4)
    assert bytes(decompress(broken, CompressionType.LZ4, ignore_lz4_checksum=True)) == b"abc"


def test_lz4_names_what_is_wrong() -> None:
    frame = bytearray(lz4.frame.compress(TEXT, block_linked=False, block_checksum=True))
    frame[-9] ^= 1
    cases: list[tuple[bytes, str]] = [
        (b"", "begin with a frame"),
        (b"\x04\x22\x4d\x18\xa0\x40\x82", "flags"),
        (b"\x04\x22\x4d\x18\x60\x30\x82", "descriptor"),
        (b"\x04\x22\x4d\x18\x68\x40\x82", "ends within the header"),
        (b"\x04\x22\x4d\x18\x60\x40\x82", "ends before its frame"),
        (b"\x04\x22\x4d\x18\x60\x40\x82\x09\x00\x00\x00abc", "block of 9"),
        (b"\x04\x22\x4d\x18\x60\x40\x82\x03\x00\x00\x00\xff\xff\xff\x00\x00\x00\x00", "damaged"),
        (lz4.frame.compress(TEXT, block_linked=True), "dependent blocks"),
        (bytes(frame), "checksum"),
    ]
    for data, reason in cases:
        with pytest.raises(InvalidRecordError, match=reason):
            decompress(data, CompressionType.LZ4)


# zstd


@pytest.mark.parametrize("level", [1, 3, 19])
@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_reads_frames_with_and_without_their_size(level: int, checksum: bool) -> None:
    one_shot = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(TEXT + NOISE)
    stream = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compressobj()
    streamed = (
        stream.compress(TEXT)
        + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + stream.compress(NOISE)
        + stream.flush()
    )
    for data in (one_shot, streamed):
        assert bytes(decompress(data, CompressionType.ZSTD)) == TEXT + NOISE
    skippable = struct.pack("<II", 0x184D2A53, 4) + b"skip"
    joined = bytes(decompress(one_shot + skippable + streamed, CompressionType.ZSTD, 10_000_000))
    assert joined == (TEXT + NOISE) * 2


def test_the_reference_implementation_reads_our_zstd() -> None:
    assert (
        zstandard.ZstdDecompressor().decompress(bytes(compress(TEXT, Compression(CompressionType.ZSTD))), 1 << 20)
        == TEXT
    )


def test_zstd_names_what_is_wrong() -> None:
    frame = bytes(compress(TEXT, Compression(CompressionType.ZSTD)))
    cases: list[tuple[bytes, str]] = [
        (b"", "empty"),
        (b"\x28\xb5\x2f\xfd", "header of a frame"),
        (b"\x28\xb5\x2f\xfd\x00", "header of a frame"),
        (b"\x28\xb5\x2f\xfd\x00\xff", "window"),
        (b"\x28\xb5\x2f\xfd\x01\x58\x01", "dictionary"),
        (b"\x28\xb5\x2f\xfd\x00\x58\x07\x00\x00", "no known kind"),
        (b"\x28\xb5\x2f\xfd\x00\x58\x01", "before its frame"),
        (b"abcdefgh", "begin with a frame"),
        (struct.pack("<II", 0x184D2A50, 99) + b"abc", "within a frame"),
        (frame[:-3], "before its frame"),
        (frame + b"more", "begin with a frame"),
        (frame[:12] + b"\xff" * 6 + frame[18:], "zstd"),
    ]
    for data, reason in cases:
        with pytest.raises(InvalidRecordError, match=reason):
            decompress(data, CompressionType.ZSTD)


# all


@given(data=st.binary(max_size=300), codec=st.sampled_from(CODECS))
def test_random_bytes_raise_only_the_protocol_error(data: bytes, codec: CompressionType) -> None:
    try:
        decompress(data, codec, 100_000)
    except RecordsError:
        return


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_data_raises_only_the_protocol_error(codec: CompressionType) -> None:
    intact = bytes(compress(TEXT[:20_000] + NOISE[:2_000], Compression(codec)))
    chance = random.Random(int(codec))
    for _ in range(1_500):
        damaged = bytearray(intact[: chance.randrange(len(intact))] if chance.random() < 0.3 else intact)
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            assert len(decompress(bytes(damaged), codec, 1_000_000)) <= 1_000_000
        except RecordsError:
            continue


def test_importing_the_readers_loads_no_compression_library() -> None:
    program = (
        "import sys; import barnabas.wire.record_validation, barnabas.wire.control_records;"
        "print(sorted({'cramjam', 'crc32c'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "[]"
