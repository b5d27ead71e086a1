"""How this broker's listeners are secured, and its connections to other brokers: from its `ssl.*` keys.

A listener's keys go before those without its name, as in Kafka's `SslChannelBuilder`. `ssl.client.auth` counts for
listeners of SSL only, unless it is given for a listener of SASL_SSL by name. Who came in by SSL is whom its
certificate names, by `ssl.principal.mapping.rules`; without one, ANONYMOUS. Keys and certificates are exchanged while
the broker runs (KIP-226): connections from then on have the new ones.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.api.authentication import LoginCounts
from barnabas.config.broker_config import LISTENER_PREFIX, BrokerConfig
from barnabas.config.keys import Password
from barnabas.config.listeners import SecurityProtocol
from barnabas.kernel.host import Files
from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.real_key_files import load_chain
from barnabas.link.tls_end import TlsEnd
from barnabas.link.tls_errors import as_words
from barnabas.network.connection import ServerConnection
from barnabas.server.errors import BrokerStartError
from barnabas.tls.contexts import client_context, server_context
from barnabas.tls.distinguished_names import alternative_names, subject_name
from barnabas.tls.errors import NoPrincipalError, TlsConfigError
from barnabas.tls.principal_rules import PrincipalRules
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import Stores, read_stores
from barnabas.tls.trials import try_handshake

if TYPE_CHECKING:
    import ssl

    from barnabas.link.handshakes import Handshakes

_CLIENT_AUTH: Final = "ssl.client.auth"
_FIXED: Final = (
    "protocol",
    "enabled_protocols",
    "cipher_suites",
    "client_auth",
    "endpoint_identification_algorithm",
)
"""What of `TlsSettings` a listener keeps until the broker is started again, as in Kafka."""
_FILE_BYTES_MAX: Final = 32 * 1024 * 1024
_USER: Final = "User:"


class _Side(NamedTuple):
    """One kind of connections."""

    is_server: bool
    listener_name: str

    def __str__(self) -> str:
        if self.is_server:
            return f"Listener {self.listener_name}"
        return f"Connections to other brokers' listener {self.listener_name}"


Contexts = Mapping[_Side, "ssl.SSLContext"]


class _Basis(NamedTuple):
    """What a context is made of; equal where it would be the same again."""

    settings: TlsSettings
    stores: Stores


class Secured(NamedTuple):
    """A context, and what it is made of."""

    basis: _Basis
    context: ssl.SSLContext


Sides = Mapping[_Side, Secured]
Prepared = Mapping[str, "Sides | TlsConfigError"]
"""What is to change, by the names of listeners, or why it cannot."""


def uses_tls(config: BrokerConfig) -> bool:
    """Whether any listener, and so perhaps a connection to another broker, is secured."""
    return any(endpoint.security_protocol.uses_tls for endpoint in config.listeners.bound)


def read_tls(config: BrokerConfig, files: Files) -> Sides:
    """What each kind of connections is secured by. It takes a millisecond for each authority that is trusted, so it is
    for a thread. Raises BrokerStartError for what keys of TLS ask for and cannot be done.
    """
    try:
        bases = {side: _basis(config, side, files) for side in _sides(config)}
        contexts = {side: _context(side, basis) for side, basis in bases.items()}
        for side in contexts:
            if side.is_server:
                PrincipalRules(_rules(config, side.listener_name))
                _check_brokers(side.listener_name, contexts, contexts)
    except TlsConfigError as error:
        raise BrokerStartError(str(error)) from None
    return {side: Secured(basis, contexts[side]) for side, basis in bases.items()}


@dataclass(slots=True)
class HandshakeCounts:
    """What has become of the handshakes of one listener."""

    successful: int = 0
    failed: int = 0


class BrokerTls:
    """All of one broker: its listeners' ends, and those of its connections to others. Made where TLS is used only.

    `tls_exchange` has keys and certificates exchanged: `check` and `prepare` are for a thread, and nothing is adopted
    while they run.
    """

    def __init__(
        self,
        config: BrokerConfig,
        sides: Sides,
        files: Files,
        handshakes: Handshakes,
        metrics: MetricsRegistry,
        logger: logging.Logger,
    ) -> None:
        """`sides` is what `read_tls` has made of `config`."""
        self._files = files
        self.logger = logger
        self._config = config
        self._bases: dict[_Side, _Basis] = {}
        self._refused: dict[str, str] = {}
        """Why what there is now could not be taken, by the names of listeners."""
        self.counts: dict[str, HandshakeCounts] = {}
        """By the names of the listeners."""
        self.logins: Mapping[str, LoginCounts] = {}
        """Of the listeners that ask for a login too: a handshake that fails there is a login that fails."""
        self.listeners: dict[str, TlsEnd] = {}
        """By the names of the listeners."""
        self.to_brokers: dict[str, TlsEnd] = {}
        """By the names of others' listeners."""
        for side, (basis, context) in sides.items():
            name = side.listener_name
            self._bases[side] = basis
            if not side.is_server:
                self.to_brokers[name] = TlsEnd(context, handshakes, goes_first=True)
                continue
            counts = self.counts[name] = HandshakeCounts()
            rules = None
            if not _protocol(config, name).uses_sasl:
                rules = PrincipalRules(_rules(config, name))
                _show(counts, name, metrics)  # of the others the logins are counted
            self.listeners[name] = TlsEnd(
                context,
                handshakes,
                is_server=True,
                goes_first=name == config.listeners.control_plane,
                when_secured=partial(_secured, counts, rules),
                when_failed=partial(self._failed, name),
            )
        for gauge, read in (("Begun", lambda: handshakes.begun), ("Waiting", lambda: handshakes.waiting)):
            metrics.gauge(MetricName("barnabas.network", "TlsHandshakes", gauge), read)

    def check(self, config: BrokerConfig) -> None:
        """Whether its keys and certificates can take the place of the present ones. Raises TlsConfigError."""
        for name in dict.fromkeys(side.listener_name for side in self._bases):
            self._exchange(config, name)

    def prepare(self, config: BrokerConfig) -> Prepared:
        """What is to be adopted for these configs, the files that they name included."""
        found: dict[str, Sides | TlsConfigError] = {}
        for name in dict.fromkeys(side.listener_name for side in self._bases):
            try:
                found[name] = self._exchange(config, name)
            except TlsConfigError as error:
                found[name] = error
        return found

    def adopt(self, prepared: Prepared) -> None:
        """New connections have it from now on; what cannot be taken is logged and left."""
        for name, exchanged in prepared.items():
            if isinstance(exchanged, TlsConfigError):
                if self._refused.get(name) != str(exchanged):  # it is found again every minute
                    self._refused[name] = str(exchanged)
                    self.logger.error("The keys of before are kept. %s", exchanged)
                continue
            self._refused.pop(name, None)
            for side, (basis, context) in exchanged.items():
                self._bases[side] = basis
                (self.listeners if side.is_server else self.to_brokers)[name].context = context
                self.logger.info("%s: new connections have other keys or certificates now", side)

    def _exchange(self, config: BrokerConfig, name: str) -> Sides:
        """What is to change for listeners of that name, ours and others'. Raises TlsConfigError."""
        exchanged: dict[_Side, Secured] = {}
        for side, former in self._bases.items():
            if side.listener_name != name:
                continue
            basis = _basis(config, side, self._files)
            fixed = {field: getattr(former.settings, field) for field in _FIXED}
            basis = basis._replace(settings=replace(basis.settings, **fixed))
            if basis != former:
                context = _context(side, basis)
                _check_exchange(side, config, former.stores, basis.stores)
                exchanged[side] = Secured(basis, context)
        if exchanged:
            before = self._contexts()
            after = {**before, **{side: context for side, (_, context) in exchanged.items()}}
            for servers, clients in ((before, after), (after, before), (after, after)):
                _check_brokers(name, servers, clients)
        return exchanged

    def _contexts(self) -> Contexts:
        """Those of now."""
        ends = {True: self.listeners, False: self.to_brokers}
        return {side: ends[side.is_server][side.listener_name].context for side in self._bases}

    def _failed(self, listener_name: str) -> None:
        self.counts[listener_name].failed += 1
        logins = self.logins.get(listener_name)
        if logins is not None:
            logins.failed += 1


