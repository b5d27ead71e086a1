"""The ciphers of stored passwords, by the names that Java gives them: AES by CBC, CFB, OFB, CTR or GCM, DES and DESede
by CBC. Those without a vector (ECB) Kafka cannot use either. The work is done by the library `cryptography` (the extra
`tls`).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

_NO_LIBRARY: Final = "the library cryptography is needed: pip install 'barnabas[tls]'"
_TAG_LENGTH: Final = "authenticationTagLength"
_TAG_BITS: Final = 128
_TAGS: Final = ("128", "120", "112", "104", "96")
_GCM_VECTOR: Final = range(8, 129)
_GCM_VECTOR_BYTES: Final = 12
_KEYS: Final[Mapping[str, tuple[int, ...]]] = {"AES": (16, 24, 32), "DES": (8,), "DESEDE": (24,)}
"""Bytes of a key."""
_BLOCKS: Final[Mapping[str, int]] = {"AES": 16, "DES": 8, "DESEDE": 8}
_KNOWN: Final = frozenset(
    {
        *(("AES", mode, "PKCS5PADDING") for mode in ("CBC", "CFB", "OFB")),
        *(("AES", mode, "NOPADDING") for mode in ("CFB", "OFB", "CTR", "GCM")),
        *((name, "CBC", "PKCS5PADDING") for name in ("DES", "DESEDE")),
    }
)
_OFFERED: Final = (
    "AES/CBC/PKCS5Padding, AES/CFB/PKCS5Padding, AES/OFB/PKCS5Padding, AES/CTR/NoPadding, AES/GCM/NoPadding,"
    " DES/CBC/PKCS5Padding and DESede/CBC/PKCS5Padding"
)


class CipherError(ValueError):
    """Why something cannot be encrypted or decrypted; without a text where the key, or what it opens, is wrong."""


@dataclass(frozen=True, slots=True)
class Cipher:
    """One algorithm, as in `AES/CBC/PKCS5Padding`; by `cipher_of`."""

    name: str
    mode: str
    is_padded: bool
    tag_bits: int = _TAG_BITS

    @property
    def vector_bytes(self) -> int:
        """Of the vectors that Java makes."""
        return _GCM_VECTOR_BYTES if self.mode == "GCM" else _BLOCKS[self.name]

    def check_key(self, count: int) -> None:
        """Whether a key may have `count` bytes. Raises CipherError."""
        sizes = _KEYS[self.name]
        if count not in sizes:
            allowed = " or ".join(str(8 * size) for size in sizes)
            raise CipherError(f"its key has {allowed} bits (password.encoder.key.length), not {8 * count}")

    def check_vector(self, count: int) -> None:
        """Whether a vector may have `count` bytes. Raises CipherError."""
        if count != self.vector_bytes and not (self.mode == "GCM" and count in _GCM_VECTOR):
            raise CipherError(f"its initialization vector has {self.vector_bytes} bytes, not {count}")

    def parameters(self) -> Mapping[str, str]:
        """What is kept beside the vector."""
        return {_TAG_LENGTH: str(self.tag_bits)} if self.mode == "GCM" else {}

    @staticmethod
    def load() -> None:
        """Raises CipherError without the library."""
        _library()

    def encrypt(self, key: bytes, vector: bytes, data: bytes) -> bytes:
        """Raises CipherError without the library."""
        library = _library()
        if self.mode == "GCM":
            encryptor = library.Cipher(library.AES(key), library.GCM(vector)).encryptor()
            return bytes(encryptor.update(data) + encryptor.finalize() + encryptor.tag)
        if self.is_padded:
            padder = library.PKCS7(8 * _BLOCKS[self.name]).padder()
            data = padder.update(data) + padder.finalize()
        encryptor = self._cipher(library, key, vector).encryptor()
        return bytes(encryptor.update(data) + encryptor.finalize())

    def decrypt(self, key: bytes, vector: bytes, data: bytes) -> bytes:
        """Raises CipherError: without a text where `key` cannot be the one, or `data` is damaged."""
        library = _library()
        try:
            if self.mode == "GCM":
                count = self.tag_bits // 8
                if len(data) < count:
                    raise CipherError
                mode = library.GCM(vector, data[-count:], min_tag_length=count)
                decryptor = library.Cipher(library.AES(key), mode).decryptor()
                return bytes(decryptor.update(data[:-count]) + decryptor.finalize())
            decryptor = self._cipher(library, key, vector).decryptor()
            found = decryptor.update(data) + decryptor.finalize()
            if self.is_padded:
                unpadder = library.PKCS7(8 * _BLOCKS[self.name]).unpadder()
                found = unpadder.update(found) + unpadder.finalize()
            return bytes(found)
        except (ValueError, library.InvalidTag):
            raise CipherError from None

    def _cipher(self, library: Any, key: bytes, vector: bytes) -> Any:
        if self.name == "DES":  # three times the same key is DES
            key = 3 * key
        algorithm = library.AES(key) if self.name == "AES" else library.TripleDES(key)
        return library.Cipher(algorithm, getattr(library, self.mode)(vector))


def cipher_of(algorithm: str, fields: Mapping[str, str]) -> Cipher:
    """The cipher that Java calls so, whatever the case of its letters; `fields` has what is kept with a password that
    is to be decrypted. Raises CipherError.
    """
    parts = tuple(algorithm.upper().split("/"))
    if parts not in _KNOWN:
        raise CipherError(f"there are {_OFFERED}")
    name, mode, padding = parts
    tag = fields.get(_TAG_LENGTH, str(_TAG_BITS))
    if tag not in _TAGS:
        raise CipherError(f"its {_TAG_LENGTH} must be one of {', '.join(_TAGS)}")
    return Cipher(name, mode, padding == "PKCS5PADDING", int(tag))


@cache
def _library() -> Any:
    """What is needed of the library. Raises CipherError. It takes a tenth of a second, so it is for a thread."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher as Combined
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CBC, CTR, GCM
        from cryptography.hazmat.primitives.padding import PKCS7
    except ImportError:
        raise CipherError(_NO_LIBRARY) from None
    found = {"Cipher": Combined, "AES": AES, "CBC": CBC, "CTR": CTR, "GCM": GCM, "PKCS7": PKCS7}
    return SimpleNamespace(InvalidTag=InvalidTag, **found, **_old_ciphers())


def _old_ciphers() -> dict[str, Any]:
    """Those that the library has moved from one place to another, one after the other."""
    places = {"TripleDES": "algorithms", "CFB": "modes", "OFB": "modes"}
    found: dict[str, Any] = {}
    for name, module in places.items():
        # A name that is still found in the old place says that it is going, so the new one is looked into first.
        for package in ("decrepit", "primitives"):
            with contextlib.suppress(ImportError, AttributeError):
                found[name] = getattr(importlib.import_module(f"cryptography.hazmat.{package}.ciphers.{module}"), name)
                break
    return found
