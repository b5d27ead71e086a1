"""The quotas of clients, as handlers ask for them: what Produce, Fetch and changes of topics have to do with the
accounts of who asks.

Kafka counts whole requests and responses; here it is the bytes of their records, without what is around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.api.request_time import EXEMPT, RequestTime
from barnabas.quotas.client_quotas import THROTTLE_MS_MAX, AccountLimits, BucketAccount, ClientQuotas, RateAccount
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext
    from barnabas.api.produce_pipeline import ProduceQuota
    from barnabas.quotas.settings import ClientQuotaSettings, ControllerQuotaSettings
    from barnabas.serving.fetch_reads import FetchQuota

_USER: Final = "User:"


class ClientThrottles:
    """The quotas of a broker's clients, by kind."""

    def __init__(
        self,
        settings: ClientQuotaSettings,
        controller_settings: ControllerQuotaSettings,
        now: Callable[[], float],
        elapsed: Callable[[], float],
    ) -> None:
        """`now` is the loop's time in seconds, `elapsed` a finer clock."""
        self.now = now
        self.elapsed = elapsed
        limits = AccountLimits(now, settings.window_count, settings.window_seconds)
        self.produce = ClientQuotas(RateAccount, limits)
        self.fetch = ClientQuotas(RateAccount, limits)
        window_ms = round(settings.window_seconds * 1000)
        self.request = ClientQuotas(RateAccount, limits._replace(throttle_ms_max=window_ms))
        of_controller = AccountLimits(now, controller_settings.window_count, controller_settings.window_seconds)
        self.controller_mutation = ClientQuotas(BucketAccount, of_controller)
        self.by_config: Mapping[str, ClientQuotas[Any]] = {
            "producer_byte_rate": self.produce,
            "consumer_byte_rate": self.fetch,
            "request_percentage": self.request,
            "controller_mutation_rate": self.controller_mutation,
        }
        """By the name of the config that sets them."""

    def request_time(self, context: RequestContext) -> RequestTime | None:
        """What measures a request from now on; None where no quota holds for its time."""
        if context.api_key in EXEMPT:
            return None
        account = self.request.account(user_of(context.principal), context.client_id)
        return None if account is None else RequestTime(account, self.elapsed)

    def _time_of(self, principal: str, client_id: str | None) -> RequestTime | None:
        account = self.request.account(user_of(principal), client_id)
        return None if account is None else RequestTime(account, self.elapsed)

    def produce_quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:
        """None for whoever may produce without limit."""
        account = self.produce.account(user_of(principal), client_id)
        time = self._time_of(principal, client_id)
        return None if account is None and time is None else _ProduceQuota(account, time)

    def fetch_quota(self, principal: str, client_id: str | None) -> FetchQuota | None:
        """None for whoever may fetch without limit."""
        account = self.fetch.account(user_of(principal), client_id)
        time = self._time_of(principal, client_id)
        return None if account is None and time is None else _FetchQuota(account, time)


class QuotaAccess:
    """Everybody may write everything, as fast as the quotas say (`produce_pipeline.ProduceAccess`)."""

    def __init__(self, throttles: ClientThrottles) -> None:
        self._throttles = throttles

    @property
    def epoch(self) -> int:
        throttles = self._throttles
        return throttles.produce.epoch + throttles.request.epoch

    def place_of(self, address: str) -> str:  # noqa: ARG002 - all are alike
        return ""

    def may_write(self, principal: str, place: str, topic: str) -> bool:  # noqa: ARG002 - all may
        return True

    def quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:
        return self._throttles.produce_quota(principal, client_id)


class ConsumerQuotas:
    """What clients may fetch (`fetch_fast_path.FetchQuotas`)."""

    def __init__(self, throttles: ClientThrottles) -> None:
        self._throttles = throttles

    @property
    def epoch(self) -> int:
        """Another number whenever a request may have another quota."""
        throttles = self._throttles
        return throttles.fetch.epoch + throttles.request.epoch

    def of(self, principal: str, client_id: str | None) -> FetchQuota | None:
        """None for whoever may fetch without limit."""
        return self._throttles.fetch_quota(principal, client_id)


