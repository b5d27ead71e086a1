"""A file of people and the hashes of their passwords: of the console, and of the metrics endpoint.

A hash takes 16 MiB and some 50 ms (scrypt, of the standard library), so it is made off the loop.
"""

from __future__ import annotations

import base64
import binascii
import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple

USERS_MAX: Final = 1_000
PASSWORD_BYTES_MAX: Final = 1_024
LOGIN_FILE_BYTES_MAX: Final = 1024 * 1024
_COST, _BLOCK, _LANES = 2**14, 8, 1
_COST_MAX: Final = 2**16
_MEMORY_MAX: Final = 256 * 1024 * 1024
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """scrypt (RFC 7914) of a password, with what it was made with."""

    cost: int
    block: int
    lanes: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    def __str__(self) -> str:
        """As it stands in the file."""
        salt, digest = (base64.b64encode(each).decode() for each in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block}${self.lanes}${salt}${digest}"

    @classmethod
    def of(cls, password: str, salt: bytes) -> PasswordHash:
        """Of a password; `salt` is random."""
        return cls(_COST, _BLOCK, _LANES, salt, _scrypt(password, _COST, _BLOCK, _LANES, salt, _HASH_BYTES))

    @classmethod
    def read(cls, text: str) -> PasswordHash:
        """From the file. Raises ValueError, without the text in it."""
        kind, *parts = text.split("$")
        if kind != "scrypt" or len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in parts[:3]):
            raise ValueError("it is not of the form scrypt$N$r$p$salt$hash")
        cost, block, lanes = map(int, parts[:3])
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[3:])
        except binascii.Error:
            raise ValueError("its salt or hash is not Base64") from None
        if not (2 <= cost <= _COST_MAX and not cost & (cost - 1) and 1 <= block <= 8 and 1 <= lanes <= 4):
            raise ValueError(f"N must be a power of 2 up to {_COST_MAX}, r 1 to 8, p 1 to 4")
        if len(salt) < _SALT_BYTES or not _HASH_BYTES <= len(digest) <= 64:
            raise ValueError(f"its salt must have {_SALT_BYTES} bytes or more, its hash {_HASH_BYTES} to 64")
        return cls(cost, block, lanes, salt, digest)

    def is_of(self, password: str) -> bool:
        """Whether it is the hash of a password; takes as long for any wrong one."""
        from hmac import compare_digest  # loads OpenSSL, which who has no logins does without

        found = _scrypt(password, self.cost, self.block, self.lanes, self.salt, len(self.digest))
        return compare_digest(found, self.digest)


class Role(enum.Enum):
    """What a user may do; the value is the word for it in the file."""

    VIEWER = "viewer"
    """Looks."""
    OPERATOR = "operator"
    """Looks, and changes what the console may change."""


class User(NamedTuple):
    """What the file says of a user."""

    password: PasswordHash
    role: Role = Role.OPERATOR


def read_users(text: str) -> dict[str, User]:
    """The users of a file: a line `NAME:ROLE:HASH` for each, or `NAME:HASH` for an operator; empty lines, and those
    that begin with #, say nothing. Raises ValueError, which names the line.
    """
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, rest = line.strip().partition(":")
        if not colon or not is_name(name):
            raise ValueError(
                f"line {number}: it must be NAME:ROLE:HASH; `barnabas console --new-login NAME` prints one"
            )
        if name in users:
            raise ValueError(f"line {number}: {name} is there twice")
        role, has_role, hashed = rest.rpartition(":")
        if has_role and role not in {each.value for each in Role}:
            raise ValueError(f"line {number}: the role of {name} must be {' or '.join(each.value for each in Role)}")
        try:
            users[name] = User(PasswordHash.read(hashed), Role(role) if has_role else Role.OPERATOR)
        except ValueError as error:
            raise ValueError(f"line {number}: the hash of {name} cannot be used: {error}") from None
    if not 1 <= len(users) <= USERS_MAX:
        raise ValueError(f"it has {len(users)} users; 1 to {USERS_MAX} there must be")
    return users


def is_name(name: str) -> bool:
    """Whether a user may be called so: 1 to 64 letters, digits, dots, dashes, underscores, or @."""
    return 1 <= len(name) <= 64 and all(each.isalnum() or each in "._-@" for each in name)


def _scrypt(password: str, cost: int, block: int, lanes: int, salt: bytes, length: int) -> bytes:
    import hashlib  # loads OpenSSL, which who has no logins does without

    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=cost, r=block, p=lanes, maxmem=_MEMORY_MAX, dklen=length)
