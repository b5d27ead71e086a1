"""What many groups cost: resident memory of the broker that coordinates them, by how many there are.

    python -m benchmarks.groups.memory [--counts N ...] [--members N] [--protocols NAME ...] [--rounds N] [--json FILE]

One broker for each protocol, and groups of ten members of one topic of ten partitions that are made one after another,
over some connections each of which has a member of each of its groups; every group is made until each member owns a
partition, and its sessions do not end. Memory is read when there are so many groups as each count says, the first of
which only warms up: what counts is what each group costs that comes after. Apache Kafka is not beside it, whose heap
has its size from the beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from barnabas.kernel.real_host import fastest_loop_factory
from benchmarks.brokers.servers import BARNABAS, Broker
from benchmarks.groups.clusters import TOPIC, cluster_with_topic, coordinator_of
from benchmarks.groups.figures import Ownership, growth_table
from benchmarks.groups.members import CLASSIC, MEMBERS, NEXT, Connection

COUNTS = (50, 250, 500, 1_000, 2_000)
MEMBERS_PER_GROUP = 10
LANES = 16
"""Groups that are made at a time, each over connections of its own lane."""
SESSION_MS = 1_800_000
"""The longest that `group.max.session.timeout.ms` allows by default: much longer than a run."""
DELAY_MS = 200
INTERVAL_MS = 50.0
SETTLE_SECONDS_MAX = 60.0
QUIET_SECONDS = 2.0
_PROPERTIES: dict[str, object] = {
    "group.initial.rebalance.delay.ms": DELAY_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.max.session.timeout.ms": SESSION_MS,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.groups.memory", description="Look at the memory of a broker with many groups."
    )
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="the first of them warms up")
    parser.add_argument("--members", type=int, default=MEMBERS_PER_GROUP, help="of each group")
    parser.add_argument("--protocols", nargs="+", choices=MEMBERS, default=[NEXT, CLASSIC])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if len(set(given.counts)) < 2 or min(given.counts) < 1:
        parser.error("--counts: two of them at least")
    found: dict[str, list[dict[int, int]]] = {protocol: [] for protocol in given.protocols}
    for _ in range(given.rounds):
        for protocol in given.protocols:
            with tempfile.TemporaryDirectory() as directory:
                found[protocol].append(measure(protocol, Path(directory), sorted(set(given.counts)), given.members))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    print(f"Groups of {given.members} members.\n")
    print(growth_table(found))
    return 0


def measure(protocol: str, directory: Path, counts: Sequence[int], member_count: int) -> dict[int, int]:
    """One broker: bytes by how many groups it has."""
    with cluster_with_topic(BARNABAS, directory, 1, member_count, _PROPERTIES) as running:
        broker = coordinator_of(running, "any")
        with asyncio.Runner(loop_factory=fastest_loop_factory()) as runner:
            return runner.run(_grow(protocol, broker, counts, member_count))


async def _grow(protocol: str, broker: Broker, counts: Sequence[int], member_count: int) -> dict[int, int]:
    lanes = [[await Connection.open(broker.port) for _ in range(member_count)] for _ in range(LANES)]
    found: dict[int, int] = {}
    made = 0
    for count in counts:
        names = iter([f"group-{number:06d}" for number in range(made, count)])

        async def make_some(lane: list[Connection], names: object = names) -> None:
            for group_id in names:  # type: ignore[attr-defined]
                await make_group(protocol, group_id, lane)

        await asyncio.gather(*(make_some(lane) for lane in lanes))
        made = count
        await asyncio.sleep(QUIET_SECONDS)
        found[count] = resident_bytes(broker)
        print(f"{protocol}: {count:,} groups, {found[count] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    for lane in lanes:
        for connection in lane:
            connection.close()
    return found


async def make_group(protocol: str, group_id: str, connections: Sequence[Connection]) -> None:
    """A member on each connection, until each owns a partition; then they fall silent. TimeoutError."""
    settled = asyncio.Event()
    ownership = Ownership(len(connections), time.perf_counter)
    members = [
        MEMBERS[protocol](
            *(connection, group_id, TOPIC, len(connections), ownership.owns),
            interval_ms=INTERVAL_MS,
            session_ms=SESSION_MS,
        )
        for connection in connections
    ]
    ownership.begin(members)
    ownership.on_settled = settled.set
    async with asyncio.timeout(SETTLE_SECONDS_MAX), asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(member.run())
        await settled.wait()
        for member in members:
            member.stop()
    if ownership.overlaps:
        raise RuntimeError(f"{ownership.overlaps} times a member of {group_id} had what another one had")


def resident_bytes(broker: Broker) -> int:
    status = Path(f"/proc/{broker.process.process_id}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError("the kernel does not tell a process's memory")
    return int(found[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
