"""What queries have to say while a run lasts: lines, and rows that are shown. They tell it on threads of their own, and
the run's own thread prints it, as fast as it is read.
"""

from __future__ import annotations

import threading
from typing import Final

from barnabas.pipelines.progress import ShownRows

NOTES_MAX: Final = 8
"""How many wait to be printed; each may be rows of some megabytes."""
_LOOK_SECONDS: Final = 0.2


class RunNotes:
    """A queue with a bound: a query whose rows nobody reads waits, ahead of its next batch, and holds no more of them.

    INVARIANT: nobody waits for long once it is closed, or `stop` is set, since whoever reads may wait for a query then.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._changed = threading.Condition()
        self._notes: list[str | ShownRows] = []
        self._is_open = True

    def put(self, note: str | ShownRows) -> None:
        """Takes a note, from any thread; waits while there are NOTES_MAX."""
        with self._changed:
            while len(self._notes) >= NOTES_MAX and self._is_open and not self._stop.is_set():
                self._changed.wait(_LOOK_SECONDS)
            self._notes.append(note)

    def taken(self) -> list[str | ShownRows]:
        """What there is, in the order in which it was said."""
        with self._changed:
            notes, self._notes = self._notes, []
            self._changed.notify_all()
        return notes

    def close(self) -> None:
        """The run ends: whoever waits goes on."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
