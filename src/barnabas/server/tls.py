"""How this broker's listeners are secured, and its connections to other brokers: from its `ssl.*` keys.

A listener's keys go before those without its name, as in Kafka's `SslChannelBuilder`. `ssl.client.auth` counts for
listeners of SSL only, unless it is given for a listener of SASL_SSL by name. Who came in by SSL is whom its
certificate names, by `ssl.principal.mapping.rules`; without one, ANONYMOUS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.api.authentication import LoginCounts
from barnabas.config.broker_config import LISTENER_PREFIX, BrokerConfig
from barnabas.config.keys import Password
from barnabas.config.listeners import Endpoint, SecurityProtocol
from barnabas.kernel.host import Files
from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.real_key_files import load_chain
from barnabas.network.connection import ServerConnection
from barnabas.server.errors import BrokerStartError
from barnabas.tls.contexts import client_context, server_context
from barnabas.tls.distinguished_names import subject_name
from barnabas.tls.errors import TlsConfigError
from barnabas.tls.principal_rules import PrincipalRules
from barnabas.tls.settings import TlsSettings

if TYPE_CHECKING:
    import ssl

    from barnabas.link.handshakes import Handshakes
    from barnabas.link.tls import TlsEnd

_CLIENT_AUTH: Final = "ssl.client.auth"
_FILE_BYTES_MAX: Final = 32 * 1024 * 1024
_USER: Final = "User:"


def uses_tls(config: BrokerConfig) -> bool:
    """Whether any listener, and so perhaps a connection to another broker, is secured."""
    return any(endpoint.security_protocol.uses_tls for endpoint in config.listeners.bound)


def check_tls(config: BrokerConfig, files: Files) -> None:
    """Raises BrokerStartError for what keys of TLS ask for and cannot be done."""
    for endpoint in config.listeners.bound:
        if endpoint.security_protocol.uses_tls:
            server_tls(config, endpoint, files)
            rules_of(config, endpoint.listener_name)
    for name in {config.listeners.inter_broker, config.listeners.for_controller}:
        if protocol_of(config, name).uses_tls:
            client_tls(config, name, files)


def server_tls(config: BrokerConfig, endpoint: Endpoint, files: Files) -> ssl.SSLContext:
    """The context of a listener. Raises BrokerStartError."""
    name = endpoint.listener_name
    is_given_by_name = f"{LISTENER_PREFIX}{name.lower()}.{_CLIENT_AUTH}" in config.listener_values

    def value_of(key: str) -> Any:
        if key == _CLIENT_AUTH and endpoint.security_protocol is SecurityProtocol.SASL_SSL and not is_given_by_name:
            return "none"
        return _value(config, name, key)

    try:
        return server_context(TlsSettings.of(value_of), partial(_read, files), load_chain)
    except TlsConfigError as error:
        raise BrokerStartError(f"Listener {name}: {error}") from None


def client_tls(config: BrokerConfig, listener_name: str, files: Files) -> ssl.SSLContext:
    """The context of connections to other brokers' listeners of that name. Raises BrokerStartError."""
    try:
        settings = TlsSettings.of(partial(_value, config, listener_name))
        return client_context(settings, partial(_read, files), load_chain)
    except TlsConfigError as error:
        raise BrokerStartError(f"Connections to other brokers' listener {listener_name}: {error}") from None


def rules_of(config: BrokerConfig, listener_name: str) -> PrincipalRules:
    """Raises BrokerStartError."""
    try:
        return PrincipalRules(str(config.of_listener(listener_name, "ssl.principal.mapping.rules")))
    except TlsConfigError as error:
        raise BrokerStartError(str(error)) from None


def protocol_of(config: BrokerConfig, listener_name: str) -> SecurityProtocol:
    """That of a listener, here and so at other brokers."""
    protocols = {endpoint.listener_name: endpoint.security_protocol for endpoint in config.listeners.bound}
    return protocols.get(listener_name, config.listeners.inter_broker_protocol)


@dataclass(slots=True)
class HandshakeCounts:
    """What has become of the handshakes of one listener."""

    successful: int = 0
    failed: int = 0


class BrokerTls:
    """All of one broker: its listeners' ends, and those of its connections to others. Made where TLS is used only."""

    def __init__(self, config: BrokerConfig, files: Files, handshakes: Handshakes, metrics: MetricsRegistry) -> None:
        """Raises BrokerStartError."""
        self._config = config
        self._files = files
        self.handshakes = handshakes
        self.counts: dict[str, HandshakeCounts] = {}
        """By the names of the listeners."""
        self.logins: Mapping[str, LoginCounts] = {}
        """Of the listeners that ask for a login too: a handshake that fails there is a login that fails."""
        self.listeners: dict[str, TlsEnd] = {}
        """By the names of the listeners."""
        self.to_brokers: dict[str, TlsEnd] = {}
        """By the names of others' listeners."""
        from barnabas.link.tls import TlsEnd

        listeners = config.listeners
        for endpoint in listeners.bound:
            if endpoint.security_protocol.uses_tls:
                name = endpoint.listener_name
                counts = self.counts[name] = HandshakeCounts()
                rules = None if endpoint.security_protocol.uses_sasl else rules_of(config, name)
                if rules is not None:  # of the others the logins are counted
                    _show(counts, name, metrics)
                self.listeners[name] = TlsEnd(
                    server_tls(config, endpoint, files),
                    handshakes,
                    is_server=True,
                    goes_first=name == listeners.control_plane,
                    when_secured=partial(_secured, counts, rules),
                    when_failed=partial(self._failed, name),
                )
        for name in {listeners.inter_broker, listeners.for_controller}:
            if protocol_of(config, name).uses_tls:
                self.to_brokers[name] = TlsEnd(client_tls(config, name, files), handshakes, goes_first=True)
        for gauge, read in (("Begun", lambda: handshakes.begun), ("Waiting", lambda: handshakes.waiting)):
            metrics.gauge(MetricName("barnabas.network", "TlsHandshakes", gauge), read)

    def _failed(self, listener_name: str) -> None:
        self.counts[listener_name].failed += 1
        logins = self.logins.get(listener_name)
        if logins is not None:
            logins.failed += 1


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


def _value(config: BrokerConfig, listener_name: str, key: str) -> Any:
    value = config.of_listener(listener_name, key)
    return value.reveal() if isinstance(value, Password) else value


def _read(files: Files, path: str) -> bytes:
    """A whole file. Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY)
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
