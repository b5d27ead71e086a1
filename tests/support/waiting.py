"""Waiting for a condition, bounded: the one place in the tests where time is spent on purpose."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

POLL_INTERVAL_SECONDS = 0.02


def where_others_work(bound: float) -> float:
    """A bound of what takes time: so much more where more processes than there are processors want one."""
    return bound * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(
    condition: Callable[[], Result | None],
    what: str,
    timeout_seconds: float = 60.0,
    evidence: Callable[[], str] | None = None,
) -> Result:
    """Calls `condition` until it returns something true, and returns that.

    `what` names the awaited state in the message of the `TimeoutError`; `evidence` (the tail of a log, say) is asked
    only then. `OSError` from the condition counts as "not yet", so that a server that does not listen yet needs no
    special case; every other exception passes through.
    """
    deadline = time.monotonic() + timeout_seconds
    failure: OSError | None = None
    while True:
        try:
            result = condition()
        except OSError as error:
            failure, result = error, None
        if result:
            return result
        if time.monotonic() >= deadline:
            reason = f" (last error: {failure})" if failure is not None else ""
            shown = f"\n{evidence()}" if evidence is not None else ""
            raise TimeoutError(f"{what}: not within {timeout_seconds:.0f} s{reason}{shown}")
        time.sleep(POLL_INTERVAL_SECONDS)
