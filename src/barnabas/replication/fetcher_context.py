"""What all fetchers of one broker share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.kernel.timers import Timers
from barnabas.replication.fetch_protocol import FetchProtocol
from barnabas.replication.ports import LeaderConnections
from barnabas.replication.settings import ReplicaSettings
from barnabas.replication.wake_ups import WakeUps

if TYPE_CHECKING:
    from barnabas.log.write_queue import WriteQueue


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """Handed to each fetcher by its manager."""

    broker_id: int
    broker_epoch: Callable[[], int]
    loop: asyncio.AbstractEventLoop
    timers: Timers
    settings: ReplicaSettings
    protocol: FetchProtocol
    connections: LeaderConnections
    write_queue: WriteQueue
    wake_ups: WakeUps
    logger: logging.Logger
