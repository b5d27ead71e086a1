"""Kafka's `ssl.*` configs of one end of connections: a listener of ours, or us at others."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.tls.errors import TlsConfigError

VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
"""Older ones are broken, and neither Java nor OpenSSL speaks them unless it is made to."""
_NEWEST: Final = ("TLS", "TLSv1.3")
_LISTS: Final = frozenset({"ssl.enabled.protocols", "ssl.cipher.suites"})
OF_CLIENTS: Final[Mapping[str, str]] = {"ssl.endpoint.identification.algorithm": "https"}
"""What Kafka's clients go by where nothing else is said."""
KEYS: Final = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
)
"""Those that `TlsSettings.of` looks for: others have no effect."""


class ClientAuth(enum.Enum):
    """Whether clients must, may or need not show a certificate (`ssl.client.auth`)."""

    REQUIRED = "required"
    REQUESTED = "requested"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The configs, by their names without `ssl.`; those that are secret are in no `repr`."""

    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    keystore_key: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = field(default=None, repr=False)
    protocol: str = "TLSv1.3"
    enabled_protocols: tuple[str, ...] = VERSIONS
    cipher_suites: tuple[str, ...] = ()
    client_auth: ClientAuth = ClientAuth.NONE
    endpoint_identification_algorithm: str = "https"

    @classmethod
    def of(cls, value_of: Callable[[str], Any]) -> TlsSettings:
        """`value_of` gives a config's value by its whole name: a text, a tuple of texts, or None where it has none.

        Raises TlsConfigError for a Java class, which cannot be loaded, and for what is no `ssl.client.auth`.
        """
        if value_of("ssl.engine.factory.class"):
            raise TlsConfigError("ssl.engine.factory.class: Java classes cannot be loaded here; leave it out")

        def text(name: str) -> str | None:
            value = value_of(name)
            return None if value is None or value == "" else str(value)

        client_auth = (text("ssl.client.auth") or ClientAuth.NONE.value).lower()
        if client_auth not in (known := [each.value for each in ClientAuth]):
            raise TlsConfigError(f"ssl.client.auth={client_auth}: it must be {', '.join(known[:-1])} or {known[-1]}")
        return cls(
            keystore_type=(text("ssl.keystore.type") or "JKS").upper(),
            keystore_location=text("ssl.keystore.location"),
            keystore_password=value_of("ssl.keystore.password"),
            keystore_key=text("ssl.keystore.key"),
            keystore_certificate_chain=text("ssl.keystore.certificate.chain"),
            key_password=value_of("ssl.key.password"),
            truststore_type=(text("ssl.truststore.type") or "JKS").upper(),
            truststore_location=text("ssl.truststore.location"),
            truststore_password=value_of("ssl.truststore.password"),
            truststore_certificates=text("ssl.truststore.certificates"),
            protocol=text("ssl.protocol") or "TLSv1.3",
            enabled_protocols=tuple(value_of("ssl.enabled.protocols") or VERSIONS),
            cipher_suites=tuple(value_of("ssl.cipher.suites") or ()),
            client_auth=ClientAuth(client_auth),
            endpoint_identification_algorithm=text("ssl.endpoint.identification.algorithm") or "",
        )

    @property
    def versions(self) -> tuple[str, ...]:
        """Those to speak, oldest first. Raises TlsConfigError for one that there is not, or if none is left."""
        if self.protocol not in (*VERSIONS, *_NEWEST):
            raise TlsConfigError(f"ssl.protocol={self.protocol}: it must be {' or '.join(VERSIONS)}")
        unknown = [version for version in self.enabled_protocols if version not in VERSIONS]
        if unknown:
            raise TlsConfigError(
                f"ssl.enabled.protocols has {', '.join(unknown)}: it can have {' and '.join(VERSIONS)}; older versions"
                " are broken"
            )
        newest = "TLSv1.3" if self.protocol in _NEWEST else self.protocol
        found = tuple(version for version in VERSIONS if version in self.enabled_protocols and version <= newest)
        if not found:
            raise TlsConfigError(f"ssl.protocol={self.protocol} leaves none of ssl.enabled.protocols")
        return found

    @property
    def checks_host_name(self) -> bool:
        """Whether the other end's certificate must name the host that was asked for. Raises TlsConfigError."""
        algorithm = self.endpoint_identification_algorithm.lower()
        if algorithm not in ("https", ""):
            raise TlsConfigError(
                f"ssl.endpoint.identification.algorithm={self.endpoint_identification_algorithm}: it must be https, or"
                " empty, which checks no name"
            )
        return algorithm == "https"


def tls_settings(values: Mapping[str, str], defaults: Mapping[str, str]) -> TlsSettings:
    """Of a file of properties or a login module's options: a list is a text with commas. Raises TlsConfigError."""

    def value_of(key: str) -> str | list[str] | None:
        value = values.get(key, defaults.get(key))
        if key in _LISTS and value is not None:
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    return TlsSettings.of(value_of)
