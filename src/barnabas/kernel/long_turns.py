"""Turns of the loop that were too long: counts them by what ran, and logs them.

On a real machine `kernel.real_turn_watch` finds them; in the simulator no time passes in a turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.kernel.metrics import Meter, MetricName

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    from barnabas.kernel.metrics import MetricsRegistry

LONG_TURN_MS: Final = 50
NAMES_MAX: Final = 100
OTHER: Final = "other"
"""The name for all turns beyond `NAMES_MAX` other names."""
TOLD_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class LongTurn:
    """One turn of the loop that took more than `LONG_TURN_MS`."""

    name: str
    """What ran: one of few values, for a label."""
    duration_ms: int
    """The turn's length, within 10 ms."""
    processor_ms: int
    """The processor time of the loop's thread; much less than `duration_ms` when it waited."""
    collector_ms: int
    """The part of it that the garbage collector took."""
    place: str
    """The innermost functions of ours that ran, outer ones first; empty when none was seen."""


class LongTurnCount:
    """The long turns of one name."""

    __slots__ = ("longest_ms", "meter", "most_processor_ms", "told_at", "untold")

    def __init__(self, now: Callable[[], float]) -> None:
        self.meter = Meter(now)
        self.longest_ms = 0
        self.most_processor_ms = 0
        self.told_at: float | None = None
        self.untold = 0
        """Turns since the last log line with this name."""


class LongTurns:
    """Counts the long turns of one process; `count` is called on its loop.

    The log has at most one line per name and second, with the number of turns that got none; a turn that had more of
    the processor than all before it has a line in any case.
    """

    def __init__(
        self, now: Callable[[], float], logger: logging.Logger, metrics: MetricsRegistry | None = None
    ) -> None:
        """`metrics` gets a count and the longest turn for each name, when it is first counted."""
        self._now = now
        self._logger = logger
        self._metrics = metrics
        self._by_name: dict[str, LongTurnCount] = {}

    @property
    def by_name(self) -> Mapping[str, LongTurnCount]:
        return self._by_name

    @property
    def total(self) -> int:
        return sum(counted.meter.count for counted in self._by_name.values())

    @property
    def longest_ms(self) -> int:
        return max((counted.longest_ms for counted in self._by_name.values()), default=0)

    def count(self, turn: LongTurn) -> None:
        counted = self._of(turn.name)
        counted.meter.count += 1
        counted.longest_ms = max(counted.longest_ms, turn.duration_ms)
        processor_ms = min(turn.duration_ms, turn.processor_ms)
        is_longest = processor_ms > counted.most_processor_ms
        counted.most_processor_ms = max(counted.most_processor_ms, processor_ms)
        now = self._now()
        if counted.told_at is not None and now - counted.told_at < TOLD_AGAIN_SECONDS and not is_longest:
            counted.untold += 1
            return
        collector = f", {turn.collector_ms} ms of it collecting garbage" if turn.collector_ms else ""
        more = f"; {counted.untold} more since the last such line" if counted.untold else ""
        place = f", in {turn.place}" if turn.place else ""
        self._logger.warning(
            "One turn of the loop took %d ms (%d ms of processor time%s): %s%s%s",
            turn.duration_ms,
            turn.processor_ms,
            collector,
            turn.name,
            place,
            more,
        )
        counted.told_at = now
        counted.untold = 0

    def _of(self, name: str) -> LongTurnCount:
        counted = self._by_name.get(name)
        if counted is None:
            if len(self._by_name) >= NAMES_MAX and name != OTHER:
                return self._of(OTHER)
            counted = self._by_name[name] = LongTurnCount(self._now)
            if self._metrics is not None:
                tags = (("what", name),)
                self._metrics.add(MetricName("barnabas.kernel", "EventLoop", "LongTurnsPerSec", tags), counted.meter)
                for gauge, read in (
                    ("LongestTurnMs", lambda: counted.longest_ms),
                    ("LongestTurnProcessorMs", lambda: counted.most_processor_ms),
                ):
                    self._metrics.gauge(MetricName("barnabas.kernel", "EventLoop", gauge, tags), read)
        return counted
