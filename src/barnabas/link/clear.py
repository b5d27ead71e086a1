"""What is secured by `link.tls` and does not speak Kafka's protocol: ZooKeeper's, and the HTTP of the metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from barnabas.link.connection import Connection


class Plain(Protocol):
    """A connection that does not know of TLS: an `asyncio.Protocol`."""

    def connection_made(self, transport: asyncio.BaseTransport, /) -> None: ...
    def connection_lost(self, exc: Exception | None, /) -> None: ...
    def data_received(self, data: bytes, /) -> None: ...


class BeginningPlain(Plain, Protocol):
    """One that is told when its handshake is over."""

    def begin(self) -> None: ...


def clear(plain: Plain, buffer: memoryview) -> Connection:
    """`plain` as `TlsConnection` takes it; it receives into `buffer`, which all connections of a loop may share."""
    return cast("Connection", _Clear(plain, buffer))


def begin(link: Connection, _certificate: bytes | None) -> None:
    """`TlsEnd.when_secured` of those that are told, which `clear` was given."""
    cast("BeginningPlain", cast("_Clear", link).plain).begin()


class _Clear:
    """What `TlsConnection` takes for a connection of Kafka's protocol."""

    __slots__ = ("_buffer", "_transport", "peer", "plain")

    def __init__(self, plain: Plain, buffer: memoryview) -> None:
        self.plain = plain
        self._transport: asyncio.Transport | None = None
        self._buffer = buffer
        self.peer = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"
        self.plain.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.plain.connection_lost(error)

    def fail(self, _reason: str) -> None:
        """The other end abuses TLS."""
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self.plain.data_received(bytes(self._buffer[:count]))

    def pause_writing(self) -> None:
        pause = getattr(self.plain, "pause_writing", None)
        if pause is not None:
            pause()

    def resume_writing(self) -> None:
        resume = getattr(self.plain, "resume_writing", None)
        if resume is not None:
            resume()
