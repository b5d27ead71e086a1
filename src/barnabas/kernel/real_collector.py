"""The policy of Python's collector of reference cycles for a process whose loop must not stand still.

A collection stops everything for as long as it looks: some 50 ns for each object that was just made, up to 1 us for one
of many that were made and changed in no order. What is counted by references goes at once all the same; the collector
only finds cycles that nobody holds. So automatic collections look at young objects, at so many that it takes some
milliseconds. What has survived, or has come in too large a number (a request of 200,000 partitions, decoded while the
collector was off), is set aside (`gc.freeze`) and not looked at again.

Bounded: cycles among what was set aside are lost only until everything is looked at again, which is whenever what the
process holds has doubled, and stays so for `GROWN_CHECKS` checks: what large requests hold while they are under way is
not worth a look. The look takes long where the state is large, and is as rare as a doubling of it. What the process
holds is told in blocks of the allocator: to count what is set aside (`gc.get_freeze_count`) is to walk through all of
it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any, Final

THRESHOLDS: Final = (10_000, 1, 1_000)
"""Objects more than before until the young ones are looked at; such looks until those that survived one are, too. Each
object is looked at twice, whatever these are, and thrice as many as the first at once. It was at 120,000 (20,000 and
4): 45 to 60 ms on a slow machine while a controller takes over, beside what else the turn had to do.
"""
YOUNG_OBJECTS_MAX: Final = 6 * THRESHOLDS[0]
"""More young objects than this are set aside without a look."""
CHECK_SECONDS: Final = 30.0
GROWN_CHECKS: Final = 4
"""So many checks in a row have to find it doubled. A burst of large requests has been seen by one, and everything that
they held was looked at: 352 ms of processor time in one turn of the loop.
"""
GROWTH_BLOCKS_MIN: Final = 2_000_000
"""What may be held beyond twice what was there after the last look at all. A list or a mapping is two blocks and more,
with what it holds.
"""


def rest_while_importing() -> None:
    """Call this first: imports create many lasting objects."""
    gc.set_threshold(*THRESHOLDS)


class CollectorPolicy:
    """Sets aside what is old or too much, from `start` to `stop`.

    `start` looks at all that there is: call it before anybody is served, and `set_aside` when all has been loaded.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.set_aside_times = 0
        """Because of too many young objects, or instead of a look at all."""
        self.full_times = 0
        self._loop = loop
        self._kept = 0
        """Blocks of memory that were held after the last look at all."""
        self._grown_checks = 0
        """So many checks in a row have found it doubled."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._look_at_all()
        gc.callbacks.append(self._called)
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check_again)

    def set_aside(self) -> None:
        """What has been made so far is to stay, however much: from now on growth counts from here. It is not looked at,
        which would take some 50 ms at a broker that has nothing yet, and a second at one that has loaded much.
        """
        gc.freeze()
        self._kept = sys.getallocatedblocks()

    def stop(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        gc.callbacks.remove(self._called)
        gc.unfreeze()

    def check(self) -> None:
        """Runs a full collection if one is due. Called every `CHECK_SECONDS`."""
        if sys.getallocatedblocks() <= 2 * self._kept + GROWTH_BLOCKS_MIN:
            self._grown_checks = 0
            return
        self._grown_checks += 1
        if self._grown_checks >= GROWN_CHECKS:
            self._grown_checks = 0
            self.full_times += 1
            gc.callbacks.remove(self._called)
            try:
                self._look_at_all()
            finally:
                gc.callbacks.append(self._called)

    def _check_again(self) -> None:
        self.check()
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check_again)

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        self.set_aside()

    def _called(self, phase: str, info: dict[str, Any]) -> None:
        """By the collector, before and after each of its runs."""
        if phase == "start" and (info["generation"] == 2 or gc.get_count()[0] > YOUNG_OBJECTS_MAX):
            # It then finds nothing to look at.
            self.set_aside_times += 1
            gc.freeze()
