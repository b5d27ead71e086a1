"""The public keys that sign tokens, as a JSON Web Key Set has them (RFC 7517), and which of them a token needs.

Read by the libraries PyJWT and cryptography (the extra `oauth`). Keys of other kinds, of secrets that both ends know
(`oct`), too short ones and those for encryption are left out: a token can never be checked by what is not there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from barnabas.sasl.errors import LoginConfigError

KEYS_BYTES_MAX: Final = 1024 * 1024
KEY_ID_CHARACTERS_MAX: Final = 1000
_KEYS_MAX: Final = 1000
_RSA_BITS: Final = range(2048, 8193)
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
_RSA: Final = tuple(f"{family}{bits}" for family in ("RS", "PS") for bits in (256, 384, 512))
ALGORITHMS: Final = (*_RSA, *_CURVES)
"""Those by which tokens may be signed: with a key that only who signs has. Neither `none` nor HS256 and its kin."""
_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")


class KeySetError(ValueError):
    """What should be a key set is none; the message says why."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key, and for what it may be used."""

    key_id: str | None
    algorithms: tuple[str, ...]
    key: Any
    """As the library `cryptography` has it."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of a set."""

    keys: tuple[SigningKey, ...] = ()

    @classmethod
    def decode(cls, data: bytes) -> KeySet:
        """May take long for many keys. Raises KeySetError for what is no key set, or has no usable key."""
        if len(data) > KEYS_BYTES_MAX:
            raise KeySetError(f"the key set has more than {KEYS_BYTES_MAX} bytes")
        try:
            listed = json.loads(data.decode())["keys"]
        except (ValueError, KeyError, TypeError, RecursionError):
            listed = None
        if not isinstance(listed, list):
            raise KeySetError('it is no JSON Web Key Set, which is a JSON object with a list "keys"')
        if len(listed) > _KEYS_MAX:
            raise KeySetError(f"the key set has more than {_KEYS_MAX} keys")
        keys = tuple(key for key in map(_key, listed) if key is not None)
        if not keys:
            raise KeySetError(f"none of its {len(listed)} keys can check a signature by {', '.join(ALGORITHMS)}")
        return cls(keys)

    def find(self, algorithm: str, key_id: str | None) -> Any:
        """The key for a token that was signed by that algorithm; None where there is none. A token that names a key
        gets no other.
        """
        for key in self.keys:
            if algorithm in key.algorithms and key_id in (None, key.key_id):
                return key.key
        return None


def check_library() -> None:
    """Raises LoginConfigError where signed tokens cannot be checked for want of a library."""
    try:
        library()
    except ImportError:
        raise LoginConfigError(
            "signed tokens need the libraries PyJWT and cryptography: pip install 'barnabas[oauth]'"
        ) from None


@cache
def library() -> Any:
    """PyJWT, with `cryptography`. Raises ImportError."""
    import cryptography.hazmat.primitives.asymmetric.rsa  # noqa: F401 - PyJWT is there without it, and knows no keys
    import jwt

    return jwt


def _key(listed: Any) -> SigningKey | None:
    """None for a key that is not for signatures that are taken here."""
    if not isinstance(listed, dict) or listed.get("use") not in (None, "sig"):
        return None
    operations, key_id = listed.get("key_ops"), listed.get("kid")
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARACTERS_MAX):
        return None
    curve = listed.get("crv")
    fits = _RSA if listed.get("kty") == "RSA" else tuple(name for name, each in _CURVES.items() if each == curve)
    named = listed.get("alg")
    algorithms = fits if named is None else tuple(name for name in fits if name == named)
    if not algorithms:
        return None
    public = {name: listed[name] for name in _PUBLIC if name in listed}
    try:
        algorithm = library().get_algorithm_by_name(algorithms[0])
        key = algorithm.from_jwk(public)
        is_usable = fits is not _RSA or key.key_size in _RSA_BITS
    except Exception:  # noqa: BLE001 - whatever two libraries say of a key that is none
        return None
    return SigningKey(key_id, algorithms, key) if is_usable else None
