"""What the network needs of the rooms above it."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from barnabas.wire.primitives import Buffer

Connection_contra = TypeVar("Connection_contra", contravariant=True)
"""A `ServerConnection`."""


class FastPath(Protocol[Connection_contra]):
    """Handles requests that are like an earlier one of their connection, straight from the frame: decoding very
    frequent requests would cost more than handling them.

    It may collect them, to handle all that come in one tick together. Each collected request is counted in
    `ServerConnection.collected` until it is given to `ServerConnection.answer_collected`.
    """

    cost_bytes: ClassVar[int]
    """What a request that it takes costs a tick beside its bytes, as `request_costs.BYTES_PER_REQUEST`."""

    def take(self, connection: Connection_contra, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        """Handles or collects the request in `buffer[start:end]`, header first; False if it is of another form, and
        untouched. The bytes are not needed any more when this returns.
        """
        ...

    def take_alone(self, connection: Connection_contra, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        """Like `take`, for a request that comes alone: handles it at once, since no others are collected."""
        ...

    def finish(self) -> None:
        """Handles what was collected.

        Invariant: code that handles a request in another way calls this before, if the connection has collected ones.
        So the requests of one connection are handled, and answered, in their order.
        """
        ...


class RequestHandler(Protocol[Connection_contra]):
    """Handles every request of a broker."""

    def handle(
        self, connection: Connection_contra, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        """Runs the request in `buffer[start:end]`, header first, to its answer or to its point of decision.

        Returns the response (a frame with its size, in one or several buffers that never change again), or None if
        there is none, or if the request took a slot with `connection.park` to be answered later. The bytes may be
        changed and are valid until this returns. ProtocolError closes the connection with a line in the log, any other
        exception does so with its traceback.
        """
        ...

    def is_of_controller(self, connection: Connection_contra, api_key: int) -> bool:
        """Whether requests of this API come from a controller, and are handled ahead of data. Not from whoever may not
        send them.
        """
        ...

    def connection_opened(self, connection: Connection_contra) -> None:
        """A client has connected."""
        ...

    def connection_closed(self, connection: Connection_contra) -> None:
        """The connection is over; completing its slots does nothing from now on."""
        ...
