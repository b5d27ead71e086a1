"""The quotas of clients, as handlers ask for them: what Produce, Fetch and changes of topics have to do with the
accounts of who asks.

Kafka counts whole requests and responses; here it is the bytes of their records, without what is around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.api.request_time import EXEMPT, PERCENT_PER_SECOND, RequestTime
from barnabas.quotas.client_quotas import THROTTLE_MS_MAX, AccountLimits, BucketAccount, ClientQuotas, RateAccount
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext
    from barnabas.api.produce_pipeline import ProduceQuota
    from barnabas.quotas.settings import ClientQuotaSettings, ControllerQuotaSettings
    from barnabas.serving.fetch_reads import FetchQuota

_USER: Final = "User:"
_AMPLE_PERCENT: Final = PERCENT_PER_SECOND
"""A second of the loop's time. Whoever may take so much more is not held back for a request that goes on, which has
taken far less: what it takes counts when it ends."""


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

    def produce_quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:
        """None for whoever may produce without limit."""
        user = user_of(principal)
        account, timed = self.produce.account(user, client_id), self.request.account(user, client_id)
        return None if account is None and timed is None else _ProduceQuota(account, timed, self.now, self.elapsed)

    def fetch_quota(self, principal: str, client_id: str | None) -> FetchQuota | None:
        """None for whoever may fetch without limit."""
        user = user_of(principal)
        account, timed = self.fetch.account(user, client_id), self.request.account(user, client_id)
        return None if account is None and timed is None else _FetchQuota(account, timed, self.now, self.elapsed)


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
    """The bytes and the time of those who share both accounts; either may be without limit.

    Every small request goes through this, at a time when next to nothing of it is in the processor's caches: so it has
    few functions and looks at few objects. Time is counted once, when the request ends; before that it is only looked
    whether it is too much.
    """

    __slots__ = ("_account", "_elapsed", "_now", "_since", "_timed", "_window")

    def __init__(
        self,
        account: RateAccount | None,
        timed: RateAccount | None,
        now: Callable[[], float],
        elapsed: Callable[[], float],
    ) -> None:
        """`account` is of bytes, `timed` of time, which `elapsed` tells in seconds; `now` is that of the accounts."""
        self._account = account
        self._timed = timed
        self._now = now
        self._elapsed = elapsed
        self._since: float | None = None
        self._window = -math.inf
        """The end of the window of `timed` in which a request was seen to be, which is to end within it."""

    def begin(self) -> None:
        """The loop works at a request."""
        if self._since is None and self._timed is not None:
            self._since = self._elapsed()

    def end(self) -> None:
        """It does no more; what it did, and was not counted before, is counted now."""
        since, timed = self._since, self._timed
        if since is not None and timed is not None:
            self._since = None
            percent = (self._elapsed() - since) * PERCENT_PER_SECOND
            if percent <= timed.left and self._window == timed.until > -math.inf:
                timed.unrecorded += percent
                timed.left -= percent
            else:
                timed.count(percent)
            self._window = -math.inf

    def _charge(self) -> int:
        """For how long to hold back whoever has taken the time so far; what is too much is counted at once."""
        since, timed = self._since, self._timed
        if timed is None or timed.left >= _AMPLE_PERCENT:
            return 0
        if since is None:
            return timed.take(0.0)
        at = self._elapsed()
        percent = (at - since) * PERCENT_PER_SECOND
        if timed.has_room(percent):
            return 0
        self._since = at
        return timed.take(percent)

    def _note(self, bytes_ms: int, time_ms: int) -> int:
        """The longer of both; it counts as that of its kind."""
        if bytes_ms > time_ms:
            if self._account is not None:
                self._account.note_throttled(bytes_ms)
        elif time_ms and self._timed is not None:
            self._timed.note_throttled(time_ms)
        return max(bytes_ms, time_ms)


class _ProduceQuota(_DataQuota):
    """What one may produce."""

    __slots__ = ()

    def throttle_ms(self, size_bytes: int) -> int:
        account, timed, now = self._account, self._timed, self._now()
        bytes_ms = time_ms = 0
        if account is not None:
            if size_bytes <= account.left and now < account.until:
                account.used_at = now
                account.unrecorded += size_bytes
                account.left -= size_bytes
            else:
                bytes_ms = account.take(size_bytes)
        if timed is not None:
            if timed.left >= _AMPLE_PERCENT and now < timed.until:
                timed.used_at = now
                self._window = timed.until
            else:
                time_ms = self._charge()
        return self._note(bytes_ms, time_ms) if bytes_ms or time_ms else 0


class _FetchQuota(_DataQuota):
    """What one may fetch."""

    __slots__ = ()

    @property
    def burst(self) -> float:
        return math.inf if self._account is None else self._account.burst

    def throttle_ms(self, size_bytes: int) -> int:
        account, bytes_ms = self._account, 0
        time_ms = self._charge()
        if account is not None:
            bytes_ms = account.take(size_bytes)
            if bytes_ms or time_ms:
                account.count(-size_bytes)
                if bytes_ms and not account.rate:  # a batch that is larger than any burst would never be given
                    bytes_ms = 0
                    if not time_ms:
                        account.count(size_bytes)
        return self._note(bytes_ms, time_ms) if bytes_ms or time_ms else 0


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
