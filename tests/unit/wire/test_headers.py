"""Header versions, and reading and beginning frames."""

from __future__ import annotations

import pytest

from barnabas.wire import codec, headers
from barnabas.wire.messages import RequestHeader, ResponseHeader
from barnabas.wire.primitives import EncodeError, ProtocolError


@pytest.mark.parametrize(
    ("api_key", "api_version", "request_header", "response_header"),
    [
        (0, 0, 1, 0),  # Produce
        (0, 8, 1, 0),
        (0, 9, 2, 1),
        (7, 0, 0, 0),  # ControlledShutdown
        (7, 1, 1, 0),
        (7, 3, 2, 1),
        (17, 1, 1, 0),  # SaslHandshake, which is never flexible
        (18, 2, 1, 0),  # ApiVersions
        (18, 3, 2, 0),
        (18, 99, 2, 0),  # from a client that is newer than we are
        (68, 0, 2, 1),  # ConsumerGroupHeartbeat, flexible from the start
    ],
)
def test_header_versions(api_key: int, api_version: int, request_header: int, response_header: int) -> None:
    assert headers.request_header_version(api_key, api_version) == request_header
    assert headers.response_header_version(api_key, api_version) == response_header


@pytest.mark.parametrize(("api_key", "api_version"), [(12, 0), (12, 4), (7, 0), (18, 99)])
@pytest.mark.parametrize("client_id", [None, "", "consumer-ä"])
def test_what_is_begun_is_read_and_is_what_the_schema_says(
    api_key: int, api_version: int, client_id: str | None
) -> None:
    version = headers.request_header_version(api_key, api_version)
    start = headers.request_header(api_key, api_version, client_id)
    data = start[headers.SIZE_BYTES :] + b"body"
    expected_id = client_id if version > 0 else None
    assert headers.read_request_header(b"??" + data, 2, 2 + len(data)) == (
        api_key,
        api_version,
        0,
        expected_id,
        2 + len(data) - len(b"body"),
    )
    header = RequestHeader(request_api_key=api_key, request_api_version=api_version, correlation_id=0)
    if version > 0:
        header.client_id = client_id
    assert data.removesuffix(b"body") == b"".join(codec.encode(header, version))


@pytest.mark.parametrize(("api_key", "api_version"), [(12, 0), (12, 4), (18, 3)])
def test_the_start_of_a_response_is_what_the_schema_says(api_key: int, api_version: int) -> None:
    start = headers.response_header(api_key, api_version)
    version = headers.response_header_version(api_key, api_version)
    assert start[headers.SIZE_BYTES :] == b"".join(codec.encode(ResponseHeader(), version))


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    data = bytes.fromhex("000c 0004 00000009 0001 63 01 07 02 ffff 0a0b")
    assert headers.read_request_header(data, 0, len(data)) == (12, 4, 9, "c", len(data) - 2)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "ends within its header"),
        ("000c 0004 0000", "ends within its header"),
        ("000c 0004 00000009", "ends within its header"),
        ("000c 0004 00000009 0002 63", "ends within its header"),
        ("000c 0000 00000009 7fff 63", "ends within its header"),
        ("000c 0004 00000009 0001 63", "ends within its header"),
        ("000c 0004 00000009 0001 63 01 07", "end within a varint"),
        ("000c 0004 00000009 0001 63 01 07 02 ff", "tagged field 7 says that it has 2 bytes, and 1 are left"),
        ("000c 0000 00000009 0001 ff", "client id of a request is not UTF-8"),
        ("0063 0000 00000009 0001 63", "API key 99, which does not exist"),
        ("ffff 0000 00000009 0001 63", "API key -1, which does not exist"),
    ],
)
def test_broken_headers_are_refused(data: str, problem: str) -> None:
    raw = bytes.fromhex(data)
    for buffer in (raw, bytearray(raw), memoryview(raw)):
        with pytest.raises(ProtocolError, match=problem):
            headers.read_request_header(buffer, 0, len(raw))


def test_a_header_that_goes_on_in_the_next_frame_is_refused() -> None:
    data = bytes.fromhex("000c 0000 00000009 0005 6162636465")
    with pytest.raises(ProtocolError, match="ends within its header"):
        headers.read_request_header(data, 0, len(data) - 1)


def test_a_client_id_that_is_too_long_cannot_be_written() -> None:
    with pytest.raises(EncodeError, match="client id of 32768 bytes"):
        headers.request_header(12, 4, "x" * 32_768)