class _DataQuota:
    """The bytes and the time of those who share both accounts; either may be without limit."""

    __slots__ = ("_account", "_time")

    def __init__(self, account: RateAccount | None, time: RequestTime | None) -> None:
        self._account = account
        self._time = time
        if time is not None:
            time.rest()

    def begin(self) -> None:
        """The loop works at a request."""
        if self._time is not None:
            self._time.go_on()

    def end(self) -> None:
        """It does no more; what it did since the request was counted is counted too."""
        if self._time is not None:
            self._time.rest()
            self._time.count()

    def _charge(self) -> int:
        return 0 if self._time is None else self._time.charge()

    def _note(self, bytes_ms: int, time_ms: int) -> int:
        """The longer of both; it counts as that of its kind."""
        if bytes_ms > time_ms:
            if self._account is not None:
                self._account.note_throttled(bytes_ms)
        elif time_ms and self._time is not None:
            self._time.note_throttled(time_ms)
        return max(bytes_ms, time_ms)


class _ProduceQuota(_DataQuota):
    """What one may produce."""

    __slots__ = ()

    def throttle_ms(self, size_bytes: int) -> int:
        account = self._account
        bytes_ms = 0 if account is None else account.take(size_bytes)
        if self._time is None and not bytes_ms:
            return 0
        return self._note(bytes_ms, self._charge())


class _FetchQuota(_DataQuota):
    """What one may fetch."""

    __slots__ = ()

    @property
    def burst(self) -> float:
        return math.inf if self._account is None else self._account.burst

    def throttle_ms(self, size_bytes: int) -> int:
        account, bytes_ms, time_ms = self._account, 0, self._charge()
        if account is not None:
            bytes_ms = account.take(size_bytes)
            if bytes_ms or time_ms:
                account.count(-size_bytes)
                if bytes_ms and not account.rate:  # a batch that is larger than any burst would never be given
                    bytes_ms = 0
                    if not time_ms:
                        account.count(size_bytes)
            elif self._time is None:
                return 0
        return self._note(bytes_ms, time_ms)


class MutationQuota:
    """What one request may have the controller change: partitions that are made and deleted (KIP-599).

    A strict one refuses what comes when nothing may be taken any more; older clients, which do not know that error, are
    only held back. So one change is never too large, and the next ones wait for it.
    """

    def __init__(self, account: BucketAccount | None, now: Callable[[], float], *, is_strict: bool) -> None:
        self._account = account
        self._now = now
        self._is_strict = is_strict
        self._admitted: set[str] = set()
        self._held_back_until = 0.0

    def admit(self, topic: str, partition_count: int) -> KafkaError | None:
        """Counts so many partitions, once for each topic, however often its change is tried; or says why they may
        not be changed now.
        """
        account = self._account
        if account is None or topic in self._admitted:
            return None
        if self._is_strict:
            if account.tokens < 0:
                self._held_back_until = self._now() + account.wait_ms() / 1000
                return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            account.take(partition_count)
        else:
            self._held_back_until = self._now() + account.take(partition_count) / 1000
        self._admitted.add(topic)
        return None

    def throttle(self, context: RequestContext, response: Mutated) -> None:
        """Says in the response for how long the client is held back, and does it."""
        account, left_seconds = self._account, self._held_back_until - self._now()
        if account is not None and left_seconds > 0:
            throttle_ms = min(round(left_seconds * 1000), THROTTLE_MS_MAX)
            response.throttle_time_ms = throttle_ms
            context.connection.throttle(throttle_ms)
            account.note_throttled(throttle_ms)


class Mutated(Protocol):
    """A response to a request that has the controller change something."""

    throttle_time_ms: int


class MutationQuotas:
    """What clients may have the controller change."""

    def __init__(self, throttles: ClientThrottles) -> None:
        self._throttles = throttles

    def of(self, context: RequestContext, strict_since: int) -> MutationQuota:
        """That of a request; it is strict from this version of its API on."""
        throttles = self._throttles
        account = throttles.controller_mutation.account(user_of(context.principal), context.client_id)
        return MutationQuota(account, throttles.now, is_strict=context.api_version >= strict_since)


def user_of(principal: str) -> str:
    """The name of a user, as quotas are set for it."""
    return principal.removeprefix(_USER)
