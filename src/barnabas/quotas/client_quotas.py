"""Quotas of clients (KIP-13, KIP-55, KIP-124, KIP-599): whose they are, and how much each has taken.

A quota is set for a user, a client id, or both, by name or for all that have none by name. The first of eight that is
set holds for a request: user and client id, user and every client id, user; every user and client id, every user and
every client id, every user; client id, every client id. All requests for which it is the same take from one account.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from barnabas.quotas.rate import Rate
from barnabas.quotas.samples import SampledSum
from barnabas.quotas.token_bucket import TokenBucket

THROTTLE_MS_MAX: Final = 2**31 - 1
"""What a response can say, 24 days."""
_UNUSED_SECONDS_MAX: Final = 3600.0
"""An account that was not used for so long is dropped, as in Kafka."""
ACCOUNTS_MAX: Final = 8192
"""Of one kind of quota: then half of them go, those that have taken the least of what they may. Whoever changes his
client id with each request has a fresh account each time anyhow, and must not have others let off that way."""
NAMES_CHARACTERS_MAX: Final = 1 << 22
"""Of the users and client ids of all accounts of one kind, likewise: a client id may have 32,767, of four bytes each in
memory where one of them is wide."""
_FEW_ACCOUNTS: Final = 64
"""Before there are so many, it is not looked which are unused."""
_AVERAGE_WINDOWS: Final = 2
_AVERAGE_WINDOW_SECONDS: Final = 30


class Default(enum.Enum):
    """What stands for all names that have no quota of their own."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
Name = str | Default


class QuotaEntity(NamedTuple):
    """Whose a quota is: a user's, a client id's, or of both together; None where any is meant, whatever is set."""

    user: Name | None = None
    client_id: Name | None = None


class AccountLimits(NamedTuple):
    """What holds for all accounts of one kind."""

    now: Callable[[], float]
    """The loop's time in seconds."""
    window_count: int
    window_seconds: float
    throttle_ms_max: int = THROTTLE_MS_MAX
    """For how long a request is held back at most."""


class QuotaAccount:
    """What those have taken who share a quota. `user` and `client_id` are "" where the quota does not tell them apart.

    Units are those of the quota: bytes, percents of a second, changes. Times are seconds of the loop's clock.
    """

    __slots__ = (
        "_limits",
        "_rate",
        "_throttle_count",
        "_throttle_ms",
        "bound",
        "client_id",
        "throttled_until",
        "used_at",
        "user",
    )

    def __init__(self, user: str, client_id: str, bound: float, limits: AccountLimits) -> None:
        self.user = user
        self.client_id = client_id
        self.bound = bound
        """Units per second."""
        self.used_at = limits.now()
        """The last time that something was taken."""
        self.throttled_until = -math.inf
        """When the last request that was held back may go on."""
        self._limits = limits
        self._rate = Rate(limits.window_count, limits.window_seconds)
        self._throttle_ms = SampledSum(_AVERAGE_WINDOWS, _AVERAGE_WINDOW_SECONDS)
        self._throttle_count = SampledSum(_AVERAGE_WINDOWS, _AVERAGE_WINDOW_SECONDS)

    @property
    def rate(self) -> float:
        """Units per second that are taken."""
        return self._rate.measure(self._limits.now())

    def rank(self, now: float) -> float:
        """By which it counts: what was taken of late, or somewhat more, to what may be taken in a second; below 0 of
        what is unused for so long that it counts for nothing, the lower the longer."""
        unused_seconds, limits = now - self.used_at, self._limits
        if unused_seconds >= limits.window_count * limits.window_seconds:
            return -unused_seconds
        taken = self._rate.at_most
        return taken / self.bound if self.bound > 0 else math.inf if taken > 0 else 0.0

    @property
    def name_characters(self) -> int:
        return len(self.user) + len(self.client_id)

    def limit(self, bound: float) -> None:
        """Takes another bound."""
        self.bound = bound

    def note_throttled(self, throttle_ms: int) -> None:
        """A request was held back for so long."""
        now = self._limits.now()
        self.throttled_until = max(self.throttled_until, now + throttle_ms / 1000)
        self._throttle_ms.record(throttle_ms, now)
        self._throttle_count.record(1, now)

    @property
    def throttle_ms_average(self) -> float:
        """Of the last minute's requests that were held back, for how long they were; 0 without any."""
        now = self._limits.now()
        count, _ = self._throttle_count.total(now)
        return self._throttle_ms.total(now)[0] / count if count else 0.0

    def _milliseconds(self, seconds: float) -> int:
        limit_ms = self._limits.throttle_ms_max
        return round(seconds * 1000) if seconds * 1000 < limit_ms else limit_ms


