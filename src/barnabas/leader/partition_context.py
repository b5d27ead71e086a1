"""What all partitions of one broker share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.leader.isr_changes import IsrChange, OnAnswer
from barnabas.leader.isr_expansion_retries import Reconsidered
from barnabas.leader.wake_ups import WakeUps

if TYPE_CHECKING:
    from barnabas.kernel.metrics import Meter


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """Handed to each partition by the replica manager."""

    broker_id: int
    now: Callable[[], float]
    """The loop's time, in seconds."""
    lag_max_seconds: float
    """`replica.lag.time.max.ms`."""
    is_alive: Callable[[int], bool]
    """Whether a broker is alive, as the metadata cache knows."""
    alter_partition: Callable[[IsrChange, OnAnswer], None]
    """Asks the controller for another ISR."""
    reconsider_later: Callable[[Reconsidered, float], None]
    """Has the followers outside of the ISR looked at again, those that fetch after this time."""
    wake_ups: WakeUps
    expands: Meter
    shrinks: Meter
    failed_updates: Meter
    logger: logging.Logger
    state_changes: logging.Logger
