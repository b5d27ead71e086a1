"""Bodies of requests against bytes written by hand, and the results of multis."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.coordination.errors import (
    BadVersionError,
    MalformedFrameError,
    MultiFailedError,
    NoNodeError,
    RuntimeInconsistencyError,
)
from barnabas.coordination.jute import INT, Reader, pack_buffer, pack_string, pack_strings
from barnabas.coordination.operations import (
    Check,
    Create,
    Created,
    Delete,
    GetData,
    Multi,
    MultiGetChildrenNames,
    MultiGetData,
    MultiGetWritten,
    MultiRead,
    Operation,
    SetData,
    WrittenData,
    ZnodeData,
    without_chroot,
)
from barnabas.coordination.protocol import MULTI_END, MULTI_HEADER, CreateMode, OpCode, Stat

STAT = Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
OPEN = bytes.fromhex("00000001 0000001f 00000005") + b"world" + bytes.fromhex("00000006") + b"anyone"


@pytest.mark.parametrize(
    ("operation", "op_code", "body"),
    [
        (Create("/a", b"x"), 1, b"\0\0\0\4/r/a\0\0\0\1x" + OPEN + bytes(4)),
        (Create("/a", None, (), with_stat=True), 15, b"\0\0\0\4/r/a\xff\xff\xff\xff" + bytes(8)),
        (Create("/a", b"", mode=CreateMode.CONTAINER), 19, b"\0\0\0\4/r/a" + bytes(4) + OPEN + b"\0\0\0\4"),
        (
            Create("/a", b"", mode=CreateMode.PERSISTENT_WITH_TTL, ttl_ms=258),
            21,
            b"\0\0\0\4/r/a" + bytes(4) + OPEN + b"\0\0\0\5" + bytes(6) + b"\1\2",
        ),
        (Create("/", b"", mode=CreateMode.PERSISTENT_SEQUENTIAL), 1, b"\0\0\0\3/r/" + bytes(4) + OPEN + b"\0\0\0\2"),
        (Delete("/", 3), 2, b"\0\0\0\2/r\0\0\0\3"),
        (SetData("/a", b"x"), 5, b"\0\0\0\4/r/a\0\0\0\1x\xff\xff\xff\xff"),
        (GetData("/a"), 4, b"\0\0\0\4/r/a\0"),
        (GetData("/a", print), 4, b"\0\0\0\4/r/a\1"),
        (Check("/a", 1), 13, b"\0\0\0\4/r/a\0\0\0\1"),
        (
            Multi((Delete("/a"), Check("/a", 1))),
            14,
            (
                b"\0\0\0\2\0\xff\xff\xff\xff\0\0\0\4/r/a\xff\xff\xff\xff"
                b"\0\0\0\x0d\0\xff\xff\xff\xff\0\0\0\4/r/a\0\0\0\1"
                b"\xff\xff\xff\xff\1\xff\xff\xff\xff"
            ),
        ),
        (
            MultiGetChildrenNames(("/a",)),
            22,
            b"\0\0\0\x08\0\xff\xff\xff\xff\0\0\0\4/r/a\0\xff\xff\xff\xff\1\xff\xff\xff\xff",
        ),
    ],
)
def test_bodies(operation: Operation[Any], op_code: int, body: bytes) -> None:
    assert (operation.op_code, operation.body("/r")) == (op_code, body)


def _result(op_code: int, body: bytes = b"", code: int = 0) -> bytes:
    return MULTI_HEADER.pack(op_code, False, code) + body


def _error(code: int) -> bytes:
    return _result(OpCode.ERROR, INT.pack(code), code)


MULTI = Multi((Create("/a"), Create("/b", with_stat=True), SetData("/a", b""), Delete("/b")))


def test_results_of_a_multi_that_happened() -> None:
    body = (
        _result(OpCode.CREATE, pack_string("/r/a"))
        + _result(OpCode.CREATE2, pack_string("/r/b") + STAT.pack())
        + _result(OpCode.SET_DATA, STAT.pack())
        + _result(OpCode.DELETE)
        + MULTI_END
    )
    assert MULTI.read(Reader(body), "/r") == [Created("/a", None), Created("/b", STAT), STAT, None]


def test_results_of_a_multi_that_failed() -> None:
    body = _error(0) + _error(-103) + _error(-2) + _error(-2) + MULTI_END
    with pytest.raises(MultiFailedError) as caught:
        MULTI.read(Reader(body), "/r")
    kinds = [RuntimeInconsistencyError, BadVersionError, RuntimeInconsistencyError, RuntimeInconsistencyError]
    assert [type(outcome) for outcome in caught.value.outcomes] == kinds
    assert (caught.value.index, caught.value.error.path) == (1, "/b")


def test_results_of_reads() -> None:
    found = _result(OpCode.GET_DATA, pack_buffer(b"x") + STAT.pack())
    null = _result(OpCode.GET_DATA, pack_buffer(None) + STAT.pack())
    outcomes = MultiGetData(("/a", "/b", "/c")).read(Reader(found + _error(-101) + null + MULTI_END), "")
    assert (outcomes[0], type(outcomes[1]), outcomes[2]) == ((b"x", STAT), NoNodeError, (None, STAT))
    outcomes = MultiGetWritten(("/a", "/b", "/c")).read(Reader(found + _error(-101) + null + MULTI_END), "")
    assert (outcomes[0], type(outcomes[1]), outcomes[2]) == ((b"x", 5, 2), NoNodeError, (None, 5, 2))
    names = _result(OpCode.GET_CHILDREN, pack_strings(["x", "y"]))
    outcomes = MultiGetChildrenNames(("/a", "/b")).read(Reader(names + _error(-101) + MULTI_END), "")
    assert (outcomes[0], type(outcomes[1])) == (["x", "y"], NoNodeError)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(MULTI_END, id="too few"),
        pytest.param(_result(OpCode.GET_DATA, pack_buffer(b"x") + STAT.pack()) * 2 + MULTI_END, id="too many"),
        pytest.param(_result(OpCode.DELETE) + MULTI_END, id="another operation"),
        pytest.param(_result(OpCode.GET_DATA, INT.pack(2**31 - 1)), id="length"),
        pytest.param(_result(OpCode.GET_DATA, INT.pack(-7) + STAT.pack()) + MULTI_END, id="negative length"),
        pytest.param(_result(OpCode.GET_DATA, pack_buffer(b"x")), id="no stat"),
    ],
)
@pytest.mark.parametrize("kind", [MultiGetData, MultiGetWritten])
def test_results_that_do_not_fit_are_refused(kind: type[MultiRead[Any]], body: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        kind(("/a",)).read(Reader(body), "")


RESULTS = st.one_of(
    st.binary(max_size=30).map(lambda data: _result(OpCode.GET_DATA, pack_buffer(data) + STAT.pack())),
    st.just(_result(OpCode.GET_DATA, pack_buffer(None) + STAT.pack())),
    st.sampled_from([-101, -102, -4]).map(_error),
    st.just(_result(OpCode.DELETE)),
    st.just(MULTI_END),
)


@given(st.lists(RESULTS, max_size=5), st.integers(0, 5), st.integers(0, 40), st.binary(max_size=20))
def test_whole_stats_or_a_part_of_them_are_read_of_the_same_results(
    results: list[bytes], count: int, cut: int, behind: bytes
) -> None:
    whole = b"".join(results) + MULTI_END
    # The frame ends before the buffer does.
    body, end = whole + behind, max(0, len(whole) - (cut if cut > 20 else 0))
    paths = tuple(f"/{number}" for number in range(count))
    found: list[Any] = []
    for kind in (MultiGetData, MultiGetWritten):
        reader = Reader(body, 0, end)
        try:
            outcomes = kind(paths).read(reader, "")
        except MalformedFrameError:
            found.append(None)
            continue
        found.append(
            [
                (each.data, each.stat.version, each.stat.mzxid)
                if isinstance(each, ZnodeData)
                else each
                if isinstance(each, WrittenData)
                else repr(each)
                for each in outcomes
            ]
            + [reader.position]
        )
    assert found[0] == found[1]


def test_chroots_are_taken_off_whole_names_only() -> None:
    assert without_chroot("/r", "/r/a") == "/a"
    assert without_chroot("/r", "/r") == "/"
    assert without_chroot("/r", "/rest") == "/rest"
    assert without_chroot("", "/a") == "/a"
