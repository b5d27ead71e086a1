"""TLS of one connection of the console: between what the transport has and what HTTP is.

A request and its answer are small, and a connection has one of each. So they go through OpenSSL's memory, on whatever
loop; and a connection counts, and its time runs, from when it was made, not from the end of its handshake.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

_READ_BYTES: Final = 64 * 1024
_PLAIN_HTTP: Final = "HTTP_REQUEST"
"""OpenSSL's reason where a client speaks HTTP and no TLS."""
_TO_PLAIN_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 41\r\n"
    b"Connection: close\r\n\r\nthis port speaks TLS: ask by https://...\n"
)


class ServerTls:
    """The server's end."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False
        self._in_plain = b""

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        """What the client says in these bytes, and what is to be sent to it at once. Raises ssl.SSLError for a client
        that does not speak TLS, or not ours; `to_send` has what it is to be told then.
        """
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self._is_open:
                self._object.do_handshake()
                self._is_open = True
            while piece := self._object.read(_READ_BYTES):
                said += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError as error:
            if error.reason == _PLAIN_HTTP:
                self._in_plain = _TO_PLAIN_HTTP
            raise
        return bytes(said), self.to_send()

    def secured(self, data: bytes) -> bytes:
        """The bytes as they are to be sent, with the end of TLS behind them. They are the last. Raises ssl.SSLError."""
        if data:
            self._object.write(data)
        with contextlib.suppress(ssl.SSLError):  # the client's own end has not come
            self._object.unwrap()
        return self.to_send()

    def to_send(self) -> bytes:
        """What OpenSSL has for the client, or what one is told that speaks no TLS."""
        return self._in_plain or self._outgoing.read()
