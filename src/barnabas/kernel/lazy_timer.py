"""A time-out that is often reset and rarely expires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.kernel.timers import Timer, Timers

ROUNDING_SECONDS: Final = 1e-6
"""As `Timers`: what lies so little behind a time still belongs to it."""
LOOK_SECONDS_MAX: Final = 3600.0
"""How long a timer stands at most before it looks whether anything is waited for still: deadlines of clients go up to
24.8 days.
"""


class LazyTimer:
    """One deadline, for what waits again and again: resetting or clearing it moves no timer.

    Invariant: while a deadline is set, a timer stands that is due then or before; one that is due before looks where
    the deadline is by now. So the call is made as punctually as `Timers` makes it.
    """

    __slots__ = ("_callback", "_deadline", "_due", "_timer", "_timers", "_when_idle")

    def __init__(
        self, timers: Timers, callback: Callable[[], object], when_idle: Callable[[], object] | None = None
    ) -> None:
        """`when_idle` is called when nothing stands any more, `LOOK_SECONDS_MAX` after the deadline was cleared or
        before.
        """
        self._timers = timers
        self._callback = callback
        self._when_idle = when_idle
        self._deadline: float | None = None
        self._timer: Timer | None = None
        self._due = 0.0

    def set(self, deadline: float) -> None:
        """Sets the deadline to this time of the loop's clock, in seconds, replacing the former one."""
        self._deadline = deadline
        timer = self._timer
        if timer is not None:
            if self._due <= deadline:
                return
            timer.cancel()
        self._due = min(deadline, self._timers.now + LOOK_SECONDS_MAX)
        self._timer = self._timers.call_at(self._due, self._look)

    def clear(self) -> None:
        """Clears the deadline."""
        self._deadline = None

    def close(self) -> None:
        """Like `clear`, for good: no timer is left."""
        self._deadline = None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look(self) -> None:
        self._timer = None
        deadline = self._deadline
        if deadline is None:
            if self._when_idle is not None:
                self._when_idle()
            return
        if deadline > self._due + ROUNDING_SECONDS:
            self.set(deadline)
            return
        self._deadline = None
        self._callback()
