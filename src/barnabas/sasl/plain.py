"""PLAIN (RFC 4616): the password itself is sent, so the connection should be one that nobody can listen to.

What a client is told is what Apache Kafka tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.sasl.errors import SaslAuthenticationError, SaslError
from barnabas.sasl.hashes import is_same

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps

PLAIN: Final = "PLAIN"
_TOKENS: Final = 3
_NOBODYS: Final = b"the password of those who have none"


class PlainServer:
    """Takes the one message of the client."""

    __slots__ = ("_is_over", "_passwords", "is_by_delegation_token", "token_expiry_ms", "username")

    def __init__(self, passwords: Mapping[str, str]) -> None:
        """`passwords` are those of all users, by name."""
        self._passwords = passwords
        self._is_over = False
        self.username: str | None = None
        self.token_expiry_ms: int | None = None
        self.is_by_delegation_token = False

    def respond(self, token: bytes) -> bytes:
        if self._is_over:
            raise SaslError("a message after the end of the exchange")
        self._is_over = True
        # What is no UTF-8 is told apart by its form first, as in Kafka, and is nobody's password.
        text = token.decode(errors="replace")
        parts = text.split("\0", _TOKENS)
        if len(parts) != _TOKENS:
            raise SaslAuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, username, password = parts
        if not username:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        if not self._is_right(username, password) or text.encode() != token:
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", username):
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.username = username
        return b""

    def _is_right(self, username: str, password: str) -> bool:
        """Takes as long for a name that is not known as for a wrong password."""
        expected = self._passwords.get(username)
        is_right = is_same(password.encode(), _NOBODYS if expected is None else expected.encode())
        return is_right and expected is not None


class PlainClient:
    """Sends name and password, and expects an empty answer."""

    __slots__ = ("_message", "is_complete")

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()
        self.is_complete = False

    def begin(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> Steps[bytes | None]:
        yield from ()
        if challenge or self.is_complete:
            raise SaslError("the server asks for more than PLAIN has")
        self.is_complete = True
        return None
