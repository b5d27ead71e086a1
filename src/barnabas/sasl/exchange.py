"""What carries a mechanism's messages knows of the mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps


class ServerExchange(Protocol):
    """One authentication, seen by the server."""

    @property
    def username(self) -> str | None:
        """Who the client is, once that is shown; None before, and after a failure."""
        ...

    @property
    def token_expiry_ms(self) -> int | None:
        """Until when that holds, in ms since 1970, if it was shown by a token; else None."""
        ...

    @property
    def is_by_delegation_token(self) -> bool:
        """Whether the client has shown a delegation token (KIP-48)."""
        ...

    def respond(self, token: bytes) -> bytes:
        """The answer to a message of the client, which may be empty. Raises SaslError, and nothing else for any bytes,
        after which the exchange is over.
        """
        ...


class ClientExchange(Protocol):
    """One authentication, seen by the client."""

    @property
    def is_complete(self) -> bool:
        """The server has shown all that it has to show, and nothing more is to be sent."""
        ...

    def begin(self) -> bytes:
        """The first message to the server."""
        ...

    def answer(self, challenge: bytes) -> Steps[bytes | None]:
        """The next message to the server, or None if that was its last; in steps, since it may take long. Raises
        SaslError for what a server must not say.
        """
        ...
