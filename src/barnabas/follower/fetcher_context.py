"""What all fetchers of one broker share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.follower.fetch_protocol import FetchProtocol
from barnabas.follower.ports import LeaderConnections, RemoteStates
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.timers import Timers
from barnabas.leader.wake_ups import WakeUps

if TYPE_CHECKING:
    from barnabas.log.partition.write_queue import WriteQueue
    from barnabas.quotas.replication_quota import ReplicationQuota


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
    quota: ReplicationQuota | None = None
    """What throttled replicas may fetch (KIP-73)."""
    remote: RemoteStates | None = None
    """Of a broker that has remote storage (KIP-405)."""
