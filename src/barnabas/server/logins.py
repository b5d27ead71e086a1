"""How clients log in at this broker, and this broker at others: from its keys and the SCRAM credentials of the cluster.

Source: Kafka's `SaslChannelBuilder`. The login module of PLAIN is given for a listener and the mechanism, as
`listener.name.NAME.plain.sasl.jaas.config`; there is no file for Java's logins. What OAUTHBEARER takes and makes is
in `bearer_tokens`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from barnabas.config.broker_config import BrokerConfig
from barnabas.kernel.host import Entropy, Files, Host, OffloadKind
from barnabas.link.oauth_documents import read_file
from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.exchange import ServerExchange
from barnabas.sasl.jaas import PLAIN_MODULE, LoginModule, parse_login_module
from barnabas.sasl.mechanisms import AnyLogin, Login, check_mechanism, check_module
from barnabas.sasl.oauthbearer_login import OAuthBearerLogin
from barnabas.sasl.oauthbearer_messages import OAUTHBEARER
from barnabas.sasl.plain import PLAIN, PlainServer
from barnabas.sasl.scram_mechanisms import ScramMechanism
from barnabas.sasl.scram_server import FindCredential, FindToken, ScramServer
from barnabas.security.login import ListenerLogins
from barnabas.server.errors import BrokerStartError

_JAAS: Final = "sasl.jaas.config"
_OF_BEARER_TOKENS: Final = ("sasl.server.callback.handler.class", "sasl.login.callback.handler.class")
"""Of OAUTHBEARER, where Kafka's own classes are known by their names."""
_JAVA_CLASSES: Final = (
    "sasl.server.callback.handler.class",
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
)


def uses_scram(config: BrokerConfig) -> bool:
    """Whether any listener asks for a credential that ZooKeeper has."""
    return any(
        mechanism not in (PLAIN, OAUTHBEARER)
        for endpoint in config.listeners.bound
        if endpoint.security_protocol.uses_sasl
        for mechanism in config.of_listener(endpoint.listener_name, "sasl.enabled.mechanisms")
    )


Bearer = Callable[[BrokerConfig, str, LoginModule | None], Callable[[], ServerExchange]]
"""Makes what makes a listener's exchanges of OAUTHBEARER; raises LoginConfigError."""


def listener_logins(
    config: BrokerConfig,
    find: FindCredential,
    entropy: Entropy,
    find_token: FindToken = lambda *_: None,
    bearer: Bearer | None = None,
) -> dict[str, ListenerLogins]:
    """How clients log in, by the name of each listener with SASL; `bearer` is needed where one has OAUTHBEARER. Raises
    BrokerStartError for what is not there, or would let nobody in.
    """
    make = _Exchanges(find, entropy, find_token, bearer)
    return {
        endpoint.listener_name: _of_listener(config, endpoint.listener_name, make)
        for endpoint in config.listeners.bound
        if endpoint.security_protocol.uses_sasl
    }


def uses_bearer_tokens(config: BrokerConfig) -> bool:
    """Whether any listener takes tokens of OAUTHBEARER."""
    return any(
        OAUTHBEARER in config.of_listener(endpoint.listener_name, "sasl.enabled.mechanisms")
        for endpoint in config.listeners.bound
        if endpoint.security_protocol.uses_sasl
    )


async def load_libraries(host: Host) -> None:
    """Loads what checks tokens of OAUTHBEARER, if it is there, off the loop: it takes a tenth of a second."""
    from barnabas.sasl.json_web_keys import library

    with contextlib.suppress(ImportError):
        await host.offload(OffloadKind.CPU, library)


def check_logins(config: BrokerConfig, files: Files) -> None:
    """Raises BrokerStartError for what keys of logins ask for and is not there."""

    def check(config: BrokerConfig, name: str, module: LoginModule | None) -> Callable[[], ServerExchange]:
        from barnabas.server.bearer_tokens import check_tokens

        check_tokens(config, name, module, partial(read_file, files))
        return partial(PlainServer, {})  # nobody logs in by what is only checked

    listener_logins(config, lambda *_: None, bytes, bearer=check)
    for listener_name in {config.listeners.inter_broker, config.listeners.for_controller}:
        login_at_brokers(config, listener_name)


