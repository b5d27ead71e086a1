"""How much of the loop's time a client's requests take, and what a quota says to that (KIP-124).

The time is that in which the loop works at a request: decoding and handling it, its coroutine's turns and steps, and
writing the answer; not what happens off the loop, nor waiting. Produce and Fetch on their fast paths, and Fetch
altogether, are measured by themselves (`client_throttles`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps
    from barnabas.network.connection import ServerConnection
    from barnabas.quotas.client_quotas import RateAccount
    from barnabas.serving.fetch_reads import FetchQuota

Result = TypeVar("Result")
PERCENT_PER_SECOND: Final = 100.0
EXEMPT: Final = frozenset(
    (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.FETCH,
    )
)
"""What brokers ask each other is nobody's; Fetch has an answer of its own to who takes too much."""


class RequestTime:
    """The time that one request takes; between `go_on` and `rest` it is measured."""

    __slots__ = ("_account", "_elapsed", "_since", "_spent_seconds")

    def __init__(self, account: RateAccount, elapsed: Callable[[], float]) -> None:
        """Begins to measure. `elapsed` is a fine clock, in seconds."""
        self._account = account
        self._elapsed = elapsed
        self._spent_seconds = 0.0
        self._since: float | None = elapsed()

    def go_on(self) -> None:
        """The loop works at it."""
        if self._since is None:
            self._since = self._elapsed()

    def rest(self) -> None:
        """It does no more for now."""
        if self._since is not None:
            self._spent_seconds += self._elapsed() - self._since
            self._since = None

    def charge(self) -> int:
        """Counts what was spent since the last time; for how many milliseconds the client is to be held back."""
        return self._account.take(self._percent())

    def count(self) -> None:
        """Counts what was spent since the last time, and holds nobody back."""
        self._account.count(self._percent())

    def note_throttled(self, throttle_ms: int) -> None:
        """The client is held back for so long."""
        self._account.note_throttled(throttle_ms)

    def _percent(self) -> float:
        if self._since is not None:
            now = self._elapsed()
            self._spent_seconds += now - self._since
            self._since = now
        spent_seconds, self._spent_seconds = self._spent_seconds, 0.0
        return spent_seconds * PERCENT_PER_SECOND


def charge(connection: ServerConnection, time: RequestTime, message: Any) -> None:
    """Has the client held back that takes too much time, and says so in the response."""
    time.go_on()
    throttle_ms = time.charge()
    if throttle_ms:
        told_ms = getattr(message, "throttle_time_ms", None)
        if told_ms is not None:
            message.throttle_time_ms = max(told_ms, throttle_ms)
        if throttle_ms >= (told_ms or 0):
            time.note_throttled(throttle_ms)
        connection.throttle(throttle_ms)


class Timed(Awaitable[Result]):
    """An awaitable, of which the turns are measured."""

    def __init__(self, outcome: Awaitable[Result], time: RequestTime) -> None:
        self._outcome = outcome
        self._time = time

    def __await__(self) -> Generator[Any, Any, Result]:
        time = self._time
        turns = self._outcome.__await__()
        sent: Any = None
        error: BaseException | None = None
        while True:
            time.go_on()
            try:
                waits_for = turns.send(sent) if error is None else turns.throw(error)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            finally:
                time.rest()
            sent = error = None
            try:
                sent = yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - it is the outcome's
                error = thrown


def timed_steps(steps: Steps[Result], time: RequestTime) -> Steps[Result]:
    """The steps, measured."""
    while True:
        time.go_on()
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        finally:
            time.rest()
        yield


def counted_steps(steps: Steps[Result], quota: FetchQuota | None) -> Steps[Result]:
    """The steps of a fetch, whose time counts after each of them; the same as they are without a quota."""
    if quota is None:
        return (yield from steps)
    while True:
        quota.begin()
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        finally:
            quota.end()
        yield
