"""The latest state transitions of partitions and replicas, for DescribeController.

They come by the same effects as the lines of the state-change log. Of moves that the log is not asked for, only so many
are told as are kept here, because a failover moves every partition and every replica of the cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from barnabas.controller.leadership import LeaderAndIsr
from barnabas.kernel.host import Clock

Moved = TypeVar("Moved")
State = TypeVar("State")

TRANSITIONS_KEPT: Final = 100
"""How many are kept of partitions, and as many of replicas: a broker that starts moves as many replicas as it has."""


@dataclass(frozen=True, slots=True)
class StateTransition:
    """A partition, or one replica of it, went from one state to another; `fault` says why it could not."""

    topic: str
    partition: int
    broker_id: int | None
    """The broker of the replica that moved; None for the partition itself."""
    before: str
    after: str
    leadership: LeaderAndIsr | None = None
    """The leadership after the move; None where there is none."""
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class TimedTransition:
    """A move and when it was carried out, in ms since 1970."""

    time_ms: int
    move: StateTransition


class RecentTransitions:
    """The last `TRANSITIONS_KEPT` of partitions and of replicas."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._number = 0
        self._partitions: deque[tuple[int, TimedTransition]] = deque(maxlen=TRANSITIONS_KEPT)
        self._replicas: deque[tuple[int, TimedTransition]] = deque(maxlen=TRANSITIONS_KEPT)

    def add(self, move: StateTransition) -> None:
        """The latest."""
        self._number += 1
        moves = self._partitions if move.broker_id is None else self._replicas
        moves.append((self._number, TimedTransition(self._clock.time_ms(), move)))

    def clear(self) -> None:
        """A new term begins."""
        self._partitions.clear()
        self._replicas.clear()

    def latest(self, limit: int) -> tuple[TimedTransition, ...]:
        """At most `limit` of partitions and as many of replicas, all in their order."""
        kept = [entry for moves in (self._partitions, self._replicas) for entry in _last(moves, limit)]
        return tuple(timed for _, timed in sorted(kept, key=lambda entry: entry[0]))


def to_be_told(before: Mapping[Moved, State], *, all_of_them: bool) -> Iterable[tuple[Moved, State]]:
    """The moves to make lines of: all of them, or the last ones, which are kept even where nothing is logged."""
    return before.items() if all_of_them else _last(before.items(), TRANSITIONS_KEPT)


def _last(items: Collection[Moved], limit: int) -> Iterable[Moved]:
    return islice(items, max(0, len(items) - max(0, limit)), None)
