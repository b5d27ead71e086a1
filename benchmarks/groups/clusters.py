"""Brokers that coordinate the groups that are measured (Linux)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FindCoordinatorRequest
from benchmarks.brokers.servers import BARNABAS, Broker, Cluster
from tests.support import wire_calls
from tests.support.waiting import wait_until

TOPIC = "owned"
LEADERS_SECONDS_MAX = 120.0
_FIND_COORDINATOR_VERSION = 4
_CPUCLOCK_SCHED = 2


@contextlib.contextmanager
def cluster_with_topic(
    kind: str, directory: Path, broker_count: int, partition_count: int, properties: dict[str, object]
) -> Iterator[Cluster]:
    """A started cluster that offers both protocols, where it is ours, with the topic; killed at the end."""
    if kind == BARNABAS:
        properties = {"group.coordinator.rebalance.protocols": "classic,consumer", **properties}
    made = Cluster(kind, directory, broker_count, properties=properties)
    try:
        made.start()
        port = made.brokers[0].port
        wire_calls.create_topic(port, TOPIC, partition_count, 1)
        for broker in made.brokers:
            wait_until(
                lambda: len(wire_calls.leaders(broker.port, TOPIC)) == partition_count,  # noqa: B023 - called here
                "the partitions have leaders",
                LEADERS_SECONDS_MAX,
            )
        yield made
    finally:
        made.stop()


def coordinator_of(running: Cluster, group_id: str) -> Broker:
    """The broker that coordinates the group; waits for `__consumer_offsets` where there is none yet."""

    def found() -> int | None:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
        answer = wire_calls.call(running.brokers[0].port, ApiKey.FIND_COORDINATOR, _FIND_COORDINATOR_VERSION, request)
        (coordinator,) = answer.coordinators
        return int(coordinator.port) if coordinator.error_code == ErrorCode.NONE else None

    port = wait_until(found, f"a coordinator of {group_id} is known")
    return next(broker for broker in running.brokers if broker.port == port)


def processor_seconds(process_id: int) -> float:
    """User and system time of a process so far, by the kernel's clock of the process: what is counted in ticks says
    little of one that works for some microseconds at a time.
    """
    return time.clock_gettime((~process_id << 3) | _CPUCLOCK_SCHED)
