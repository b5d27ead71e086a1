"""The messages of OAUTHBEARER (RFC 7628), as Apache Kafka reads and writes them (KIP-255, KIP-342)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.sasl.errors import LoginConfigError, SaslError

OAUTHBEARER: Final = "OAUTHBEARER"
TOKEN_CHARACTERS_MAX: Final = 64 * 1024
"""Of a token. Kafka has no bound but that of the message, half a MiB."""
CONFIRMATION: Final = b"\x01"
"""What a client sends to a refusal, so that the server may end the exchange."""
_MESSAGE_BYTES_MAX: Final = TOKEN_CHARACTERS_MAX + 16 * 1024
_SEPARATOR: Final = "\x01"
_AUTH: Final = "auth"
_KEY: Final = r"[A-Za-z]++"
_VALUE: Final = r"[\x21-\x7e \t\r\n]++"
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authorization>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)++))?,\x01"
    rf"(?P<pairs>(?:{_KEY}={_VALUE}\x01)*+)\x01"
)
_BEARER: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_EXTENSION: Final = re.compile(rf"({_KEY})={_VALUE}")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """What a client says: its token, whom it wants to be (empty: whom the token names), and SASL extensions."""

    token: str = field(repr=False)
    authorization_id: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def decode(cls, message: bytes) -> ClientFirst:
        """Raises SaslError."""
        if len(message) > _MESSAGE_BYTES_MAX:
            raise SaslError(f"the message has {len(message)} bytes, more than {_MESSAGE_BYTES_MAX}")
        found = _FIRST.fullmatch(message.decode("latin-1"))
        if found is None:
            raise SaslError("the message is none of OAUTHBEARER")
        pairs = dict(pair.split("=", 1) for pair in found["pairs"].split(_SEPARATOR)[:-1])
        bearer = _BEARER.fullmatch(pairs.pop(_AUTH, ""))
        if bearer is None or bearer["scheme"].lower() != "bearer":
            raise SaslError("the message has no bearer token")
        if len(bearer["token"]) > TOKEN_CHARACTERS_MAX:
            raise SaslError(f"the token has more than {TOKEN_CHARACTERS_MAX} characters")
        return cls(bearer["token"], found["authorization"] or "", pairs)

    def encode(self) -> bytes:
        authorization = f"a={self.authorization_id}" if self.authorization_id else ""
        pairs = [f"{_AUTH}=Bearer {self.token}", *(f"{key}={value}" for key, value in self.extensions.items())]
        return f"n,{authorization},{_SEPARATOR}{_SEPARATOR.join(pairs)}{_SEPARATOR}{_SEPARATOR}".encode()


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raises LoginConfigError for what no message can say."""
    for key, value in extensions.items():
        if key == _AUTH or _EXTENSION.fullmatch(f"{key}={value}") is None:
            raise LoginConfigError("a SASL extension has a name of ASCII letters, not auth, and a value of ASCII")


def refusal(status: str, scope: str | None = None) -> str:
    """What a server says of a token that it does not take, as JSON."""
    return f'{{"status":"{status}"' + ("" if scope is None else f', "scope":"{scope}"') + "}"
