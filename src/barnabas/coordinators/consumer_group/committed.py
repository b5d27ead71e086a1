"""Answers that wait until what they tell is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.wire.errors import ErrorCode

OnKnown = Callable[[ErrorCode], None]

_PASSED: Final = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
"""Outcomes after which the high watermark has passed what was appended."""


class Loaded:
    """What one load of a partition found, which another coordinator may have lost before all replicas had it: shared by
    the groups that were loaded.
    """

    __slots__ = ("is_committed",)

    def __init__(self) -> None:
        self.is_committed = False
        """Whether all that was loaded is."""

    def committed(self) -> None:
        """The high watermark has passed it."""
        self.is_committed = True


class CommitGate:
    """The appends of one group, in the order of the log, and who waits for the last of them.

    What is committed has all before it committed, too. What was loaded and is not committed, and what was not committed
    in time, is in doubt: nobody is told of the group's state until the high watermark has passed it.
    """

    __slots__ = ("_doubted", "_under_way", "loaded")

    def __init__(self, loaded: Loaded | None = None) -> None:
        self.loaded = loaded
        """None for a group that was made here."""
        self._under_way: dict[int, list[OnKnown]] = {}
        """By base offset."""
        self._doubted: int | None = None
        """The base offset of the last append that is in doubt."""

    def began(self, base_offset: int) -> None:
        self._under_way[base_offset] = []

    def ended(self, base_offset: int, error: ErrorCode) -> None:
        """The outcome of the append, of which those are told who have waited for it."""
        waiting = self._under_way.pop(base_offset, [])
        if error in _PASSED:
            self.committed(base_offset)
        elif self._doubted is None or self._doubted < base_offset:
            self._doubted = base_offset
        for on_known in waiting:
            on_known(error)

    def committed(self, offset: int) -> None:
        """The log is committed up to there."""
        if self._doubted is not None and self._doubted <= offset:
            self._doubted = None
        self.loaded = None  # which is before all that was appended here

    def when_known(self, on_known: OnKnown) -> None:
        """Calls with NONE when all that was appended is committed, perhaps before this returns; with the error of the
        append otherwise, or COORDINATOR_NOT_AVAILABLE while something is in doubt.
        """
        if self._under_way:
            self._under_way[next(reversed(self._under_way))].append(on_known)
        elif self._doubted is not None or (self.loaded is not None and not self.loaded.is_committed):
            on_known(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            on_known(ErrorCode.NONE)
