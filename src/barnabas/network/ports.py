"""What the network needs of the rooms above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from barnabas.wire.primitives import Buffer

if TYPE_CHECKING:
    from barnabas.network.connection import ServerConnection


class RequestHandler(Protocol):
    """Handles every request of a broker."""

    def handle(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        """Runs the request in `buffer[start:end]`, header first, to its answer or to its point of decision.

        Returns the response (a frame with its size, in one or several buffers that never change again), or None if
        there is none, or if the request took a slot with `connection.park` to be answered later. The bytes may be
        changed and are valid until this returns. ProtocolError closes the connection with a line in the log, any other
        exception does so with its traceback.
        """
        ...

    def connection_opened(self, connection: ServerConnection) -> None:
        """A client has connected."""
        ...

    def connection_closed(self, connection: ServerConnection) -> None:
        """The connection is over; completing its slots does nothing from now on."""
        ...
