"""How long a follower lets its leader keep a Fetch that has nothing to answer, and how soon it asks again after a
refusal.

A controller tells leaders and followers of a new partition at the same time, and a follower may be first: the leader
refuses it then, or knows nothing to refuse yet. Apache Kafka's followers leave the partition alone for
`replica.fetch.backoff.ms`, a second, and keep a Fetch that was sent before at the leader for up to
`replica.fetch.wait.max.ms`; so a new topic's first record takes that long to be acknowledged by all. Here both begin
with a few milliseconds and double up to what is configured.
"""

from __future__ import annotations

from typing import Final

FIRST_MS: Final = 20
_DOUBLINGS_MAX: Final = 30
_EARLY_MS: Final = 5.0
"""An answer that comes so much before its time was not brought about by the time."""


def retry_delay_ms(refusals: int, delay_ms_max: int) -> int:
    """How long a partition is left alone that was refused so many times on end, at least once."""
    return min(FIRST_MS << min(refusals - 1, _DOUBLINGS_MAX), delay_ms_max)


class FetchWait:
    """The `max_wait_ms` of one fetcher's requests. Times are seconds of the loop's clock.

    It is short after something has changed, here or, as far as an answer shows, at the leader: then the partitions that
    are fetched are likely to change, which the leader can only be told in the next request.
    """

    __slots__ = ("_asked_ms", "_current_ms", "_most_ms", "_sent", "is_short")

    def __init__(self, wait_ms_max: int) -> None:
        self._most_ms = wait_ms_max
        self.is_short = False
        """Whatever happens: partitions may come at any time that must not wait for an answer."""
        self._current_ms = min(FIRST_MS, wait_ms_max)
        self._asked_ms = 0.0
        self._sent = 0.0

    def shorten(self) -> None:
        """Partitions have come."""
        self._current_ms = min(FIRST_MS, self._most_ms)

    def begin(self, now: float, delay_end: float | None) -> int:
        """The wait of a request that is sent now. `delay_end` is when the next partition is to be asked for again."""
        wait_ms = min(FIRST_MS, self._most_ms) if self.is_short else self._current_ms
        if delay_end is not None:
            wait_ms = max(1, min(wait_ms, int((delay_end - now) * 1000) + 1))
        self._sent = now
        self._asked_ms = wait_ms
        return wait_ms

    def at_once(self) -> int:
        """The wait of the request that was begun, where another is to follow it whatever it is answered."""
        self._asked_ms = 0.0
        return 0

    def end_empty(self, now: float) -> None:
        """The answer to the last request names no partition."""
        if not self._asked_ms:
            return
        if (now - self._sent) * 1000 < self._asked_ms - _EARLY_MS:
            self.shorten()  # the leader does not keep the request: it has become another's leader, or begins to know us
        else:
            self._current_ms = min(self._current_ms * 2, self._most_ms)
