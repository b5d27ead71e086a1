"""Doing something again until it works, its time is up, or it cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.client.errors import ClientTimeoutError
from barnabas.kernel.spoken import spoken_ms
from barnabas.link.errors import AuthenticationFailedError, InFlightLimitError, RequestTimeoutError
from barnabas.wire.errors import KafkaError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from barnabas.kernel.timers import Timers

_JITTER: Final = 0.2
_EXPONENT_MAX: Final = 20


def is_retriable(error: BaseException) -> bool:
    """Whether the same may work later: the connection, the time, or a broker that says so was in the way."""
    if isinstance(error, KafkaError):
        return error.retriable
    if isinstance(error, AuthenticationFailedError):
        return False
    return isinstance(error, ConnectionError | RequestTimeoutError | InFlightLimitError)


class Backoff:
    """Pauses that double from failure to failure, with jitter (KIP-580)."""

    __slots__ = ("_failures", "_first_ms", "_ms_max", "_random")

    def __init__(self, random: random.Random, first_ms: float, ms_max: float) -> None:
        self._random = random
        self._first_ms = first_ms
        self._ms_max = ms_max
        self._failures = 0

    def next_ms(self) -> float:
        """The pause after one more failure."""
        pause_ms = min(self._first_ms * 2.0 ** min(self._failures, _EXPONENT_MAX), self._ms_max)
        self._failures += 1
        return pause_ms * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def reset(self) -> None:
        """It worked: the next pause is the first again."""
        self._failures = 0


class Retry:
    """One call's time and pauses.

    while True:
        try:
            return await once(retry.attempt_ms)
        except Exception as error:
            await retry.again(error)
    """

    __slots__ = ("_attempt_ms_max", "_backoff", "_ends_at", "_now", "_timers", "timeout_ms", "what")

    def __init__(
        self,
        what: str,
        timeout_ms: float,
        attempt_ms_max: float,
        timers: Timers,
        now: Callable[[], float],
        backoff: Backoff,
    ) -> None:
        """`what` completes "... was not done within so many ms"; `now` is the loop's `time`."""
        self.what = what
        self.timeout_ms = timeout_ms
        self._attempt_ms_max = attempt_ms_max
        self._timers = timers
        self._now = now
        self._ends_at = now() + timeout_ms / 1_000
        self._backoff = backoff

    @property
    def left_ms(self) -> float:
        """What is left of the time; 0 when it is up."""
        return max(0.0, self._ends_at - self._now()) * 1_000

    @property
    def attempt_ms(self) -> float:
        """How long the next attempt may take: `attempt_ms_max`, and no longer than what is left."""
        return min(self.left_ms, self._attempt_ms_max)

    async def again(self, error: Exception) -> None:
        """Pauses after a failure. Raises the error itself where nothing would help, and ClientTimeoutError when the
        time is up.
        """
        if not is_retriable(error):
            raise error
        left_ms = self.left_ms
        if left_ms > 0:
            await self._timers.sleep(min(left_ms, self._backoff.next_ms()))
        if self.left_ms <= 0:
            raise ClientTimeoutError(
                f"{self.what} was not done within {spoken_ms(self.timeout_ms)}: {error}"
            ) from error
