"""The certificates of a cluster of `barnabas up --secure`: an authority of its own, and one for each process.

They are made by the library `cryptography` (the extra `tls`; decision 0047). What is there and can be used is kept;
what cannot be read, is of another authority, lacks a name or is about to end is made anew.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from barnabas.server.cluster_security import ClusterSecurityError
from barnabas.server.private_files import PrivateFiles

AUTHORITY_DAYS: Final = 3_650
DAYS: Final = 825
"""How long a certificate holds: what some clients take at most."""
RENEWED_DAYS: Final = 180
"""So long before its end a certificate is made anew, at a start and once a day; the authority's at a start."""
_EARLY: Final = dt.timedelta(hours=1)
"""For clocks that are behind."""
_ORGANIZATION: Final = "Barnabas"


def check_library() -> None:
    """Raises ClusterSecurityError where what makes certificates is not there."""
    try:
        import cryptography.x509  # noqa: F401 - whether it is there
    except ImportError:
        raise ClusterSecurityError(
            "--secure makes certificates by the library cryptography: pip install 'barnabas[tls]'"
        ) from None


class _Pair(NamedTuple):
    key: Any
    certificate: Any


class Certificates:
    """The authority, and what it signs."""

    def __init__(
        self,
        files: PrivateFiles,
        now_ms: int,
        authority_path: str,
        key_path: str,
        tell: Callable[[str], object],
        *,
        keeps_authority: bool = False,
    ) -> None:
        """`key_path` has the authority's key and certificate, `authority_path` the certificate alone; both are made
        where they cannot be used, or are about to end, of which `tell` hears where there were some. Raises OSError, and
        ClusterSecurityError for an authority that cannot be used, or does not hold now, and is to be kept
        (`keeps_authority`).
        """
        self._files = files
        self._now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        found = files.read(key_path)
        authority = None if found is None else _read(found)
        is_ending = authority is not None and not keeps_authority and self._ends(authority.certificate)
        if authority is None or is_ending or not _is_authority(authority.certificate):
            if keeps_authority:
                raise ClusterSecurityError(f"{key_path} is not there, or is no authority's")
            authority = self._make_authority()
            files.write(key_path, _pem(authority))
            if found is not None:
                tell(f"the authority in {key_path} could not be used any more; clients have to trust the new one")
        if keeps_authority and not _holds(authority.certificate, self._now):
            raise ClusterSecurityError(f"the authority in {key_path} does not hold now; is the clock right?")
        self._authority = authority
        files.write(authority_path, _pem_of_certificate(authority.certificate))

    def ensure(self, path: str, name: str, names: Iterable[str]) -> None:
        """Makes key and certificate of a process, for these host names and addresses, where there are none that can
        be used. Raises OSError.
        """
        wanted = _alternative_names(names)
        found = self._files.read(path)
        pair = None if found is None else _read(found)
        if (
            pair is None
            or self._ends(pair.certificate)
            or self._is_of_later(pair.certificate)
            or not self._is_ours(pair.certificate, wanted)
        ):
            self._files.write(path, _pem(self._sign(name, wanted)))

    def _ends(self, certificate: Any) -> bool:
        """Soon. That a clock is behind is no reason for another authority, which no client would know."""
        return bool(certificate.not_valid_after_utc - dt.timedelta(days=RENEWED_DAYS) <= self._now)

    def _is_of_later(self, certificate: Any) -> bool:
        """Whether it was made while the clock was ahead, and so does not hold yet, where its authority does."""
        return bool(self._now < certificate.not_valid_before_utc) and _holds(self._authority.certificate, self._now)

    def _is_ours(self, certificate: Any, wanted: list[Any]) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName

        try:
            certificate.verify_directly_issued_by(self._authority.certificate)
            has = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        except (InvalidSignature, ExtensionNotFound, ValueError, TypeError):
            return False
        return set(wanted) <= set(has)

    def _make_authority(self) -> _Pair:
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        # Another name each time: clients that know one of before must not take this one's signatures for its.
        name = _name(f"Barnabas authority of {self._now:%Y-%m-%d %H:%M:%S}")
        builder = self._builder(name, name, key.public_key(), AUTHORITY_DAYS)
        return _Pair(key, _signed(builder, key.public_key(), key, is_authority=True))

    def _sign(self, name: str, names: list[Any]) -> _Pair:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509 import ExtendedKeyUsage, SubjectAlternativeName
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._authority.certificate.subject
        builder = self._builder(_name(name), issuer, key.public_key(), DAYS)
        builder = builder.add_extension(SubjectAlternativeName(names), critical=False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(ExtendedKeyUsage(usages), critical=False)
        return _Pair(key, _signed(builder, key.public_key(), self._authority.key, is_authority=False))

    def _builder(self, name: Any, issuer: Any, public_key: Any, days: int) -> Any:
        from cryptography import x509

        ends = self._now + dt.timedelta(days=days)
        if name != issuer:
            ends = min(ends, self._authority.certificate.not_valid_after_utc)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public_key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(self._now - _EARLY).not_valid_after(ends)


def days_left(data: bytes, now: dt.datetime) -> float | None:
    """For how many days the first certificate of a PEM file holds; None where it has none. Raises ImportError."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificates(data)[0]
    except (ValueError, IndexError):
        return None
    return float((certificate.not_valid_after_utc - now) / dt.timedelta(days=1))


def _signed(builder: Any, public_key: Any, issuer_key: Any, *, is_authority: bool) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    length = 0 if is_authority else None
    extensions: list[tuple[Any, bool]] = [
        (x509.BasicConstraints(ca=is_authority, path_length=length), True),
        (_key_usage(is_authority=is_authority), True),
        (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, SHA256())


def _key_usage(*, is_authority: bool) -> Any:
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> Any:
    from cryptography.x509 import Name, NameAttribute
    from cryptography.x509.oid import NameOID

    parts = [(NameOID.ORGANIZATION_NAME, _ORGANIZATION), (NameOID.COMMON_NAME, common_name)]
    return Name([NameAttribute(oid, value) for oid, value in parts])


def _alternative_names(names: Iterable[str]) -> list[Any]:
    from cryptography.x509 import DNSName, IPAddress

    found: dict[Any, None] = {}
    for name in names:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            if name.isascii() and 0 < len(name) <= 253:
                found[DNSName(name)] = None
        else:
            # Also that of any address, which is what processes of this machine are told then.
            found[IPAddress(address)] = None
    return list(found)


def _holds(certificate: Any, now: dt.datetime) -> bool:
    return bool(certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc)


def _is_authority(certificate: Any) -> bool:
    from cryptography.x509 import BasicConstraints, ExtensionNotFound

    try:
        return bool(certificate.extensions.get_extension_for_class(BasicConstraints).value.ca)
    except (ExtensionNotFound, ValueError):
        return False


def _read(data: bytes) -> _Pair | None:
    """Key and certificate of a PEM file; None where they cannot be used, or do not belong together."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        pair = _Pair(load_pem_private_key(data, None), x509.load_pem_x509_certificate(data))
        is_one = pair.key.public_key() == pair.certificate.public_key()
    except Exception:  # noqa: BLE001 - several kinds, some of them the library's own
        return None
    return pair if is_one else None


def _pem(pair: _Pair) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key: bytes = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key + _pem_of_certificate(pair.certificate)


def _pem_of_certificate(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    found: bytes = certificate.public_bytes(Encoding.PEM)
    return found
