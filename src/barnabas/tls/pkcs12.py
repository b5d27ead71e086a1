"""PKCS #12, the usual format of Java's key stores since 9, read by the library `cryptography` (the extra `tls`)."""

from __future__ import annotations

from typing import Final

from barnabas.tls import pem
from barnabas.tls.errors import TlsConfigError
from barnabas.tls.pem import PemBlock

_TO_PEM: Final = "openssl pkcs12 -in FILE -nodes -out FILE.pem"


def read(data: bytes, password: str | None, place: str, password_key: str) -> tuple[PemBlock | None, list[PemBlock]]:
    """The private key, if there is one, and the certificates, the key's own first and then each its issuer.

    `place` and `password_key` are for messages. Raises TlsConfigError.
    """
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError:
        raise TlsConfigError(
            f"{place} is PKCS12, for which the library cryptography is needed: pip install 'barnabas[tls]', or convert"
            f" it to PEM: {_TO_PEM}"
        ) from None
    try:
        found = load_pkcs12(data, None if password is None else password.encode())
    except Exception:  # noqa: BLE001 - several kinds, of which some quote what they read
        raise TlsConfigError(f"{place} cannot be read: it is no PKCS12 file, or {password_key} is wrong") from None
    key = None
    if found.key is not None:
        key = pem.private_key(found.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    others = [entry.certificate for entry in found.additional_certs]
    chain = []
    current = None if found.cert is None else found.cert.certificate
    while current is not None:
        chain.append(current)
        issuer = current.issuer
        current = next((other for other in others if other.subject == issuer and other not in chain), None)
    chain += [other for other in others if other not in chain]
    return key, [pem.certificate(each.public_bytes(Encoding.DER)) for each in chain]
