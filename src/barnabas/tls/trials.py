"""Whether one end would take the other: a handshake in memory, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import ssl

_ROUNDS_MAX: Final = 10


class Failure(NamedTuple):
    """Why there is no connection, and which end found it."""

    error: ssl.SSLError
    of_server: bool


def try_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> Failure | None:
    """None where both take each other, whatever the host is called. The contexts may be in use, by other threads too:
    nothing of them is changed, or a connection that is made meanwhile would not be looked at as it must be.
    """
    import ssl

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    # A connection in memory that is told of no host compares none, whatever `check_hostname` says.
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(_ROUNDS_MAX):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return Failure(error, end.server_side)
            ends.remove(end)
        if not ends:
            return None
    return Failure(ssl.SSLError("it has no end"), of_server=True)
