"""One request by HTTP, for work off the loop: what it takes is bounded in time and bytes, whatever the other end does.

No redirect is followed, no proxy used.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

_CHUNK_BYTES: Final = 64 * 1024


class HttpError(OSError):
    """No answer, or one that is none."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A GET; a POST where it has a body. Times in seconds."""

    address: str
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_seconds: float = 10.0
    read_seconds: float = 10.0
    """How long the other end may be silent."""
    total_seconds: float = 30.0
    bytes_max: int = 1024 * 1024
    tls: ssl.SSLContext | None = None
    """Of https; None: the authorities of the system."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came."""

    status: int
    body: bytes = field(repr=False)


def request_http(request: HttpRequest) -> HttpAnswer:
    """Blocks, a little longer than `total_seconds` at most. Raises HttpError."""
    import http.client

    parts = urlsplit(request.address)
    host, port = parts.hostname or "", parts.port
    ends_at = time.monotonic() + request.total_seconds
    connection: http.client.HTTPConnection
    watch: threading.Timer | None = None
    if parts.scheme == "https":
        import ssl

        context = request.tls or ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, port, timeout=request.connect_seconds, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=request.connect_seconds)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.connect()
        sock = connection.sock
        sock.settimeout(min(request.read_seconds, request.total_seconds))
        # Who sends a byte now and then is never silent.
        watch = threading.Timer(request.total_seconds, _end, (sock,))
        watch.daemon = True
        watch.start()
        method = "GET" if request.body is None else "POST"
        connection.request(method, path, body=request.body, headers={"Accept": "application/json", **request.headers})
        answer = connection.getresponse()
        body = bytearray()
        while data := answer.read1(_CHUNK_BYTES):
            body += data
            if len(body) > request.bytes_max:
                raise HttpError(f"the answer of {host} has more than {request.bytes_max} bytes")
        if answer.length:
            raise HttpError(f"the answer of {host} was cut off")
        if time.monotonic() >= ends_at:  # what was cut off there looks like an end
            raise HttpError(f"the answer of {host} takes more than {request.total_seconds:g} s")
        return HttpAnswer(answer.status, bytes(body))
    except HttpError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpError(f"no answer from {host}: {str(error) or type(error).__name__}") from None
    finally:
        if watch is not None:
            watch.cancel()
        connection.close()


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
