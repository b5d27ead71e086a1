"""A large group settles, by the classic protocol and by the next one (KIP-848): how long that takes, and what it costs.

    python -m benchmarks.groups [--members N] [--partitions N] [--spread SECONDS] [--leaving N] [--leaves N]
        [--rounds N] [--brokers N] [--delay MS] [--classic-interval MS] [--interval MS] [--waiting-interval MS]
        [--idle SECONDS] [--kafka] [--json FILE]

The members, each with a connection to the coordinator that is open already, join one group at once, or evenly over
--spread seconds: timed from the first request until each owns its share and no partition is without an owner, by what
members themselves say. So again from when some of them begin to leave, several times, each at another moment between
two heartbeats, since it is heartbeats by which members hear of it; the medians count. Heartbeats are as often as
clients send them by default (3 s in the classic protocol, 5 s in the other), and `group.initial.rebalance.delay.ms` is
Kafka's default. A member that leads assigns by range. "Without an owner" adds up over partitions: two of them for a
second are 2 s. Processor time is that of the coordinator's process; with one broker that is everything. With --kafka
Apache Kafka 3.9.1 takes its turn, which has the classic protocol only. The run fails where a partition ever had two
owners.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from barnabas.kernel.real_host import fastest_loop_factory
from benchmarks.brokers.servers import BARNABAS, KAFKA, Broker
from benchmarks.groups.clusters import TOPIC, cluster_with_topic, coordinator_of, processor_seconds
from benchmarks.groups.figures import Ownership
from benchmarks.groups.members import (
    CLASSIC,
    CLASSIC_HEARTBEAT_MS,
    MEMBERS,
    NEXT,
    ClassicMember,
    Connection,
    NextMember,
)
from benchmarks.ratios import Row, table

ROUNDS = 3
GROUP = "large"
SETTLE_SECONDS_MAX = 300.0
CONNECTIONS_AT_ONCE = 50
QUIET_INTERVALS = 2
"""Between two changes, so that everybody has said what it owns."""
NEXT_OURS, CLASSIC_OURS, CLASSIC_KAFKA = (BARNABAS, NEXT), (BARNABAS, CLASSIC), (KAFKA, CLASSIC)
NAMES = {
    NEXT_OURS: "Barnabas, consumer protocol",
    CLASSIC_OURS: "Barnabas, classic protocol",
    CLASSIC_KAFKA: "Apache Kafka, classic protocol",
}
ROWS = {
    "join": Row("all join, until each owns its share", "s", 0.5, False),
    "join unowned": Row("... partitions without an owner", "s", None, False),
    "join cpu": Row("... processor time of the coordinator", "s", None, False),
    "idle cpu": Row("nothing happens: processor time of the coordinator", "% of a core", None, False),
    "leave": Row("some leave, until the others own all in equal shares", "s", 0.5, False),
    "leave unowned": Row("... partitions without an owner", "s", None, False),
    "leave cpu": Row("... processor time of the coordinator", "s", None, False),
    "requests": Row("requests of all members", "", None, False),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """What one change of the group took; seconds."""

    taken: float
    unowned: float
    cpu: float


def main(arguments: Sequence[str] | None = None) -> int:
    given = parsed(arguments)
    kinds = [NEXT_OURS, CLASSIC_OURS, *([CLASSIC_KAFKA] if given.kafka else [])]
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(given.rounds):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as directory:
                for row, figure in measure(kind, Path(directory), given).items():
                    figures.setdefault(row, {}).setdefault(NAMES[kind], []).append(figure)
                    print(f"{row}: {NAMES[kind]} {figure:,.4g}", file=sys.stderr, flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    rows = {name: row for name, row in ROWS.items() if name in figures}
    print(
        f"{given.members:,} members join within {given.spread:g} s; {given.partitions:,} partitions;"
        f" {given.leaving:,} leave, {given.leaves} times.\n"
    )
    print(table(rows, figures, NAMES[NEXT_OURS], NAMES[CLASSIC_OURS], "consumer / classic protocol"))
    if given.kafka:
        print("\nThe classic protocol:\n")
        beside = {name: Row(row.name, row.unit, None, False) for name, row in rows.items()}
        print(table(beside, figures, NAMES[CLASSIC_OURS], NAMES[CLASSIC_KAFKA]))
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.groups", description="Time a large group of both protocols until it settles."
    )
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--spread", type=float, default=0.0, help="seconds over which they join")
    parser.add_argument("--leaving", type=int, default=10, help="members that leave when all have settled")
    parser.add_argument("--leaves", type=int, default=5, help="how often so many leave")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--delay", type=int, default=3_000, help="group.initial.rebalance.delay.ms")
    parser.add_argument("--classic-interval", type=int, default=CLASSIC_HEARTBEAT_MS, help="heartbeat.interval.ms")
    parser.add_argument("--interval", type=int, default=5_000, help="group.consumer.heartbeat.interval.ms")
    parser.add_argument("--waiting-interval", type=int, default=5_000, help="group.consumer.min.heartbeat.interval.ms")
    parser.add_argument("--idle", type=float, default=15.0, help="seconds in which nothing happens, in whole intervals")
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka too, by the classic protocol")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.leaving < 1 or given.leaves < 1 or given.leaving * given.leaves >= given.members:
        parser.error("--leaving, --leaves: one at least, and not all members")
    return given


def measure(kind: tuple[str, str], directory: Path, given: argparse.Namespace) -> dict[str, float]:
    """One cluster of the kind, and one group of the protocol on it: a figure for each row."""
    software, protocol = kind
    properties: dict[str, object] = {"group.initial.rebalance.delay.ms": given.delay}
    if software == BARNABAS:
        properties["group.consumer.heartbeat.interval.ms"] = given.interval
        properties["group.consumer.min.heartbeat.interval.ms"] = given.waiting_interval
    with cluster_with_topic(software, directory, given.brokers, given.partitions, properties) as running:
        coordinator = coordinator_of(running, GROUP)
        with asyncio.Runner(loop_factory=fastest_loop_factory()) as runner:
            return runner.run(_joins_and_leaves(coordinator, protocol, given))


async def _joins_and_leaves(coordinator: Broker, protocol: str, given: argparse.Namespace) -> dict[str, float]:
    connections: list[Connection] = []
    while len(connections) < given.members:
        some = min(CONNECTIONS_AT_ONCE, given.members - len(connections))
        connections += await asyncio.gather(*(Connection.open(coordinator.port) for _ in range(some)))
    group = Settling(coordinator.process.process_id, Ownership(given.partitions, time.perf_counter))
    interval_ms = given.classic_interval if protocol == CLASSIC else given.interval
    members = [
        MEMBERS[protocol](*(connection, GROUP, TOPIC, given.partitions, group.ownership.owns), interval_ms=interval_ms)
        for connection in connections
    ]
    running: dict[object, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as tasks:

        async def all_join() -> None:
            for member in members:
                running[member] = tasks.create_task(member.run())
                if given.spread:
                    await asyncio.sleep(given.spread / given.members)

        joined = await group.settles(members, all_join)
        await asyncio.sleep(QUIET_INTERVALS * interval_ms / 1000)
        intervals = math.ceil(given.idle * 1000 / interval_ms)  # whole ones: members have had their answers together
        idle = await _idle(coordinator.process.process_id, intervals * interval_ms / 1000)
        left = []
        for time_of in range(given.leaves):
            await asyncio.sleep((QUIET_INTERVALS + (time_of + 0.5) / given.leaves) * interval_ms / 1000)
            leaving, members = members[: given.leaving], members[given.leaving :]

            async def some_leave(leaving: Sequence[ClassicMember | NextMember] = leaving) -> None:
                await asyncio.gather(*(member.leave() for member in leaving))

            for member in leaving:
                member.stop()
            await asyncio.gather(*(running[member] for member in leaving))
            left.append(await group.settles(members, some_leave))
        requests = sum(connection.requests for connection in connections)
        for member in members:
            member.stop()
    for connection in connections:
        connection.close()
    if group.ownership.overlaps:
        raise RuntimeError(f"{group.ownership.overlaps} times a member had what another one had")
    median = {name: statistics.median(getattr(each, name) for each in left) for name in ("taken", "unowned", "cpu")}
    return {
        "join": joined.taken,
        "join unowned": joined.unowned,
        "join cpu": joined.cpu,
        "idle cpu": idle,
        "leave": median["taken"],
        "leave unowned": median["unowned"],
        "leave cpu": median["cpu"],
        "requests": float(requests),
    }


async def _idle(process_id: int, seconds: float) -> float:
    """Processor time while nothing happens, in per cent of a core."""
    began, cpu_began = time.perf_counter(), processor_seconds(process_id)
    await asyncio.sleep(seconds)
    return 100 * (processor_seconds(process_id) - cpu_began) / (time.perf_counter() - began)


class Settling:
    """One group as it changes and settles."""

    def __init__(self, process_id: int, ownership: Ownership) -> None:
        """The process is the coordinator's."""
        self.ownership = ownership
        self._process_id = process_id

    async def settles(
        self, members: Sequence[ClassicMember | NextMember], change: Callable[[], Awaitable[None]]
    ) -> Phase:
        """From when the change begins, after which these are the members. TimeoutError when it takes too long."""
        settled = asyncio.Event()
        cpu_began, began = processor_seconds(self._process_id), time.perf_counter()
        self.ownership.begin(members)
        self.ownership.on_settled = settled.set
        if self.ownership.settled_at() is not None:
            raise RuntimeError("the members own everything before anything has changed")
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            await change()
            await settled.wait()
        settled_at = self.ownership.settled_at()
        if settled_at is None:
            raise RuntimeError("the members owned everything, and do not any more")
        cpu = processor_seconds(self._process_id) - cpu_began
        return Phase(settled_at - began, self.ownership.unowned_seconds, cpu)


if __name__ == "__main__":
    sys.exit(main())
