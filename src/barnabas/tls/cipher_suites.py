"""Names of cipher suites: IANA's, which Java and so Kafka's configs have, and OpenSSL's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from barnabas.tls.errors import TlsConfigError

TLS_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""All that OpenSSL offers of TLS 1.3 by itself."""
_OF_TLS_1_3: Final = re.compile(r"TLS_(AES|CHACHA20)_\w+")
_IANA: Final = re.compile(r"TLS_(?P<exchange>[A-Z0-9_]+)_WITH_(?P<cipher>[A-Z0-9_]+?)_(?P<hash>SHA\d*|CCM(?:_8)?)")
_OPENSSL: Final = re.compile(r"[A-Z0-9]+(-[A-Z0-9]+)+")
_BLOCK_CIPHERS: Final = {"3DES_EDE_CBC": "DES-CBC3"}


def openssl_names(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """OpenSSL's names of the suites of TLS 1.2 among them, and of those of TLS 1.3. Raises TlsConfigError."""
    older: list[str] = []
    newer: list[str] = []
    for name in names:
        if _OF_TLS_1_3.fullmatch(name):
            newer.append(name)
        else:
            older.append(_openssl_name(name))
    return older, newer


def _openssl_name(name: str) -> str:
    match = _IANA.fullmatch(name)
    if match is None:
        if _OPENSSL.fullmatch(name):
            return name
        raise TlsConfigError(f"ssl.cipher.suites has {name}, which is no cipher suite")
    exchange = match["exchange"].replace("_", "-")
    cipher, digest = match["cipher"], match["hash"].replace("_", "")
    if cipher in _BLOCK_CIPHERS:
        parts = [_BLOCK_CIPHERS[cipher], digest]
    elif cipher == "CHACHA20_POLY1305":
        parts = ["CHACHA20-POLY1305"]
    elif cipher.endswith("_CBC"):
        parts = [cipher.removesuffix("_CBC").replace("_", "", 1).replace("_", "-"), digest]
    else:
        parts = [cipher.replace("_", "", 1).replace("_", "-"), digest]
    return "-".join(([] if exchange == "RSA" else [exchange]) + parts)