class RateAccount(QuotaAccount):
    """An account of a rate.

    Every small request takes from one, so what is taken within one window is only added up here as long as it is surely
    not too much, and comes to the rate when the window is over or somebody asks. Whoever cannot afford to call `take`
    does so himself: value <= left, now < until.
    """

    __slots__ = ("_now", "burst", "left", "unrecorded", "until")

    def __init__(self, user: str, client_id: str, bound: float, limits: AccountLimits) -> None:
        super().__init__(user, client_id, bound, limits)
        self._now = limits.now
        self.unrecorded = 0.0
        """What was taken in the present window and is not recorded yet, `used_at` the last time of it."""
        self.until = -math.inf
        """When that is over; before all times where what is taken has to be recorded."""
        self.left = 0.0
        """What may be taken until then, and surely hold nothing back."""
        self.limit(bound)

    @property
    def rate(self) -> float:
        self._record()
        return super().rate

    def limit(self, bound: float) -> None:
        super().limit(bound)
        limits = self._limits
        self.burst = bound * (limits.window_count - 1) * limits.window_seconds
        """As much as may be taken at once after a pause, and hold nothing back."""
        self._record()
        self.left = self.burst - self._rate.at_most

    def take(self, value: float) -> int:
        """Counts what was taken; for how many milliseconds nothing more is to be, 0 where more may."""
        now = self._now()
        if value <= self.left and now < self.until:
            self.used_at = now
            self.unrecorded += value
            self.left -= value
            return 0
        self._add(value, now)
        if self.left >= 0:
            return 0  # spread over more windows it is less
        seconds = self._rate.throttle_seconds(self.bound, now)
        return self._milliseconds(seconds) if seconds else 0

    def has_room(self, value: float) -> bool:
        """Whether so much more would surely hold nothing back."""
        return value <= self.left

    def count(self, value: float) -> None:
        """Counts what was taken, or, with a minus, what was not after all; holds nothing back."""
        now = self._now()
        if 0 <= value <= self.left and now < self.until:
            self.used_at = now
            self.unrecorded += value
            self.left -= value
        else:
            self._add(value, now)

    def rank(self, now: float) -> float:
        self._record()
        return super().rank(now)

    def _add(self, value: float, now: float) -> None:
        self._record()
        self.used_at = now
        rate = self._rate
        self.left = self.burst - rate.record(value, now)
        self.until = rate.window_end

    def _record(self) -> None:
        """Has the rate know of all that was taken; what is taken next is recorded at once."""
        if self.until > -math.inf:
            self._rate.record(self.unrecorded, self.used_at)
            self.unrecorded = 0.0
            self.until = -math.inf


class BucketAccount(QuotaAccount):
    """An account of tokens (KIP-599)."""

    __slots__ = ("_bucket",)

    def __init__(self, user: str, client_id: str, bound: float, limits: AccountLimits) -> None:
        super().__init__(user, client_id, bound, limits)
        self._bucket = TokenBucket(limits.window_count, limits.window_seconds)

    @property
    def tokens(self) -> float:
        """How much may be taken now."""
        return self._bucket.measure(self.bound, self._limits.now())

    def wait_ms(self) -> int:
        """For how many milliseconds nothing may be taken, 0 where something may."""
        return self._milliseconds(self._bucket.throttle_seconds(self.bound, self._limits.now()))

    def take(self, value: float) -> int:
        """Counts what was taken, also where nothing might be; returns `wait_ms` then."""
        self.used_at = now = self._limits.now()
        self._bucket.record(value, self.bound, now)
        self._rate.record(value, now)
        return self.wait_ms()


Account = TypeVar("Account", bound=QuotaAccount)


