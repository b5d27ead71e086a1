"""Key stores and trust stores: what of them, in whichever form they are configured, is given to OpenSSL.

Source: Kafka's `DefaultSslEngineFactory` and KIP-651, whose rules on which configs go together are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from barnabas.tls import pem, pkcs12
from barnabas.tls.errors import TlsConfigError
from barnabas.tls.pem import PemBlock
from barnabas.tls.settings import TlsSettings

Read = Callable[[str], bytes]
"""Reads a whole file. Raises OSError."""
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE: Final = b"\x30"
_TYPES: Final = ("JKS", "PKCS12", "PEM")


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """A private key and its certificate chain, as PEM."""

    text: str = field(repr=False)
    password: str | None = field(repr=False)
    certificate: bytes = b""
    """The first of the chain, DER."""


@dataclass(frozen=True, slots=True)
class Stores:
    """What was read; equal where nothing has changed, in the files either."""

    key: KeyMaterial | None
    trusted: tuple[PemBlock, ...] | None


def read_stores(settings: TlsSettings, read: Read) -> Stores:
    """Both stores; None for one that is not configured. Raises TlsConfigError."""
    trusted = read_trust_store(settings, read)
    return Stores(read_key_store(settings, read), None if trusted is None else tuple(trusted))


def read_key_store(settings: TlsSettings, read: Read) -> KeyMaterial | None:
    """Whom this end is; None where nothing is configured. Raises TlsConfigError."""
    kind = _checked_type("ssl.keystore.type", settings.keystore_type)
    if settings.keystore_key is not None or settings.keystore_certificate_chain is not None:
        return _key_of_configs(settings, kind)
    if settings.keystore_location is None:
        if settings.keystore_password is not None:
            raise TlsConfigError("ssl.keystore.password is given, and no ssl.keystore.location")
        return None
    place = f"ssl.keystore.location={settings.keystore_location}"
    data = _read(read, settings.keystore_location, place)
    if kind == "PEM":
        if settings.keystore_password is not None:
            raise TlsConfigError("ssl.keystore.password has no meaning for PEM: the key's is ssl.key.password")
        return _key_material(pem.blocks(_text(data, place)), settings.key_password, place)
    _refuse_jks(data, place)
    key, chain = pkcs12.read(data, settings.keystore_password, place, "ssl.keystore.password")
    if key is None:
        raise TlsConfigError(f"{place} has no private key")
    return _key_material([key, *chain], None, place)


def read_trust_store(settings: TlsSettings, read: Read) -> list[PemBlock] | None:
    """The certificates that are trusted; None where nothing is configured. Raises TlsConfigError."""
    kind = _checked_type("ssl.truststore.type", settings.truststore_type)
    if settings.truststore_certificates is not None:
        if kind != "PEM":
            raise TlsConfigError("ssl.truststore.certificates is PEM: it needs ssl.truststore.type=PEM")
        for name, given in (
            ("ssl.truststore.location", settings.truststore_location),
            ("ssl.truststore.password", settings.truststore_password),
        ):
            if given is not None:
                raise TlsConfigError(f"ssl.truststore.certificates and {name} are given: only one of them can count")
        return _certificates(pem.blocks(settings.truststore_certificates), "ssl.truststore.certificates")
    if settings.truststore_location is None:
        if settings.truststore_password is not None:
            raise TlsConfigError("ssl.truststore.password is given, and no ssl.truststore.location")
        return None
    place = f"ssl.truststore.location={settings.truststore_location}"
    data = _read(read, settings.truststore_location, place)
    if kind == "PEM":
        if settings.truststore_password is not None:
            raise TlsConfigError("ssl.truststore.password has no meaning for PEM: leave it out")
        return _certificates(pem.blocks(_text(data, place)), place)
    _refuse_jks(data, place)
    return _certificates(pkcs12.read(data, settings.truststore_password, place, "ssl.truststore.password")[1], place)


def _key_of_configs(settings: TlsSettings, kind: str) -> KeyMaterial:
    if kind != "PEM":
        raise TlsConfigError(
            "ssl.keystore.key and ssl.keystore.certificate.chain are PEM: they need ssl.keystore.type=PEM"
        )
    for name, given in (
        ("ssl.keystore.location", settings.keystore_location),
        ("ssl.keystore.password", settings.keystore_password),
    ):
        if given is not None:
            raise TlsConfigError(f"ssl.keystore.key and {name} are given: only one of them can count")
    if settings.keystore_key is None or settings.keystore_certificate_chain is None:
        raise TlsConfigError("ssl.keystore.key and ssl.keystore.certificate.chain are needed both")
    keys = [block for block in pem.blocks(settings.keystore_key) if block.is_private_key]
    chain = [block for block in pem.blocks(settings.keystore_certificate_chain) if block.is_certificate]
    return _key_material([*keys, *chain], settings.key_password, "ssl.keystore.key with ssl.keystore.certificate.chain")


def _key_material(found: list[PemBlock], password: str | None, place: str) -> KeyMaterial:
    keys = [block for block in found if block.is_private_key]
    chain = [block for block in found if block.is_certificate]
    if len(keys) != 1 or not chain:
        raise TlsConfigError(
            f"{place} has {len(keys)} private keys and {len(chain)} certificates: it must have one PEM block PRIVATE"
            " KEY and the blocks CERTIFICATE of its chain"
        )
    if keys[0].is_encrypted and password is None:
        raise TlsConfigError(f"{place} has an encrypted private key, and ssl.key.password is not given")
    if not keys[0].is_encrypted and password is not None:
        # Apache Kafka takes it for one that is encrypted, and does not start either.
        raise TlsConfigError(f"{place} has a private key that is not encrypted: leave ssl.key.password out")
    text = "".join(block.text() for block in (*chain, keys[0]))
    return KeyMaterial(text, password if keys[0].is_encrypted else None, chain[0].der())


def _certificates(found: list[PemBlock], place: str) -> list[PemBlock]:
    certificates = [block for block in found if block.is_certificate]
    if not certificates:
        raise TlsConfigError(
            f"{place} has no certificates: it must have PEM blocks CERTIFICATE, or be PKCS12 with some"
        )
    return certificates


def _checked_type(name: str, kind: str) -> str:
    if kind not in _TYPES:
        raise TlsConfigError(f"{name}={kind}: it must be PEM or PKCS12")
    return kind


def _read(read: Read, path: str, place: str) -> bytes:
    try:
        data = read(path)
    except OSError as error:
        raise TlsConfigError(f"{place} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise TlsConfigError(f"{place!a} cannot be read: there is no such path") from None
    if len(data) > pem.PEM_BYTES_MAX:
        raise TlsConfigError(f"{place} has {len(data)} bytes: no store is so large")
    return data


def _text(data: bytes, place: str) -> str:
    if data[:4] in _JKS_MAGIC or data[:1] == _DER_SEQUENCE:
        raise TlsConfigError(f"{place} is no PEM: name its type, PKCS12, or convert it")
    return data.decode("latin-1")


def _refuse_jks(data: bytes, place: str) -> None:
    """A file of type JKS may be PKCS12, as Java's own key stores are since 9: Java looks into the file too."""
    if data[:4] in _JKS_MAGIC:
        path = place.partition("=")[2]
        raise TlsConfigError(
            f"{place} is JKS, which only Java reads; convert it: keytool -importkeystore -srckeystore {path}"
            f" -destkeystore {path}.p12 -deststoretype PKCS12"
        )
    if data[:1] != _DER_SEQUENCE:
        raise TlsConfigError(f"{place} is no PKCS12; a PEM file needs the type PEM")
