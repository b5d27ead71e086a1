"""What all logs of a broker share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from barnabas.kernel.host import Host
from barnabas.kernel.metrics import Timing
from barnabas.log.deletions import Deletions
from barnabas.log.log_config import LogSettings
from barnabas.log.write_queue import WriteQueue


@dataclass(frozen=True, slots=True)
class LogServices:
    """Handed to each log; `LogManager` makes it."""

    host: Host
    settings: LogSettings
    write_queue: WriteQueue
    deletions: Deletions
    logger: logging.Logger
    """`kafka.log.UnifiedLog`."""
    flush_timing: Timing
    """Kafka's LogFlushRateAndTimeMs."""

    @property
    def time_ms(self) -> Callable[[], int]:
        """The wall clock."""
        return self.host.clock.time_ms
