"""How a client comes in: of the keys that Kafka's clients have for it, who logs in and how connections are secured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import ssl

    from barnabas.sasl.mechanisms import AnyLogin

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Access(NamedTuple):
    """How a client comes in: who logs in, and how connections are secured; None where it was not told."""

    login: AnyLogin | None = None
    tls: ssl.SSLContext | None = None


def access_of(values: Mapping[str, str], place: str, read_file: Callable[[str], bytes]) -> Access:
    """What `security.protocol`, `ssl.*` and `sasl.*` say; other keys are not heeded. `place` is where they stand,
    `read_file` reads key and trust stores.

    Raises ValueError, which shows no secret.
    """
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ValueError(f"{place}: security.protocol must be one of {', '.join(_PROTOCOLS)}, not {protocol}")
    uses_sasl, uses_tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
    # What is there and not used is a protocol that somebody forgot: a password would go unencrypted.
    if not uses_sasl and any(key.startswith("sasl.") for key in values):
        wanted = "SASL_SSL" if uses_tls else "SASL_PLAINTEXT"
        raise ValueError(f"{place} has a login and no security.protocol={wanted}")
    if not uses_tls and any(key.startswith(("ssl.keystore.", "ssl.truststore.")) for key in values):
        wanted = "SASL_SSL" if uses_sasl else "SSL"
        raise ValueError(f"{place} has ssl.keystore or ssl.truststore and no security.protocol={wanted}")
    return Access(
        _login(place, values) if uses_sasl else None,
        _context(place, values, read_file) if uses_tls else None,
    )


def _login(place: str, values: Mapping[str, str]) -> AnyLogin:
    from barnabas.sasl.errors import LoginConfigError
    from barnabas.sasl.mechanisms import login_of_client

    missing = [key for key in ("sasl.mechanism", "sasl.jaas.config") if not values.get(key)]
    if missing:
        raise ValueError(f"{place} lacks {' and '.join(missing)}")
    try:
        return login_of_client(values["sasl.mechanism"], values["sasl.jaas.config"], values.get)
    except LoginConfigError as error:
        raise ValueError(f"{place}: {error}") from None


def _context(place: str, values: Mapping[str, str], read_file: Callable[[str], bytes]) -> ssl.SSLContext:
    from barnabas.kernel.real_key_files import load_chain
    from barnabas.tls.contexts import client_context
    from barnabas.tls.errors import TlsConfigError
    from barnabas.tls.settings import OF_CLIENTS, tls_settings
    from barnabas.tls.stores import read_stores

    try:
        settings = tls_settings(values, OF_CLIENTS)
        stores = read_stores(settings, read_file)
        return client_context(settings, stores, load_chain)
    except TlsConfigError as error:
        raise ValueError(f"{place}: {error}") from None
