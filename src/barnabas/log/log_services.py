"""What all logs of a broker share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.kernel.metrics import Timing
from barnabas.kernel.timers import Timers
from barnabas.log.deletions import Deletions
from barnabas.log.log_config import LogSettings
from barnabas.log.log_directory import LogDirectory
from barnabas.log.write_queue import WriteQueue

Result = TypeVar("Result")
_FULL_RETRY_MS: Final = 10


@dataclass(frozen=True, slots=True)
class LogServices:
    """Handed to each log; `LogManager` makes it."""

    host: Host
    timers: Timers
    settings: LogSettings
    write_queue: WriteQueue
    deletions: Deletions
    logger: logging.Logger
    """`kafka.log.UnifiedLog`."""
    checkpoint_recovery_points: Callable[[LogDirectory], Awaitable[None]]
    """Writes those of a whole directory, as they are now; a failure takes it offline."""
    flush_timing: Timing
    """Kafka's LogFlushRateAndTimeMs."""

    async def offload(
        self, kind: OffloadKind, function: Callable[..., Result], *arguments: Any, order: Hashable | None = None
    ) -> Result:
        """Runs work that must not be lost off the loop; where the host's queue is full, as soon as it is not."""
        while True:
            try:
                work = self.host.offload(kind, function, *arguments, order=order)
            except OffloadFullError:
                await self.timers.sleep(_FULL_RETRY_MS)
            else:
                return await work

    @property
    def time_ms(self) -> Callable[[], int]:
        """The wall clock."""
        return self.host.clock.time_ms
