"""What all logs of a broker share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from barnabas.kernel.host import Host, OffloadKind
from barnabas.kernel.metrics import Timing
from barnabas.kernel.timers import Timers
from barnabas.log.directories.deletions import Deletions
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.partition.log_config import LogSettings
from barnabas.log.partition.write_queue import WriteQueue

Result = TypeVar("Result")


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
    checkpoint_start_offsets: Callable[[LogDirectory], Awaitable[None]]
    """Likewise."""
    flush_timing: Timing
    """Kafka's LogFlushRateAndTimeMs."""

    async def offload(
        self,
        kind: OffloadKind,
        function: Callable[..., Result],
        *arguments: Any,
        directory: LogDirectory,
        order: Hashable | None = None,
    ) -> Result:
        """As the directory's own `offload`, behind all that was changed on the loop before. Raises OSError where that
        fails, too."""
        if directory.queue is not None:  # without it, the work begins in this turn
            await directory.queue.settle()
        return await directory.offload(kind, function, *arguments, order=order)

    @property
    def time_ms(self) -> Callable[[], int]:
        """The wall clock."""
        return self.host.clock.time_ms