def login_at_brokers(config: BrokerConfig, listener_name: str) -> AnyLogin | None:
    """Who this broker is to others on one of their listeners; None where they do not ask. Raises BrokerStartError."""
    protocols = {endpoint.listener_name: endpoint.security_protocol for endpoint in config.listeners.bound}
    protocol = protocols.get(listener_name, config.listeners.inter_broker_protocol)
    if not protocol.uses_sasl:
        return None
    mechanism = str(config.values["sasl.mechanism.inter.broker.protocol"])
    key = _jaas_key(listener_name, mechanism)
    try:
        check_mechanism(mechanism)
        module = _login_module(config, listener_name, mechanism)
        if module is None:
            raise LoginConfigError(f"it is missing, and has the name and password of this broker at others: {key}")
        if mechanism != OAUTHBEARER:
            return Login.of_module(mechanism, module)
        return OAuthBearerLogin.of(module, partial(_value_of, config, listener_name))
    except LoginConfigError as error:
        raise BrokerStartError(f"{key}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """Makes what makes exchanges."""

    find: FindCredential
    entropy: Entropy
    find_token: FindToken
    bearer: Bearer | None

    def of(self, config: BrokerConfig, name: str, mechanism: str) -> Callable[[], ServerExchange]:
        """Those of a listener and a mechanism. Raises LoginConfigError."""
        module = _login_module(config, name, mechanism)
        if mechanism == OAUTHBEARER:
            if self.bearer is None:
                raise RuntimeError("a listener with OAUTHBEARER, and nobody to check tokens")
            return self.bearer(config, name, module)
        if mechanism != PLAIN:
            return partial(ScramServer, ScramMechanism(mechanism), self.find, self.entropy, self.find_token)
        if module is None:
            raise LoginConfigError(
                f"Listener {name} has PLAIN and no users: write {_jaas_key(name, mechanism)}="
                f'{PLAIN_MODULE} required user_NAME="PASSWORD"; with an option for each user'
            )
        return partial(PlainServer, module.passwords)


def _of_listener(config: BrokerConfig, name: str, make: _Exchanges) -> ListenerLogins:
    mechanisms = list(dict.fromkeys(config.of_listener(name, "sasl.enabled.mechanisms")))
    if not mechanisms:
        raise BrokerStartError(f"Listener {name} uses SASL, and sasl.enabled.mechanisms is empty: nobody could log in")
    exchanges: dict[str, Callable[[], ServerExchange]] = {}
    for mechanism in mechanisms:
        _check_classes(config, name, mechanism)
        try:
            check_mechanism(mechanism)
        except LoginConfigError as error:
            raise BrokerStartError(f"sasl.enabled.mechanisms of listener {name}: {error}") from None
        try:
            exchanges[mechanism] = make.of(config, name, mechanism)
        except LoginConfigError as error:
            raise BrokerStartError(f"{_jaas_key(name, mechanism)}: {error}") from None
    return ListenerLogins(
        exchanges=exchanges,
        lifetimes_ms={name_: _lifetime_ms(config, name, name_) for name_ in mechanisms},
        request_bytes_max=config.of_listener(name, "sasl.server.max.receive.size"),
    )


def _lifetime_ms(config: BrokerConfig, name: str, mechanism: str) -> int:
    return int(config.of_listener(name, "connections.max.reauth.ms", mechanism))


def _login_module(config: BrokerConfig, name: str, mechanism: str) -> LoginModule | None:
    """Raises LoginConfigError, which shows nothing of it."""
    # Not what is given without the mechanism, which Kafka does not heed either.
    text = config.listener_values.get(_jaas_key(name, mechanism))
    if text is None:
        return None
    module = parse_login_module(text.reveal())
    check_module(mechanism, module.name)
    return module


def _jaas_key(name: str, mechanism: str) -> str:
    return f"listener.name.{name.lower()}.{mechanism.lower()}.{_JAAS}"


def _check_classes(config: BrokerConfig, name: str, mechanism: str) -> None:
    """Taken and not heeded, a class that checks passwords would be a listener that checks others."""
    values: Mapping[str, Any] = {key: config.of_listener(name, key, mechanism) for key in _JAVA_CLASSES}
    handled = _OF_BEARER_TOKENS if mechanism == OAUTHBEARER else ()
    given = [key for key, value in values.items() if value is not None and key not in handled]
    if given:
        raise BrokerStartError(f"Java classes cannot be loaded here: leave out {', '.join(given)} of listener {name}")


def _value_of(config: BrokerConfig, name: str, key: str) -> Any:
    """None for a key that only clients have."""
    if key not in config.values:
        return None
    return config.of_listener(name, key, OAUTHBEARER)
