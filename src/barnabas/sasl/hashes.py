"""What logins need of `hmac` and `hashlib`, which load OpenSSL: memory that a process without logins does without."""

from __future__ import annotations

from typing import TypeVar

Text = TypeVar("Text", str, bytes)


def is_same(one: Text, other: Text) -> bool:
    """Whether both are equal, in a time that does not tell where they differ. Strings must be ASCII."""
    import hmac

    return hmac.compare_digest(one, other)


def hash_of(name: str, data: bytes) -> bytes:
    """The hash that hashlib knows by that name."""
    import hashlib

    return hashlib.new(name, data).digest()


def hmac_of(key: bytes, data: bytes, name: str) -> bytes:
    """RFC 2104, by the hash of that name."""
    import hmac

    return hmac.digest(key, data, name)


def pbkdf2(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """RFC 8018's PBKDF2 by HMAC; it is what RFC 5802 calls Hi."""
    import hashlib

    return hashlib.pbkdf2_hmac(name, password, salt, iterations)
