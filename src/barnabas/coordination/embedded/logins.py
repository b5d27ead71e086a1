"""How the client of a connection shows who it is: by AUTH packets, by SASL (DIGEST-MD5), by its certificate.

As ZooKeeper: a login by SASL that fails ends the connection, one by AUTH too; whoever shows nothing is still served,
and may do what access control lists let everybody do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.coordination.digest_login import DigestLoginError, DigestServer
from barnabas.coordination.embedded import access
from barnabas.coordination.errors import ErrorCode
from barnabas.coordination.jute import NULL, pack_buffer
from barnabas.coordination.protocol import AuthPacket, Id

if TYPE_CHECKING:
    from barnabas.kernel.host import Entropy

SASL: Final = "sasl"
X509: Final = "x509"
_TOKEN_BYTES_MAX: Final = 16 * 1024


class Logins:
    """Those of all connections; `passwords` are those of users who log in by SASL, by name."""

    def __init__(self, passwords: Mapping[str, str], entropy: Entropy, *, has_tls: bool) -> None:
        self._passwords = passwords
        self._entropy = entropy
        self.schemes = frozenset(([SASL] if passwords else []) + ([X509] if has_tls else []))
        """That access control lists may name, beside those that are always there."""

    def of_connection(self) -> ConnectionLogin:
        """Of a new one."""
        return ConnectionLogin(self._passwords, self._entropy)


class ConnectionLogin:
    """That of one connection."""

    __slots__ = ("_entropy", "_passwords", "_server")

    def __init__(self, passwords: Mapping[str, str], entropy: Entropy) -> None:
        self._passwords = passwords
        self._entropy = entropy
        self._server: DigestServer | None = None

    def answer_sasl(self, token: bytes) -> tuple[int, bytes, Id | None]:
        """Error code and body of the answer to a message, and whom it has shown."""
        if not self._passwords:
            return 0, NULL, None  # what ZooKeeper answers when no SASL is configured: no token, no error
        server = self._server
        if server is None or not token:
            server = self._server = DigestServer(self._passwords, self._entropy)
        try:
            if len(token) > _TOKEN_BYTES_MAX:
                raise DigestLoginError("a message of too many bytes")
            answer = server.respond(token)
        except DigestLoginError:
            return ErrorCode.AUTH_FAILED, NULL, None
        return 0, pack_buffer(answer), None if server.username is None else Id(SASL, server.username)


def proved_by(packet: AuthPacket, address: str) -> Id | None:
    """Whom an AUTH packet shows; None where its scheme shows nobody."""
    if packet.scheme == "digest":
        return access.digest_id(packet.auth)
    return Id("ip", address) if packet.scheme == "ip" else None
