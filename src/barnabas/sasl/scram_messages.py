"""SCRAM's four messages (RFC 5802, section 7), read as strictly as Kafka reads them.

Both ends sign what was sent, byte for byte, so a message keeps its text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.sasl.errors import SaslError

GS2_HEADER: Final = "n,,"
"""No channel binding, and no other identity than that of the user."""
MESSAGE_BYTES_MAX: Final = 16_384
"""Names, nonces and proofs have some dozen; to look through half a megabyte, which a broker takes of whoever has not
shown who they are, takes a tenth of a second and a hundred megabytes."""
_VALUE: Final = r"[\x01-+\x2d-\x7f]+"
_PRINTABLE: Final = r"[\x21-+\x2d-\x7e]+"
_SASL_NAME: Final = r"(?:[\x01-+\x2d-<>-\x7f]|=2C|=3D)+"
_BASE64: Final = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS: Final = rf"(?P<extensions>(?:,[A-Za-z]+={_VALUE})*)"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization_id>{_SASL_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(rf"(?:e=(?P<error>[\x01-+\x2d-<>-\x7f]+)|v=(?P<signature>{_BASE64})){_EXTENSIONS}")
_EXTENSION: Final = re.compile(r",([A-Za-z]+)=([^,]*)")
_TOKEN_AUTHENTICATION: Final = "tokenauth"  # noqa: S105 - the name of an extension
BY_TOKEN: Final = f",{_TOKEN_AUTHENTICATION}=true"
"""What a client that logs in by a delegation token adds to its first message."""


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """Who wants to log in, and the client's part of the nonce."""

    header: str
    bare: str
    username: str
    authorization_id: str
    nonce: str
    extensions: Mapping[str, str]
    """What the client has added, by name."""

    @property
    def is_by_token(self) -> bool:
        """The name is the id of a delegation token."""
        return self.extensions.get(_TOKEN_AUTHENTICATION, "").lower() == "true"

    @classmethod
    def decode(cls, message: bytes) -> ClientFirst:
        """Raises SaslError. A mandatory extension (`m=`) is refused with all else that has not the form: there is
        none that we know.
        """
        found = _match(_CLIENT_FIRST, message, "client's first")
        return cls(
            found["header"],
            found["bare"],
            plain_name(found["name"]),
            plain_name(found["authorization_id"] or ""),
            found["nonce"],
            dict(_EXTENSION.findall(found["extensions"])),
        )


@dataclass(frozen=True, slots=True)
class ServerFirst:
    """The whole nonce, and how the password is to be hashed."""

    text: str
    nonce: str
    salt: bytes
    iterations: int

    @classmethod
    def of(cls, nonce: str, salt: bytes, iterations: int) -> ServerFirst:
        return cls(f"r={nonce},s={_encoded(salt)},i={iterations}", nonce, salt, iterations)

    @classmethod
    def decode(cls, message: bytes) -> ServerFirst:
        """Raises SaslError."""
        found = _match(_SERVER_FIRST, message, "server's first")
        return cls(found[0], found["nonce"], _decoded(found["salt"]), int(found["iterations"]))


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """The proof that the client knows the password."""

    without_proof: str
    channel: bytes
    nonce: str
    proof: bytes = field(repr=False)

    @classmethod
    def decode(cls, message: bytes) -> ClientFinal:
        """Raises SaslError."""
        found = _match(_CLIENT_FINAL, message, "client's final")
        return cls(found["without_proof"], _decoded(found["channel"]), found["nonce"], _decoded(found["proof"]))


def decode_server_final(message: bytes) -> bytes:
    """The server's signature. Raises SaslError, also for an error that the server names."""
    found = _match(_SERVER_FINAL, message, "server's final")
    if found["error"] is not None:
        raise SaslError(f"the server refuses the login: {found['error']}")
    return _decoded(found["signature"])


def client_final_without_proof(nonce: str) -> str:
    return f"c={_encoded(GS2_HEADER.encode())},r={nonce}"


def with_proof(without_proof: str, proof: bytes) -> bytes:
    return f"{without_proof},p={_encoded(proof)}".encode()


def server_final(signature: bytes) -> bytes:
    return f"v={_encoded(signature)}".encode()


def sasl_name(name: str) -> str:
    """A name as it stands in a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def plain_name(text: str) -> str:
    """The name that stands in a message."""
    return text.replace("=2C", ",").replace("=3D", "=")


def _match(pattern: re.Pattern[str], message: bytes, whose: str) -> re.Match[str]:
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslError(f"a {whose} message of {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are looked at")
    try:
        found = pattern.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslError(f"the {whose} message has not the form that SCRAM gives it")
    return found


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslError("a SCRAM message has a part that is not base64") from None