class ClientQuotas(Generic[Account]):
    """The quotas of one kind, and their accounts."""

    def __init__(
        self, open_account: Callable[[str, str, float, AccountLimits], Account], limits: AccountLimits
    ) -> None:
        self.bounds: dict[QuotaEntity, float] = {}
        """What is set, in units per second; empty where nothing is, which is all that a hot path looks at."""
        self.epoch = 0
        """Another number whenever a request may have another account than before: what `account` said holds until then.
        """
        self._open_account = open_account
        self._limits = limits
        self._accounts: dict[tuple[str, str], Account] = {}
        self._name_characters = 0
        self._of_user: dict[str, list[Account]] = {}
        self._of_client: dict[str, list[Account]] = {}
        """The accounts that a quota of both together may be of, by either."""
        self._looked_at_from = _FEW_ACCOUNTS

    def __iter__(self) -> Iterator[Account]:
        """The accounts."""
        return iter(tuple(self._accounts.values()))

    @property
    def throttled_count(self) -> int:
        """How many accounts are held back now."""
        now = self._limits.now()
        return sum(account.throttled_until > now for account in self._accounts.values())

    def set(self, entity: QuotaEntity, bound: float | None) -> int:
        """Sets a quota, or removes it. Returns how many accounts were looked at: all of them for what is set for names
        without a quota of their own, otherwise those of the name.
        """
        if self.bounds.get(entity) == bound:
            return 0
        if bound is None:
            del self.bounds[entity]
        else:
            self.bounds[entity] = bound
        self.epoch += 1
        concerned = self._concerned_by(entity)
        for account in concerned:
            account.limit(self._bound_of(account.user, account.client_id))
        return len(concerned)

    def account(self, user: str, client_id: str | None) -> Account | None:
        """From which a request takes; None where no quota holds for it."""
        if not self.bounds:
            return None
        key = self._shared_by(user, client_id or "")
        account = self._accounts.get(key)
        if account is None:
            bound = self._bound_of(*key)
            if bound == math.inf:
                return None
            self._make_room()
            account = self._accounts[key] = self._open_account(*key, bound, self._limits)
            self._index(account)
        return None if account.bound == math.inf else account

    def _concerned_by(self, entity: QuotaEntity) -> Collection[Account]:
        """The accounts whose bound `_bound_of` may take from this quota."""
        user, client_id = entity
        if isinstance(user, str) and client_id is DEFAULT:
            return self._of_user.get(user, ())
        if user is DEFAULT and isinstance(client_id, str):
            return self._of_client.get(client_id, ())
        if user is DEFAULT or client_id is DEFAULT:
            return self._accounts.values()
        account = self._accounts.get((user or "", client_id or ""))
        return () if account is None else (account,)

    def _index(self, account: Account) -> None:
        self._name_characters += account.name_characters
        if account.user and account.client_id:
            self._of_user.setdefault(account.user, []).append(account)
            self._of_client.setdefault(account.client_id, []).append(account)

    def _shared_by(self, user: str, client_id: str) -> tuple[str, str]:
        """User and client id of the account, "" for the one that the quota does not tell apart."""
        bounds = self.bounds
        if QuotaEntity(user, client_id) in bounds or QuotaEntity(user, DEFAULT) in bounds:
            return user, client_id
        if QuotaEntity(user, None) in bounds:
            return user, ""
        if QuotaEntity(DEFAULT, client_id) in bounds or QuotaEntity(DEFAULT, DEFAULT) in bounds:
            return user, client_id
        return (user, "") if QuotaEntity(DEFAULT, None) in bounds else ("", client_id)

    def _bound_of(self, user: str, client_id: str) -> float:
        """The quota of an account; infinite without any. As in Kafka, a quota by client id does not hold for requests
        that have none: what is set for the user alone does."""
        found: tuple[QuotaEntity, ...] = ()
        if user and client_id:
            found = (
                QuotaEntity(user, client_id),
                QuotaEntity(user, DEFAULT),
                QuotaEntity(DEFAULT, client_id),
                QuotaEntity(DEFAULT, DEFAULT),
            )
        elif user:
            found = (QuotaEntity(user, None), QuotaEntity(DEFAULT, None))
        elif client_id:
            found = (QuotaEntity(None, client_id), QuotaEntity(None, DEFAULT))
        return next((self.bounds[entity] for entity in found if entity in self.bounds), math.inf)

    def _make_room(self) -> None:
        """For one more account: drops what is unused, and if that is not enough, what counts least."""
        accounts, now = self._accounts, self._limits.now()
        if len(accounts) < self._looked_at_from and self._name_characters < NAMES_CHARACTERS_MAX:
            return
        kept = [account for account in accounts.values() if account.used_at >= now - _UNUSED_SECONDS_MAX]
        if len(kept) >= ACCOUNTS_MAX or self._name_characters >= NAMES_CHARACTERS_MAX:
            kept = _those_that_count(kept, now)
        self._accounts = {(account.user, account.client_id): account for account in kept}
        self._of_user, self._of_client = {}, {}
        self._name_characters = 0
        for account in kept:
            self._index(account)
        self._looked_at_from = min(max(_FEW_ACCOUNTS, 2 * len(kept)), ACCOUNTS_MAX)
        self.epoch += 1


def _those_that_count(accounts: list[Account], now: float) -> list[Account]:
    """At most half of what there may be, with names of at most half of what they may have together."""
    kept: list[Account] = []
    characters_left = NAMES_CHARACTERS_MAX // 2
    for account in sorted(accounts, key=lambda account: account.rank(now), reverse=True):
        if len(kept) < ACCOUNTS_MAX // 2 and account.name_characters <= characters_left:
            kept.append(account)
            characters_left -= account.name_characters
    return kept
