"""Request and response headers: which version of them a message has, and reading and writing them fast.

A frame is a 4-byte size and what it counts: a header, and a message behind it.
"""

from __future__ import annotations

import functools
import struct
from typing import Final

from barnabas.wire import catalogue
from barnabas.wire.primitives import STRING_BYTES_MAX, Buffer, EncodeError, ProtocolError, skip_tagged_fields

SIZE_BYTES: Final = 4
"""The size ahead of every frame; it does not count itself."""
API_VERSIONS_KEY: Final = 18
CONTROLLED_SHUTDOWN_KEY: Final = 7

_START = struct.Struct(">hhi")
_START_AND_LENGTH = struct.Struct(">hhih")


@functools.cache
def request_header_version(api_key: int, api_version: int) -> int:
    """The version of the header ahead of a request: 2 for a flexible one, else 1 (0 for ControlledShutdown version 0).

    The version need not be one that we know: a client may ask for a newer ApiVersions than ours. Raises `KeyError`
    for an unknown key.
    """
    flexible = catalogue.request(api_key).flexible_versions
    if flexible and api_version >= flexible.low:
        return 2
    return 0 if (api_key, api_version) == (CONTROLLED_SHUTDOWN_KEY, 0) else 1


@functools.cache
def response_header_version(api_key: int, api_version: int) -> int:
    """The version of the header ahead of a response: 1 for a flexible one, else 0.

    ApiVersions always has 0, because a client must be able to read the answer before it knows what the broker speaks.
    Raises `KeyError` for an unknown key.
    """
    flexible = catalogue.response(api_key).flexible_versions
    return int(bool(flexible) and api_version >= flexible.low and api_key != API_VERSIONS_KEY)


def read_request_header(buffer: Buffer, position: int, end: int) -> tuple[int, int, int, str | None, int]:
    """API key, API version, correlation id, client id, and the position of the request's body.

    `position` is behind the size of the frame, `end` is the frame's end. Raises `ProtocolError` if the header is
    broken or the API key unknown.
    """
    api_key = None
    try:
        api_key, api_version, correlation_id = _START.unpack_from(buffer, position)
        version = request_header_version(api_key, api_version)
        if version == 0:
            position += _START.size
            client_id = None
        else:
            _, _, _, length = _START_AND_LENGTH.unpack_from(buffer, position)
            position += _START_AND_LENGTH.size
            client_id = None
            if length >= 0:
                client_id = bytes(buffer[position : position + length]).decode()
                position += length
            if version > 1:
                tags = buffer[position]
                position += 1
                if tags:
                    position = skip_tagged_fields(buffer, position, end, tags)
    except KeyError:
        raise ProtocolError(f"a request with the API key {api_key}, which does not exist") from None
    except UnicodeDecodeError as error:
        raise ProtocolError("the client id of a request is not UTF-8, or ends early") from error
    except (struct.error, IndexError) as error:
        raise ProtocolError("a request ends within its header") from error
    if position > end:
        raise ProtocolError("a request ends within its header")
    return api_key, api_version, correlation_id, client_id, position


def request_header(api_key: int, api_version: int, client_id: str | None) -> bytes:
    """Size (0), key, version, correlation id (0), client id: the start of a frame, in which size and correlation id are
    to be set.

    Raises `EncodeError` if the client id is too long.
    """
    start = bytes(SIZE_BYTES) + _START.pack(api_key, api_version, 0)
    version = request_header_version(api_key, api_version)
    if version > 0:
        text = (client_id or "").encode()
        if len(text) > STRING_BYTES_MAX:
            raise EncodeError(f"a client id of {len(text)} bytes; at most {STRING_BYTES_MAX} are allowed")
        start += struct.pack(">h", -1 if client_id is None else len(text)) + text
    return start + b"\x00" if version > 1 else start


def response_header(api_key: int, api_version: int) -> bytes:
    """Size (0) and correlation id (0), and the byte for no tagged fields:

    the start of a frame, in which size and correlation id are to be set.
    """
    return bytes(SIZE_BYTES + 4 + response_header_version(api_key, api_version))
