"""When a process that ended by itself is started again."""

from __future__ import annotations

from typing import Final

PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
STABLE_SECONDS: Final = 60.0
"""A process that has run this long did not end because of its start."""


class RestartPauses:
    """The pauses of one process: twice as long after each short life, up to a minute, for ever: what keeps it from
    running, such as a full disk, may pass.
    """

    def __init__(self) -> None:
        self._next_seconds = PAUSE_SECONDS_MIN

    def after_life_of(self, seconds: float) -> float:
        """The pause after a run of this length; 0 when the process never ran."""
        if seconds >= STABLE_SECONDS:
            self._next_seconds = PAUSE_SECONDS_MIN
        pause = self._next_seconds
        self._next_seconds = min(2 * pause, PAUSE_SECONDS_MAX)
        return pause
