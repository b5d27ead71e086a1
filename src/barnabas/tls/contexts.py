"""OpenSSL's contexts, made of `ssl.*` configs: one for a listener, and one for the brokers that we connect to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.tls.cipher_suites import TLS_1_3, openssl_names
from barnabas.tls.errors import TlsConfigError
from barnabas.tls.settings import ClientAuth, TlsSettings
from barnabas.tls.stores import KeyMaterial, Stores

if TYPE_CHECKING:
    import ssl

LoadChain = Callable[["ssl.SSLContext", str, str | None], None]
"""Gives a context a key and its chain: PEM, and the key's password. Raises ssl.SSLError."""
TRUSTED_AT_ONCE: Final = 4
"""Certificates of a trust store that are read while Python's lock is held."""
_MISMATCH: Final = "KEY_VALUES_MISMATCH"
_OF_PASSWORDS: Final = ("BAD_DECRYPT", "BAD_PASSWORD_READ", "CIPHERFINAL_ERROR", "DECODE_ERROR")


def server_context(settings: TlsSettings, stores: Stores, load_chain: LoadChain) -> ssl.SSLContext:
    """For a listener. Raises TlsConfigError."""
    import ssl

    key = stores.key
    if key is None:
        raise TlsConfigError(
            "a listener with TLS needs a key: set ssl.keystore.location, or ssl.keystore.key with its chain"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_up(context, settings)
    _load(context, key, load_chain)
    # Who comes again is verified again, and nothing is kept of who went.
    context.num_tickets = 0
    context.verify_mode = {
        ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
        ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
        ClientAuth.NONE: ssl.CERT_NONE,
    }[settings.client_auth]
    if not _trust(context, stores) and settings.client_auth is not ClientAuth.NONE:
        # Java would take certificates of every public authority.
        raise TlsConfigError(
            f"ssl.client.auth={settings.client_auth.value} needs to know whose certificates count: set"
            " ssl.truststore.location"
        )
    return context


def client_context(settings: TlsSettings, stores: Stores, load_chain: LoadChain) -> ssl.SSLContext:
    """For connections that we open. Without a trust store the system's authorities count. Raises TlsConfigError."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_up(context, settings)
    context.check_hostname = settings.checks_host_name
    if stores.key is not None:
        _load(context, stores.key, load_chain)
    if not _trust(context, stores):
        context.load_default_certs()
    return context


def _set_up(context: ssl.SSLContext, settings: TlsSettings) -> None:
    import ssl

    versions = settings.versions
    if settings.cipher_suites:
        versions = _limit_suites(context, settings.cipher_suites, versions)
    numbers = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
    context.minimum_version = numbers[versions[0]]
    context.maximum_version = numbers[versions[-1]]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _limit_suites(context: ssl.SSLContext, names: tuple[str, ...], versions: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the versions that these leave."""
    import ssl

    older, newer = openssl_names(names)
    if newer and set(newer) != set(TLS_1_3):
        raise TlsConfigError(
            f"ssl.cipher.suites has some of TLS 1.3: Python's ssl gives all or none of them, so name"
            f" {', '.join(TLS_1_3)}, or none of these, which leaves TLSv1.2"
        )
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise TlsConfigError(f"ssl.cipher.suites: OpenSSL has none of {', '.join(names)}") from None
        has = {cipher["name"] for cipher in context.get_ciphers()}
        missing = [name for name in older if name not in has]
        if missing:
            raise TlsConfigError(f"ssl.cipher.suites: OpenSSL has no {', '.join(missing)}")
    possible = {"TLSv1.2": bool(older), "TLSv1.3": bool(newer)}
    left = tuple(version for version in versions if possible[version])
    if not left:
        raise TlsConfigError("ssl.cipher.suites has none of the versions of ssl.enabled.protocols")
    return left


def _load(context: ssl.SSLContext, key: KeyMaterial, load_chain: LoadChain) -> None:
    import ssl

    try:
        load_chain(context, key.text, key.password)
    except ssl.SSLError as error:
        why = "OpenSSL cannot read it"
        if error.reason == _MISMATCH:
            why = "the private key is not that of the first certificate"
        elif error.reason in _OF_PASSWORDS or (key.password is not None and error.reason is None):
            why = "ssl.key.password is wrong, or it is damaged"
        elif error.reason:
            why = f"OpenSSL says {error.reason.lower().replace('_', ' ')}"
        raise TlsConfigError(f"the key store cannot be used: {why}") from None
    except (OSError, ValueError):
        raise TlsConfigError("the key store cannot be used: OpenSSL cannot read it") from None


def _trust(context: ssl.SSLContext, stores: Stores) -> bool:
    """Whether there is a trust store."""
    import ssl

    trusted = stores.trusted
    if trusted is None:
        return False
    try:
        # OpenSSL takes a millisecond for each, in which no other thread runs: it must not be all of them at once.
        for start in range(0, len(trusted), TRUSTED_AT_ONCE):
            some = trusted[start : start + TRUSTED_AT_ONCE]
            context.load_verify_locations(cadata="".join(block.text() for block in some))
    except (ssl.SSLError, ValueError, TypeError):  # the last is of letters that ASCII has not
        raise TlsConfigError("the trust store cannot be used: OpenSSL cannot read its certificates") from None
    # What stands in a trust store is trusted, whether it signed itself or not, as Java has it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return True
