"""A table that is read by Spark while the run goes on with looking at what else happens."""

from __future__ import annotations

import threading
from collections.abc import Callable

_POLL_SECONDS = 0.2


def worked_to_the_end(work: Callable[[], int], refuse_to_go_on: Callable[[], None]) -> Counting:
    """What comes of `work`, a number of rows or an error; `refuse_to_go_on` raises, now and then, when nobody wants it
    any more.
    """
    counting = Counting(work)
    while not counting.is_done(_POLL_SECONDS):
        refuse_to_go_on()
    refuse_to_go_on()
    return counting


class Counting:
    """Has Spark read something on a thread of its own, so that a large table, or brokers that hang, hold nobody up.

    The thread ends with the count, or with Spark's process.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        self.rows = 0
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._count, name="table", daemon=True)
        self._thread.start()

    def is_done(self, timeout_seconds: float) -> bool:
        """Waits so long; then `rows`, or else `error`, has what came of it."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _count(self) -> None:
        try:
            self.rows = self._work()
        except Exception as error:  # noqa: BLE001  # whatever it is, the run tells of it
            self.error = error