def _sides(config: BrokerConfig) -> list[_Side]:
    listeners = config.listeners
    bound = [endpoint.listener_name for endpoint in listeners.bound if endpoint.security_protocol.uses_tls]
    others = sorted({listeners.inter_broker, listeners.for_controller})
    return [
        *(_Side(is_server=True, listener_name=name) for name in bound),
        *(_Side(is_server=False, listener_name=name) for name in others if _protocol(config, name).uses_tls),
    ]


def _protocol(config: BrokerConfig, listener_name: str) -> SecurityProtocol:
    """That of a listener, here and so at other brokers."""
    protocols = {endpoint.listener_name: endpoint.security_protocol for endpoint in config.listeners.bound}
    return protocols.get(listener_name, config.listeners.inter_broker_protocol)


def _basis(config: BrokerConfig, side: _Side, files: Files) -> _Basis:
    """Raises TlsConfigError."""
    name = side.listener_name
    is_given_by_name = f"{LISTENER_PREFIX}{name.lower()}.{_CLIENT_AUTH}" in config.listener_values
    asks_nobody = _protocol(config, name).uses_sasl and not is_given_by_name

    def value_of(key: str) -> Any:
        if key == _CLIENT_AUTH and asks_nobody:
            return "none"
        value = config.of_listener(name, key)
        return value.reveal() if isinstance(value, Password) else value

    try:
        settings = TlsSettings.of(value_of)
        return _Basis(settings, read_stores(settings, partial(_read, files)))
    except TlsConfigError as error:
        raise TlsConfigError(f"{side}: {error}") from None


