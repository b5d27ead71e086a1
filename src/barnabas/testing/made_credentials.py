"""Keys, certificates and tokens of a simulated cluster, made of its seed: the same each time, to the byte.

All keys are Ed25519's, whose signatures have one length and are the same again, so that one seed stays one run. The
extras `tls` and `oauth` are needed for the plan that has them. OpenSSL looks at the machine's own clock for whether a
certificate holds: these hold for a century.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BEGINS: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_ENDS: Final = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key; `serial` is that of its certificate."""

    serial: int
    key: str = field(repr=False)
    """PEM, as those of configs are: in one line."""
    chain: str = ""
    """Its certificate, the same way."""
    der: bytes = b""
    """The certificate as a peer shows it."""


class Authority:
    """An authority that signs certificates of brokers."""

    def __init__(self, name: str, seed: bytes) -> None:
        """`seed` has 32 bytes."""
        self._key = _private(seed)
        self._name = _named(name)
        builder = _builder(self._name, self._name, self._key.public_key(), 1)
        self.certificate = _one_line(_of_authority(builder).sign(self._key, None))

    def sign(self, host_name: str, serial: int, seed: bytes) -> KeyPair:
        """A key, and a certificate of a machine of that name."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = _private(seed)
        builder = _builder(_named(host_name), self._name, key.public_key(), serial)
        names = x509.SubjectAlternativeName([x509.DNSName(host_name)])
        made = builder.add_extension(names, critical=False).sign(self._key, None)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return KeyPair(serial, " ".join(text.split("\n")).strip(), _one_line(made), made.public_bytes(Encoding.DER))


class TokenKey:
    """A key that signs tokens of OAUTHBEARER."""

    def __init__(self, key_id: str, seed: bytes) -> None:
        self.key_id = key_id
        self._key = _private(seed)

    @property
    def public(self) -> dict[str, str]:
        """As a key set has it."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return {"kty": "OKP", "crv": "Ed25519", "kid": self.key_id, "use": "sig", "x": _encoded(raw)}

    def sign(self, claims: Mapping[str, Any], key_id: str | None = None) -> str:
        """A token; `key_id` is for one that names another key than it is signed by."""
        head = {"alg": "EdDSA", "kid": self.key_id if key_id is None else key_id}
        text = f"{_encoded(json.dumps(head).encode())}.{_encoded(json.dumps(claims).encode())}"
        return f"{text}.{_encoded(self._key.sign(text.encode()))}"


def unsigned(claims: Mapping[str, Any]) -> str:
    """A token that nobody has signed."""
    return f"{_encoded(json.dumps({'alg': 'none'}).encode())}.{_encoded(json.dumps(claims).encode())}."


def key_set(keys: Iterable[TokenKey]) -> bytes:
    """The file that brokers have their keys from."""
    return json.dumps({"keys": [key.public for key in keys]}).encode()


def _private(seed: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed[:_KEY_BYTES])


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(name: Any, issuer: Any, public_key: Any, serial: int) -> Any:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public_key)
    return builder.serial_number(serial).not_valid_before(_BEGINS).not_valid_after(_ENDS)


def _of_authority(builder: Any) -> Any:
    from cryptography import x509

    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)


def _one_line(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return " ".join(certificate.public_bytes(Encoding.PEM).decode().split("\n")).strip()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
