"""How much of the partitions that a follower is behind with one response brings.

A follower has one request in flight for all that it fetches from a leader over one connection. What is written to a
partition that it is in sync with waits, with acks=all, until the follower has received and appended whatever is on its
way: with the usual `replica.fetch.response.max.bytes`, 10 MB of the partitions that it catches up with. So these get a
share of a response that takes about as long as the way to the follower and back; what it is in sync with is not
counted. (Our followers have a second connection for what they are behind with, once they know: `follower.hand_over`.)

A follower that is in sync with nothing keeps none of its own records waiting, but its leader reads and sends in one
turn what it is given, and it appends that in one: other partitions of either wait so long. So it gets some more at a
time, and no longer all that it asks for. Apache Kafka makes no such difference.
"""

from __future__ import annotations

from typing import Final

_BYTES_PER_SECOND: Final = 256 * 1024 * 1000
"""That a follower takes, roughly: what its appends and a quick network let through."""
_BYTES_PER_SECOND_AT_LEAST: Final = 64 * 1024 * 1000
"""That a follower is given altogether, however many rounds that takes. It is less than a gigabit carries, so that a
share that took long does not make the next one as large."""
_ROUND_SECONDS_MIN: Final = 0.001
"""No less is told apart by the loop's clock."""
PIECE_BYTES: Final = 1024 * 1024
"""That a leader reads and sends, and a follower appends, in a millisecond or two each."""


class CatchUpShare:
    """That of one session of a follower.

    Invariant: of any two responses with records, one has some that the follower is behind with. A share is what
    `_BYTES_PER_SECOND` carry in the shortest round so far, so that a long way makes nobody slow. Only rounds with no
    more than about that are measured: 10 MB take long on the shortest way, and would allow themselves again and again.
    Rounds that take longer because the machines are busy make up for that: since the last share so many bytes may have
    gathered as `_BYTES_PER_SECOND_AT_LEAST` carry, or a follower might be behind for good.
    """

    __slots__ = ("_answered", "_given", "_has_waited", "_seconds_since", "_shortest_round", "is_in_sync")

    def __init__(self) -> None:
        self.is_in_sync = False
        """With a partition that was looked at for its last request."""
        self._answered: float | None = None
        """When the last response that is measured was made; None when the next request has come."""
        self._shortest_round: float | None = None
        self._given: float | None = None
        """When the last response with records that the follower is behind with was made."""
        self._seconds_since = 0.0
        self._has_waited = False

    def asked(self, now: float) -> None:
        """A request has come."""
        if self._given is not None:
            self._seconds_since = now - self._given
        if self._answered is not None:
            taken = now - self._answered
            if self._shortest_round is None or taken < self._shortest_round:
                self._shortest_round = taken
            self._answered = None

    def answered(self, now: float, *, is_share: bool) -> None:
        """A response was made with records that the follower is behind with, with no more than its share of them or
        with all that it asked for."""
        gathered = _BYTES_PER_SECOND_AT_LEAST * self._seconds_since
        self._answered = now if is_share and gathered <= self._bytes_of_a_round else None
        self._given = now
        self._seconds_since = 0.0
        self._has_waited = False

    def may_wait(self) -> bool:
        """Whether a response may be without them, which it is then: every second one has some."""
        if self._has_waited:
            return False
        self._has_waited = True
        return True

    def limit(self, *, is_alone: bool, is_throttled: bool) -> int:
        """So many bytes of all that the follower is behind with, in one response; `is_alone` where it is in sync with
        nothing. What passes with a throttle has no gaps to make up for, which are the throttle's.
        """
        size_bytes = self.bytes
        if is_throttled:
            size_bytes = min(size_bytes, max(int(self._bytes_of_a_round), PIECE_BYTES))
        return max(size_bytes, PIECE_BYTES) if is_alone else size_bytes

    @property
    def bytes(self) -> int:
        """Of all that the follower is behind with, in one response, while it is in sync with others."""
        return int(self._bytes_of_a_round + _BYTES_PER_SECOND_AT_LEAST * self._seconds_since)

    @property
    def _bytes_of_a_round(self) -> float:
        return _BYTES_PER_SECOND * max(_ROUND_SECONDS_MIN, self._shortest_round or 0.0)
