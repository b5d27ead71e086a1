"""Jute primitives, and hostile bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.coordination.errors import MalformedFrameError
from barnabas.coordination.jute import Reader, pack_buffer, pack_int, pack_long, pack_string, pack_strings
from barnabas.coordination.operations import (
    Create,
    Exists,
    GetAcl,
    GetChildren,
    GetData,
    Multi,
    MultiGetChildrenNames,
    MultiGetData,
    MultiGetWritten,
    SetData,
)
from barnabas.coordination.protocol import AuthPacket, ConnectRequest, ConnectResponse, WatcherEvent, read_acls


def test_layout_is_big_endian_with_lengths_in_front() -> None:
    assert pack_int(-2) == b"\xff\xff\xff\xfe"
    assert pack_long(1) == bytes(7) + b"\x01"
    assert pack_string("ü") == b"\x00\x00\x00\x02\xc3\xbc"
    assert pack_buffer(None) == b"\xff\xff\xff\xff"
    assert pack_strings(["a", ""]) == b"\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x00"


@given(st.integers(-(2**31), 2**31 - 1), st.text(), st.none() | st.binary(), st.lists(st.text()))
def test_what_is_packed_is_read(number: int, text: str, data: bytes | None, texts: list[str]) -> None:
    reader = Reader(pack_int(number) + pack_string(text) + pack_buffer(data) + pack_strings(texts))
    assert (reader.integer(), reader.string(), reader.buffer(), reader.strings()) == (number, text, data, texts)
    reader.finish()


@pytest.mark.parametrize(
    "data", [b"", b"\x00\x00\x00", pack_int(2) + b"a", pack_int(-2), pack_int(2**31 - 1), pack_int(1) + b"\xff"]
)
def test_strings_that_do_not_fit_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        Reader(data).string()


@pytest.mark.parametrize("data", [pack_int(2**31 - 1), pack_int(-2), pack_int(1) + pack_int(-1), pack_int(1) + b"\0"])
def test_vectors_that_do_not_fit_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        Reader(data + bytes(0)).strings()


def test_reading_stops_at_the_end_that_was_given() -> None:
    with pytest.raises(MalformedFrameError):
        Reader(pack_string("abcd"), 0, 6).string()


READERS = [
    *(
        lambda reader, kind=kind: kind.read(reader)
        for kind in (ConnectRequest, ConnectResponse, WatcherEvent, AuthPacket)
    ),
    read_acls,
    *(
        lambda reader, operation=operation: operation.read(reader, "")
        for operation in (
            Create("/a", with_stat=True),
            GetData("/a"),
            GetChildren("/a"),
            Exists("/a"),
            GetAcl("/a"),
            MultiGetData(("/a", "/b")),
            MultiGetWritten(("/a", "/b")),
            MultiGetChildrenNames(("/a", "/b")),
            Multi((Create("/a"), SetData("/a", b""))),
        )
    ),
]


@given(st.sampled_from(range(len(READERS))), st.binary(max_size=200))
def test_random_bytes_raise_the_one_error_or_are_read(reader: int, data: bytes) -> None:
    try:
        READERS[reader](Reader(data))
    except MalformedFrameError:
        return
