"""How a broker checks the tokens of OAUTHBEARER: from its keys, by listener. Source: KIP-255, KIP-768.

    listener.name.NAME.oauthbearer.sasl.server.callback.handler.class=
        org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
    sasl.oauthbearer.jwks.endpoint.url=https://idp.example.com/keys

Without the class tokens are unsecured, as in Kafka: whoever comes says who he is. Unlike Kafka, that is refused where
an address of keys is given, and the class is heeded too where it is given without listener and mechanism.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.config.broker_config import BrokerConfig
from barnabas.sasl.bearer_tokens import ValidateToken
from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.exchange import ServerExchange
from barnabas.sasl.jaas import LoginModule
from barnabas.sasl.json_web_keys import KEYS_BYTES_MAX, KeySet, KeySetError, check_library
from barnabas.sasl.oauthbearer_login import (
    UNSECURED_VALIDATOR_HANDLER,
    VALIDATOR_HANDLERS,
    check_address,
    path_of,
)
from barnabas.sasl.oauthbearer_messages import OAUTHBEARER
from barnabas.sasl.oauthbearer_server import OAuthBearerServer
from barnabas.sasl.signed_tokens import SignedTokenRules, SignedTokens
from barnabas.sasl.unsecured_tokens import UnsecuredTokens
from barnabas.server.signing_keys import KeyAddress, SigningKeys

if TYPE_CHECKING:
    from barnabas.server.shared_services import SharedServices

ReadFile = Callable[[str, int], bytes]
"""A file by its path, of so many bytes at most; raises OSError."""
_HANDLER: Final = "sasl.server.callback.handler.class"
_KEYS: Final = "sasl.oauthbearer.jwks.endpoint.url"


class BearerTokens:
    """The keys of all listeners with OAUTHBEARER."""

    def __init__(self, shared: SharedServices) -> None:
        self._shared = shared
        self._logger = shared.logs.logger("org.apache.kafka.common.security.oauthbearer")
        self._keys: dict[KeyAddress, SigningKeys] = {}

    def exchanges(
        self, config: BrokerConfig, listener_name: str, module: LoginModule | None
    ) -> Callable[[], ServerExchange]:
        """Makes the exchanges of a listener. Raises LoginConfigError."""
        return partial(OAuthBearerServer, self._validate(config, listener_name, module))

    def _validate(self, config: BrokerConfig, listener_name: str, module: LoginModule | None) -> ValidateToken:
        time_ms = self._shared.host.clock.time_ms
        address = key_address(config, listener_name, module)
        if address is None:
            self._logger.warning(
                "Listener %s takes OAUTHBEARER tokens that nobody has signed: whoever reaches it can be any user",
                listener_name,
            )
            return UnsecuredTokens({} if module is None else module.options, time_ms)
        keys = self._keys.get(address)
        if keys is None:
            keys = self._keys[address] = SigningKeys(address, self._shared.host, self._shared.timers, self._logger)
        return SignedTokens(token_rules(config, listener_name), keys.find, time_ms)

    async def start(self) -> None:
        """Fetches the keys, and waits some seconds for them."""
        for keys in self._keys.values():
            await keys.start()

    async def stop(self) -> None:
        """Fetches nothing from now on."""
        for keys in self._keys.values():
            await keys.stop()


def check_tokens(config: BrokerConfig, listener_name: str, module: LoginModule | None, read: ReadFile) -> None:
    """Raises LoginConfigError for what cannot work: a missing library, and a file without keys, among it."""
    address = key_address(config, listener_name, module)
    if address is None:
        UnsecuredTokens({} if module is None else module.options, int)
        return
    check_library()
    token_rules(config, listener_name)
    path = path_of(address.address)
    if path is not None:
        try:
            KeySet.decode(read(path, KEYS_BYTES_MAX))
        except (OSError, KeySetError) as error:
            raise LoginConfigError(f"{_KEYS}: {error}") from None


def key_address(config: BrokerConfig, listener_name: str, module: LoginModule | None) -> KeyAddress | None:
    """Where a listener's keys come from; None where tokens are unsecured. Raises LoginConfigError."""
    handler = config.of_listener(listener_name, "sasl.server.callback.handler.class", OAUTHBEARER)
    address = (config.of_listener(listener_name, "sasl.oauthbearer.jwks.endpoint.url", OAUTHBEARER) or "").strip()
    if handler not in (None, UNSECURED_VALIDATOR_HANDLER, *VALIDATOR_HANDLERS):
        raise LoginConfigError(f"{_HANDLER} must be {VALIDATOR_HANDLERS[0]}: other Java classes cannot be loaded")
    if handler not in VALIDATOR_HANDLERS:
        if address and handler is None:
            raise LoginConfigError(
                f"{_KEYS} is given, and nothing would check tokens by it: write"
                f" listener.name.{listener_name.lower()}.{OAUTHBEARER.lower()}.{_HANDLER}={VALIDATOR_HANDLERS[0]}"
            )
        return None
    if not address:
        raise LoginConfigError(f"{_HANDLER} needs {_KEYS}")
    check_address(_KEYS, address)
    options = {} if module is None else module.options
    refresh_ms = int(config.of_listener(listener_name, "sasl.oauthbearer.jwks.endpoint.refresh.ms", OAUTHBEARER))
    if refresh_ms <= 0:
        raise LoginConfigError("sasl.oauthbearer.jwks.endpoint.refresh.ms must be at least 1")
    return KeyAddress(
        address,
        refresh_ms,
        int(config.of_listener(listener_name, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", OAUTHBEARER)),
        int(config.of_listener(listener_name, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", OAUTHBEARER)),
        tuple(sorted((name, value) for name, value in options.items() if name.startswith("ssl."))),
    )


def token_rules(config: BrokerConfig, listener_name: str) -> SignedTokenRules:
    """What a listener's tokens have to say. Raises LoginConfigError."""
    issuer = config.of_listener(listener_name, "sasl.oauthbearer.expected.issuer", OAUTHBEARER)
    return SignedTokenRules(
        tuple(config.of_listener(listener_name, "sasl.oauthbearer.expected.audience", OAUTHBEARER) or ()),
        (issuer or "").strip() or None,
        config.of_listener(listener_name, "sasl.oauthbearer.scope.claim.name", OAUTHBEARER).strip(),
        config.of_listener(listener_name, "sasl.oauthbearer.sub.claim.name", OAUTHBEARER).strip(),
        config.of_listener(listener_name, "sasl.oauthbearer.clock.skew.seconds", OAUTHBEARER),
    )