def _context(side: _Side, basis: _Basis) -> ssl.SSLContext:
    """Raises TlsConfigError."""
    make = server_context if side.is_server else client_context
    try:
        return make(basis.settings, basis.stores, load_chain)
    except TlsConfigError as error:
        raise TlsConfigError(f"{side}: {error}") from None


def _check_exchange(side: _Side, config: BrokerConfig, before: Stores, after: Stores) -> None:
    """Whether a certificate may take another's place: whom it names is to stay, unless the configs say otherwise
    (KIP-978). Raises TlsConfigError.
    """
    former, later = before.key, after.key
    if former is None or later is None:
        return
    try:
        was, is_now = subject_name(former.certificate), subject_name(later.certificate)
        missing = alternative_names(former.certificate) - alternative_names(later.certificate)
    except NoPrincipalError as error:
        raise TlsConfigError(f"{side}: {error}") from None
    if was.lower() != is_now.lower() and not config.of_listener(side.listener_name, "ssl.allow.dn.changes"):
        raise TlsConfigError(f"{side}: the certificate is of {was}, and the new one of {is_now} (ssl.allow.dn.changes)")
    if missing and not config.of_listener(side.listener_name, "ssl.allow.san.changes"):
        raise TlsConfigError(f"{side}: the new certificate lacks alternative names (ssl.allow.san.changes)")


def _check_brokers(name: str, servers: Contexts, clients: Contexts) -> None:
    """Whether brokers with these stores let each other in where they speak to each other, as Kafka looks too: at the
    start, and with those of before and after an exchange, which brokers have for a time. Raises TlsConfigError.
    """
    listener, ours = _Side(is_server=True, listener_name=name), _Side(is_server=False, listener_name=name)
    if listener not in servers or ours not in clients:
        return
    failure = try_handshake(servers[listener], clients[ours])
    if failure is not None:
        why = as_words(failure.error, is_server=failure.of_server)
        raise TlsConfigError(
            f"{listener}: brokers would not let each other in: {why}; the trust store must have the authority of the"
            " key store's certificate, before and after an exchange"
        )


def _rules(config: BrokerConfig, listener_name: str) -> str:
    return str(config.of_listener(listener_name, "ssl.principal.mapping.rules"))


def _secured(counts: HandshakeCounts, rules: PrincipalRules | None, connection: Any, certificate: bytes | None) -> None:
    """A client has come in; without `rules` it says later who it is. Raises NoPrincipalError."""
    if rules is not None and certificate is not None and isinstance(connection, ServerConnection):
        connection.principal = _USER + rules.name(subject_name(certificate))
    counts.successful += 1


def _show(counts: HandshakeCounts, listener_name: str, metrics: MetricsRegistry) -> None:
    for attribute in ("successful", "failed"):
        tags = (("listener", listener_name),)
        name = MetricName("kafka.server", "socket-server-metrics", f"{attribute}-authentication-total", tags)
        metrics.gauge(name, partial(getattr, counts, attribute))


def _read(files: Files, path: str) -> bytes:
    """A whole file; a pipe is not waited for. Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = bytearray()
        while len(found) <= _FILE_BYTES_MAX:
            data = files.read(descriptor, 1 << 16)
            if not data:
                break
            found += data
        return bytes(found)
    finally:
        files.close(descriptor)
