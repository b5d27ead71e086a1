"""Work off the loop that must not be lost when the host has enough of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.kernel.timers import Timers

Result = TypeVar("Result")
_FULL_RETRY_MS: Final = 10


async def offload_with_retry(
    host: Host,
    timers: Timers,
    kind: OffloadKind,
    function: Callable[..., Result],
    *arguments: Any,
    order: Hashable | None = None,
    lane: str | None = None,
) -> Result:
    """Runs the function off the loop; where the host's queue is full, as soon as it is not. Raises what it raises."""
    while True:
        try:
            work = host.offload(kind, function, *arguments, order=order, lane=lane)
        except OffloadFullError:
            await timers.sleep(_FULL_RETRY_MS)
        else:
            return await work
