"""What a broker tells of its work to whoever collects traces: spans, which leave the loop as plain facts.

Nobody waits for them: a span that has no room is dropped, and counted. What makes of them what a collector reads, and
sends it, is on a real machine only (`kernel.real_traces`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = str | int | float | bool
NAMES_MAX: Final = 1000
"""Of which a sampler keeps when the last span was."""


class SpanKind(enum.Enum):
    """As OpenTelemetry has them."""

    SERVER = "server"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span, at a time in ms since 1970."""

    time_ms: int
    name: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work that is over. `error` says why it failed, and is None where it has not."""

    name: str
    kind: SpanKind
    end_ms: int
    """Since 1970, by this machine's clock."""
    duration_ms: float
    attributes: Mapping[str, Value]
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None


class Traces(Protocol):
    """Where spans go."""

    def add(self, span: Span) -> None:
        """Never waits, and never raises: where there is no room, the span is dropped."""
        ...


class Sampler:
    """At most so many spans of each name in a second, so that what is rare is seen each time, and what is frequent
    costs no more under load than at rest.
    """

    def __init__(self, now: Callable[[], float], per_second: float) -> None:
        """`now` is the loop's time."""
        self._now = now
        self._gap_seconds = 1 / per_second
        self._next: dict[str, float] = {}

    def takes(self, name: str) -> bool:
        """Whether a span of the name is due; it counts as made then."""
        now = self._now()
        if now < self._next.get(name, now):
            return False
        if len(self._next) >= NAMES_MAX:
            self._next.clear()
        self._next[name] = now + self._gap_seconds
        return True
