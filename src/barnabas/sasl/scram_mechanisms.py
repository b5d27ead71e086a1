"""SCRAM's arithmetic (RFC 5802, RFC 7677), and what a server keeps of a password."""

from __future__ import annotations

import base64
import binascii
import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.sasl.hashes import hash_of, hmac_of, pbkdf2

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps

ITERATIONS_MIN: Final = 4096
"""Fewer are refused by both ends, as in Kafka."""
ITERATIONS_MAX: Final = 1_000_000
"""More are refused by a client: whoever answers in a server's place would keep it busy."""
_AT_ONCE: Final = 16_384
_PER_STEP: Final = 2048
_FIELDS: Final = ("salt", "stored_key", "server_key", "iterations")
_WHOLE_NUMBER: Final = re.compile(r"\+?[0-9]{1,10}")


class ScramMechanism(enum.Enum):
    """A mechanism by the name that SaslHandshake and `/config/users` have for it."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """For hashlib."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def digest_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64

    @property
    def number(self) -> int:
        """For AlterUserScramCredentials."""
        return 1 if self is ScramMechanism.SHA_256 else 2

    @classmethod
    def numbered(cls, number: int) -> ScramMechanism | None:
        """The mechanism with that number; None if there is none."""
        return next((mechanism for mechanism in cls if mechanism.number == number), None)

    def hash(self, data: bytes) -> bytes:
        return hash_of(self.hash_name, data)

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac_of(key, data, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """The function that RFC 5802 calls Hi; some 10 ms for 16,384 iterations. The password is taken as it is,
        without SASLprep, as Kafka takes it.
        """
        return pbkdf2(self.hash_name, password.encode(), salt, iterations)

    def salted_password_in_steps(self, password: str, salt: bytes, iterations: int) -> Steps[bytes]:
        """As `salted_password`, of any number of iterations, without holding the loop."""
        if iterations <= _AT_ONCE:
            return self.salted_password(password, salt, iterations)
        import hmac  # not by `hashes`, whose look-ups would cost as much as a hash does

        key, digest, name = password.encode(), hmac.digest, self.hash_name
        block = digest(key, salt + b"\0\0\0\1", name)
        result = int.from_bytes(block)
        for done in range(1, iterations):
            block = digest(key, block, name)
            result ^= int.from_bytes(block)
            if done % _PER_STEP == 0:
                yield
        return result.to_bytes(self.digest_bytes)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps of a user's password: enough to check a login, not enough to log in."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_salted_password(
        cls, mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int
    ) -> ScramCredential:
        """That of a password which was salted and hashed already."""
        stored_key = mechanism.hash(mechanism.hmac(salted_password, b"Client Key"))
        return cls(salt, stored_key, mechanism.hmac(salted_password, b"Server Key"), iterations)

    @classmethod
    def of_password(
        cls, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = ITERATIONS_MIN
    ) -> ScramCredential:
        salted = mechanism.salted_password(password, salt, iterations)
        return cls.of_salted_password(mechanism, salt, salted, iterations)

    def encode(self) -> str:
        """The text that `/config/users/NAME` has for the mechanism."""
        keys = (self.salt, self.stored_key, self.server_key)
        values = (*(base64.b64encode(key).decode() for key in keys), str(self.iterations))
        return ",".join(f"{name}={value}" for name, value in zip(_FIELDS, values, strict=True))

    @classmethod
    def decode(cls, mechanism: ScramMechanism, text: str) -> ScramCredential:
        """Raises ValueError, whose message has none of the text, for what is no credential of the mechanism."""
        values: dict[str, str] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name not in _FIELDS:
                raise ValueError(f"a {mechanism.value} credential has the fields {', '.join(_FIELDS)} and no other")
            values[name] = value
        missing = [name for name in _FIELDS if name not in values]
        if missing:
            raise ValueError(f"a {mechanism.value} credential lacks {', '.join(missing)}")
        salt, stored_key, server_key = (_decoded(mechanism, name, values[name]) for name in _FIELDS[:3])
        for name, key in (("stored_key", stored_key), ("server_key", server_key)):
            if len(key) != mechanism.digest_bytes:
                raise ValueError(f"{name} of a {mechanism.value} credential has {len(key)} bytes")
        if not _WHOLE_NUMBER.fullmatch(values["iterations"]):
            raise ValueError(f"iterations of a {mechanism.value} credential are no whole number")
        return cls(salt, stored_key, server_key, int(values["iterations"]))


def _decoded(mechanism: ScramMechanism, name: str, text: str) -> bytes:
    try:
        # Java's decoder takes what lacks its padding.
        return base64.b64decode(text if text.endswith("=") else text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{name} of a {mechanism.value} credential is not base64") from None
