"""The quotas of clients, as handlers ask for them: what Produce and Fetch have to do with the accounts of who asks.

Kafka counts whole requests and responses; here it is the bytes of their records, without what is around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from barnabas.quotas.client_quotas import AccountLimits, ClientQuotas, RateAccount

if TYPE_CHECKING:
    from barnabas.api.produce_pipeline import ProduceQuota
    from barnabas.quotas.settings import ClientQuotaSettings
    from barnabas.serving.fetch_reads import FetchQuota

_USER: Final = "User:"


class ClientThrottles:
    """The quotas of a broker's clients, by kind."""

    def __init__(self, settings: ClientQuotaSettings, now: Callable[[], float]) -> None:
        """`now` is the loop's time in seconds."""
        limits = AccountLimits(now, settings.window_count, settings.window_seconds)
        self.produce = ClientQuotas(RateAccount, limits)
        self.fetch = ClientQuotas(RateAccount, limits)
        self.by_config: Mapping[str, ClientQuotas[Any]] = {
            "producer_byte_rate": self.produce,
            "consumer_byte_rate": self.fetch,
        }
        """By the name of the config that sets them."""


class QuotaAccess:
    """Everybody may write everything, as fast as the quotas say (`produce_pipeline.ProduceAccess`)."""

    def __init__(self, throttles: ClientThrottles) -> None:
        self._produce = throttles.produce

    @property
    def epoch(self) -> int:
        return self._produce.epoch

    def place_of(self, address: str) -> str:  # noqa: ARG002 - all are alike
        return ""

    def may_write(self, principal: str, place: str, topic: str) -> bool:  # noqa: ARG002 - all may
        return True

    def quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:
        account = self._produce.account(user_of(principal), client_id)
        return None if account is None else _ProduceQuota(account)


class _ProduceQuota:
    """What one may produce."""

    __slots__ = ("_account",)

    def __init__(self, account: RateAccount) -> None:
        self._account = account

    def throttle_ms(self, size_bytes: int) -> int:
        throttle_ms = self._account.take(size_bytes)
        if throttle_ms:
            self._account.note_throttled(throttle_ms)
        return throttle_ms


class ConsumerQuotas:
    """What clients may fetch (`fetch_fast_path.FetchQuotas`)."""

    def __init__(self, throttles: ClientThrottles) -> None:
        self._fetch = throttles.fetch

    @property
    def epoch(self) -> int:
        """Another number whenever a request may have another quota."""
        return self._fetch.epoch

    def of(self, principal: str, client_id: str | None) -> FetchQuota | None:
        """None for whoever may fetch without limit."""
        account = self._fetch.account(user_of(principal), client_id)
        return None if account is None else _FetchQuota(account)


class _FetchQuota:
    """What one may fetch."""

    __slots__ = ("_account",)

    def __init__(self, account: RateAccount) -> None:
        self._account = account

    @property
    def burst(self) -> float:
        return self._account.burst

    def throttle_ms(self, size_bytes: int) -> int:
        account = self._account
        throttle_ms = account.take(size_bytes)
        if not throttle_ms:
            return 0
        account.count(-size_bytes)
        if not account.rate:  # a batch that is larger than any burst would never be given
            account.count(size_bytes)
            return 0
        account.note_throttled(throttle_ms)
        return throttle_ms


def user_of(principal: str) -> str:
    """The name of a user, as quotas are set for it."""
    return principal.removeprefix(_USER)
