"""One thing that is asked of the cluster again and again, what was answered last, and how old that is."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from barnabas.client.errors import ClientTimeoutError
from barnabas.link.errors import RequestTimeoutError, UnsupportedVersionError
from barnabas.wire.errors import KafkaError
from barnabas.wire.primitives import ProtocolError

if TYPE_CHECKING:
    from barnabas.kernel.host import Host

Result = TypeVar("Result")

SHARE: Final = 100
"""An answer that took long is asked for again only after that many times as long: a broker that did nothing else
meanwhile gives 1% of a core to this question.
"""
IDLE_FACTOR: Final = 5
"""How much more seldom is asked while nobody looks."""
_COSTS_KEPT: Final = 3
STALE_FACTOR: Final = 3
"""After so many intervals without an answer, what is known is called stale."""


class Question(Generic[Result]):
    """Asked by `run`, and answered in `value`; `error` says why the last attempt failed, if it did."""

    def __init__(
        self,
        host: Host,
        name: str,
        api: str,
        ask: Callable[[], Awaitable[Result]],
        *,
        every_seconds: float,
        timeout_seconds: float,
        is_watched: Callable[[], bool],
        logger: logging.Logger,
        cost: Callable[[Result], float] | None = None,
        pace: float = 1.0,
    ) -> None:
        """`cost` tells from an answer how many seconds brokers may have worked for it; by default it is as long as it
        took. It is for what is asked of several brokers, of which one may be dead. With a higher `pace` it is asked so
        many times as often.
        """
        self.name = name
        self.api = api
        """What is sent, in Kafka's words."""
        self.every_seconds = every_seconds / pace
        self._share = SHARE / pace
        self.value: Result | None = None
        self.answered_ms: int | None = None
        self.took_seconds = 0.0
        self.error: str | None = None
        self.answers = 0
        self._host = host
        self._ask = ask
        self._timeout_seconds = timeout_seconds
        self._is_watched = is_watched
        self._logger = logger
        self._cost = cost
        self._costs: deque[float] = deque(maxlen=_COSTS_KEPT)
        self._was_to_pause_seconds = 0.0
        """After the last answer, as it looked then."""

    @property
    def pause_seconds(self) -> float:
        """How long it is not asked after the last attempt."""
        pause = self.every_seconds * (1 if self._is_watched() else IDLE_FACTOR)
        # What is really expensive is so each time; once in a while an answer waits for something else.
        return pause if self.error is not None else max(pause, self._share * min(self._costs, default=0.0))

    def age_ms(self, now_ms: int) -> int | None:
        """How old the answer is; None where there was none."""
        return None if self.answered_ms is None else max(0, now_ms - self.answered_ms)

    def is_stale(self, now_ms: int) -> bool:
        """Whether there should be a newer answer."""
        age_ms = self.age_ms(now_ms)
        seconds_max = STALE_FACTOR * max(self.pause_seconds, self._timeout_seconds / 2)
        # Who begins to look finds an answer of the time when nobody did.
        return age_ms is None or age_ms > 1_000 * max(seconds_max, self._was_to_pause_seconds + self._timeout_seconds)

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            await self.ask_once()
            # In steps, so that somebody who begins to look soon sees something new.
            asked_at = self._host.loop.time()
            while (left := asked_at + self.pause_seconds - self._host.loop.time()) > 0:  # noqa: ASYNC110 - how long depends on who looks
                await asyncio.sleep(min(left, self.every_seconds))

    async def ask_once(self) -> None:
        """Asks, and takes the answer or the reason why there is none."""
        began = self._host.loop.time()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                value = await self._ask()
        except Exception as error:
            self.error = failure(error)
            if self.error == "":
                self.error = f"no answer within {self._timeout_seconds:g} s"
            if self.error is None:
                # A mistake of ours: the other questions go on, and the page says that this one does not.
                self._logger.exception("Asking for %s failed", self.name)
                self.error = f"a mistake of the console: {type(error).__name__}"
        else:
            self.value = value
            self.error = None
            self.answers += 1
            self.answered_ms = self._host.clock.time_ms()
            self.took_seconds = self._host.loop.time() - began
            self._costs.append(self.took_seconds if self._cost is None else self._cost(value))
            self._was_to_pause_seconds = self.pause_seconds


def failure(error: Exception) -> str | None:
    """Why a question is not answered, in words, which are empty for a time-out; None for a mistake of ours."""
    if isinstance(error, TimeoutError | ClientTimeoutError | RequestTimeoutError):
        return str(error)
    if isinstance(error, KafkaError | ConnectionError | UnsupportedVersionError | ProtocolError):
        return str(error) or type(error).__name__
    return None
