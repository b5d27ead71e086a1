"""Variable-length integers, UUIDs, and the slow paths that compiled decoders call."""

from __future__ import annotations

import pytest

from barnabas.wire import primitives
from barnabas.wire.primitives import EncodeError, ProtocolError

VARINTS = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2**31 - 1, "ffffffff07"),
    (2**32 - 1, "ffffffff0f"),
]


@pytest.mark.parametrize(("value", "encoded"), VARINTS)
def test_unsigned_varint_both_ways(value: int, encoded: str) -> None:
    assert primitives.unsigned_varint(value).hex() == encoded
    data = b"\xff" + bytes.fromhex(encoded) + b"\xff"
    assert primitives.read_unsigned_varint(data, 1, len(data) - 1) == (value, len(data) - 1)


@pytest.mark.parametrize("value", [-1, 2**32])
def test_unsigned_varint_outside_32_bits_cannot_be_written(value: int) -> None:
    with pytest.raises(EncodeError, match=str(value)):
        primitives.unsigned_varint(value)


@pytest.mark.parametrize(
    ("encoded", "problem"),
    [
        ("", "the bytes end within a varint that begins at byte 0"),
        ("80", "the bytes end within"),
        ("ffffffff", "the bytes end within"),
        ("ffffffff1f", "longer than 32 bits"),
        ("8080808080", "longer than 32 bits"),
        ("808080808001", "longer than 32 bits"),
    ],
)
def test_broken_varints_are_refused(encoded: str, problem: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(ProtocolError, match=problem):
        primitives.read_unsigned_varint(data, 0, len(data))


def test_a_varint_is_not_read_beyond_the_end_of_the_frame() -> None:
    with pytest.raises(ProtocolError, match="end within"):
        primitives.read_unsigned_varint(b"\x80\x01", 0, 1)


def test_tagged_fields_are_skipped_by_their_sizes() -> None:
    data = bytes.fromhex("02" + "0003616263" + "8101" + "00" + "77")
    assert primitives.skip_tagged_fields(data, 1, len(data), data[0]) == len(data) - 1


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("0100", "end within a varint"),
        ("010005aa", "tagged field 0 says that it has 5 bytes, and 1 are left"),
        ("0205000500", "tag 5 comes after tag 5"),
        ("0205000300", "tag 3 comes after tag 5"),
        ("ffffffff0f0000", "end within a varint"),
    ],
)
def test_broken_tagged_fields_are_refused(section: str, problem: str) -> None:
    data = bytes.fromhex(section)
    with pytest.raises(ProtocolError, match=problem):
        primitives.skip_tagged_fields(data, 1, len(data), data[0])
