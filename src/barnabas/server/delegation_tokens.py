"""The delegation tokens of a broker: kept where `delegation.token.secret.key` is set, and deleted by the controller
when they have expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.config.derived import delegation_token_secret_key
from barnabas.config.settings import setting, take
from barnabas.security.delegation_tokens import DelegationTokens, TokenLifetimes
from barnabas.security.token_changes import TokenChanges
from barnabas.security.token_store import TokenStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.config.broker_config import BrokerConfig
    from barnabas.kernel.scheduler import Scheduler
    from barnabas.sasl.scram_mechanisms import ScramMechanism
    from barnabas.sasl.scram_server import TokenLogin
    from barnabas.server.coordination_session import CoordinationSession
    from barnabas.server.shared_services import SharedServices

_CHECK: Final = "delete-expired-tokens"
_CHECK_OF_ELECTED: Final = "delete-expired-tokens-once-elected"
_INTERVAL_MS_MAX: Final = 2**40


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """By Kafka's names."""

    lifetime_ms_max: int = setting("delegation.token.max.lifetime.ms", int)
    expiry_ms: int = setting("delegation.token.expiry.time.ms", int)
    check_interval_ms: int = setting("delegation.token.expiry.check.interval.ms", int)


class BrokerTokens:
    """The tokens, who keeps them as ZooKeeper has them, and who deletes them."""

    def __init__(
        self, shared: SharedServices, secret: str, settings: TokenSettings, session: CoordinationSession
    ) -> None:
        logger = shared.logs.logger("kafka.server.DelegationTokenManagerZk")
        self.tokens = DelegationTokens(secret, shared.host.entropy)
        self.store = TokenStore(
            shared.host,
            session,
            self.tokens,
            TokenLifetimes(settings.lifetime_ms_max, settings.expiry_ms),
            timers=shared.timers,
            logger=logger,
        )
        self.changes = TokenChanges(shared.host, session, self.store, timers=shared.timers, logger=logger)
        """To be a listener of the session, and to be started before any client can log in."""
        self._interval_ms = min(settings.check_interval_ms, _INTERVAL_MS_MAX)
        self._scheduler: Scheduler | None = None
        self._is_controller: Callable[[], bool] = lambda: False
        self._shared = shared

    @classmethod
    def of(cls, shared: SharedServices, config: BrokerConfig, session: CoordinationSession) -> BrokerTokens | None:
        """None where there are none."""
        secret = delegation_token_secret_key(config.values)
        if secret is None:
            return None
        return cls(shared, secret.reveal(), take(TokenSettings, config.values), session)

    def start_checks(self, is_controller: Callable[[], bool]) -> None:
        """Deletes expired tokens at every interval, while this broker is the controller."""
        self._scheduler, self._is_controller = self._shared.scheduler, is_controller
        self._scheduler.schedule(
            _CHECK,
            lambda: self.store.remove_expired(is_controller),
            delay_ms=self._interval_ms,
            period_ms=self._interval_ms,
        )

    def elected(self) -> None:
        """This broker has become the controller: what the former one has left is deleted now."""
        scheduler = self._scheduler
        if scheduler is not None and _CHECK in scheduler.tasks and _CHECK_OF_ELECTED not in scheduler.tasks:
            scheduler.schedule(_CHECK_OF_ELECTED, lambda: self.store.remove_expired(self._is_controller))

    async def stop(self) -> None:
        """Follows no changes and deletes nothing from now on."""
        self._scheduler = None
        await self.changes.stop()


def login_of_token(tokens: BrokerTokens | None, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
    """For `ScramServer`."""
    return None if tokens is None else tokens.tokens.login(mechanism, token_id)
