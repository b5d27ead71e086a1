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
    """For each address that the name has."""
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
    """Blocks, a little longer than `total_seconds` at most; how long the system looks for a name, it says itself.
    Raises HttpError.
    """
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(request.address)
    host = parts.hostname or ""
    ends_at = time.monotonic() + request.total_seconds
    context = _context(request) if parts.scheme == "https" else None
    # Neither connects by itself: the socket is given to it. The port is told, or it would look for one in ::1.
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(host, parts.port or http.client.HTTP_PORT)
    else:
        connection = http.client.HTTPSConnection(host, parts.port or http.client.HTTPS_PORT, context=context)
    watch: threading.Timer | None = None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        sock = _connected(request, host, connection.port, ends_at)
        connection.sock = sock
        if context is not None:
            sock = connection.sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        sock.settimeout(min(request.read_seconds, request.total_seconds))
        # Who sends a byte now and then is never silent, be it in the handshake of TLS.
        watch = threading.Timer(max(0.0, ends_at - time.monotonic()), _end, (sock,))
        watch.daemon = True
        watch.start()
        if context is not None:
            sock.do_handshake()  # type: ignore[attr-defined]
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


def _connected(request: HttpRequest, host: str, port: int, ends_at: float) -> socket.socket:
    """To the first address of the host that answers. Raises OSError."""
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        left_seconds = ends_at - time.monotonic()
        if left_seconds <= 0:
            break
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(min(request.connect_seconds, left_seconds))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            failed = error
            if sock is not None:
                sock.close()
            continue
        return sock
    raise failed or TimeoutError("timed out")


def _context(request: HttpRequest) -> ssl.SSLContext:
    import ssl

    return request.tls or ssl.create_default_context()


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
