"""The embedded coordinator beside a real ZooKeeper, and our client beside kazoo, in one run.

    python -m benchmarks.coordination [--partitions N] [--rounds N] [--json FILE]

The states of 100,000 partitions are written (pipelined) and read (multiRead) on both servers, by our client and
kazoo. Figures are medians over rounds in which servers and clients take turns; kazoo, which takes long, has one
round. Resident memory is taken after the same writes on both, processor time while three sessions do nothing but ping
each second, and the time until a server is ready from exec to its first answer to a session request, on an empty data
directory.
ZooKeeper runs with `-Xmx1000m`, its own default.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.coordination.work import Layout, Timing, barnabas_round, kazoo_round, populate
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.processes import resident_memory_bytes
from tests.support.raw_zookeeper import RawSession
from tests.support.zookeeper import ZooKeeperServer

EMBEDDED = "embedded"
ZOOKEEPER = "ZooKeeper"
PARTITIONS = 100_000
ROUNDS = 5
KAZOO_ROUNDS = 1
READY_STARTS = 7
IDLE_SECONDS = 10
IDLE_SESSIONS = 3
PROBE_SECONDS = 0.005
PROBES_MAX = 500
SETTLE_SECONDS = 3.0
ZOOKEEPER_HEAP = "-Xmx1000m"
READY_TARGET_SECONDS = 0.25

Server = EmbeddedCoordinator | ZooKeeperServer


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one server: medians of seconds, bytes, and the share of a core."""

    populate_seconds: float
    read_seconds: float
    write_seconds: float
    kazoo_read_seconds: float
    kazoo_write_seconds: float
    memory_bytes: int
    idle_core_share: float
    ready_seconds: float


@dataclass(frozen=True, slots=True)
class Goal:
    """One ratio or figure and what it must be."""

    what: str
    value: float
    limit: float
    at_least: bool

    @property
    def is_reached(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coordination", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="partition states (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of our client (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args(arguments)
    figures = measure(Layout(options.partitions), options.rounds)
    goals = goals_of(figures)
    show(figures, goals, options.partitions)
    if options.json:
        document = {
            "partitions": options.partitions,
            "servers": {
                name: {field: getattr(one, field) for field in Figures.__slots__} for name, one in figures.items()
            },
            "goals": [
                {"what": goal.what, "value": goal.value, "limit": goal.limit, "reached": goal.is_reached}
                for goal in goals
            ],
        }
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(layout: Layout, rounds: int) -> dict[str, Figures]:
    """All figures of both servers."""
    with tempfile.TemporaryDirectory(prefix="coordination-benchmark-") as work:
        ready = ready_seconds(Path(work))
        servers = {name: new_server(name, Path(work) / name) for name in (EMBEDDED, ZOOKEEPER)}
        try:
            for server in servers.values():
                server.start()
            populated = {name: populate(server.address, layout) for name, server in servers.items()}
            ours: dict[str, list[Timing]] = {name: [] for name in servers}
            kazoo: dict[str, list[Timing]] = {name: [] for name in servers}
            for number in range(1, rounds + 1):
                for name, server in servers.items():
                    ours[name].append(barnabas_round(server.address, layout, number))
            # After the same writes, and before kazoo's.
            time.sleep(SETTLE_SECONDS)
            memory = {name: resident_memory_bytes(server.process.process_id) for name, server in servers.items()}
            for number in range(KAZOO_ROUNDS):
                for name, server in servers.items():
                    kazoo[name].append(kazoo_round(server.address, layout, rounds + number + 1))
            idle = idle_core_shares(servers)
        finally:
            for server in servers.values():
                server.kill()
    return {
        name: Figures(
            populated[name],
            statistics.median(one.read_seconds for one in ours[name]),
            statistics.median(one.write_seconds for one in ours[name]),
            statistics.median(one.read_seconds for one in kazoo[name]),
            statistics.median(one.write_seconds for one in kazoo[name]),
            memory[name],
            idle[name],
            ready[name],
        )
        for name in servers
    }


def new_server(name: str, directory: Path) -> Server:
    """Each as its user would run it: ZooKeeper's defaults, and ours."""
    if name == EMBEDDED:
        return EmbeddedCoordinator(directory)
    defaults = {"tickTime": 2000, "minSessionTimeout": 4_000, "maxSessionTimeout": 40_000}
    return ZooKeeperServer(directory, configuration=defaults, java_options=(ZOOKEEPER_HEAP,))


def ready_seconds(work: Path) -> dict[str, float]:
    """Median seconds from exec until the server answers a session request, on an empty data directory."""
    seconds: dict[str, list[float]] = {EMBEDDED: [], ZOOKEEPER: []}
    for number in range(READY_STARTS):
        for name, found in seconds.items():
            server = new_server(name, work / f"ready-{name}-{number}")
            try:
                began = time.perf_counter()
                server.start(wait=False)
                _first_session(server.port, began + 60.0)
                found.append(time.perf_counter() - began)
            finally:
                server.kill()
    return {name: statistics.median(found) for name, found in seconds.items()}


def idle_core_shares(servers: dict[str, Server]) -> dict[str, float]:
    """The share of one core that each uses while it holds its znodes and three sessions that ping each second."""
    sessions = [RawSession(server.port) for server in servers.values() for _ in range(IDLE_SESSIONS)]
    for session in sessions:
        session.connect()
    time.sleep(SETTLE_SECONDS)
    before = {name: _used_seconds(server.process.process_id) for name, server in servers.items()}
    began = time.perf_counter()
    for _ in range(IDLE_SECONDS):
        time.sleep(1.0)
        for session in sessions:
            session.ping()
    passed = time.perf_counter() - began
    used = {name: _used_seconds(server.process.process_id) - before[name] for name, server in servers.items()}
    for session in sessions:
        session.close()
    return {name: seconds / passed for name, seconds in used.items()}


def goals_of(figures: dict[str, Figures]) -> list[Goal]:
    """What issue and architecture ask for, with what was measured."""
    embedded, zookeeper = figures[EMBEDDED], figures[ZOOKEEPER]
    return [
        Goal("our client reads, times as fast as kazoo (embedded)", _over(embedded, "read"), 10.0, True),
        Goal("our client reads, times as fast as kazoo (ZooKeeper)", _over(zookeeper, "read"), 10.0, True),
        Goal("embedded reads, times as fast as ZooKeeper", zookeeper.read_seconds / embedded.read_seconds, 1.0, True),
        Goal(
            "embedded writes, times as fast as ZooKeeper", zookeeper.write_seconds / embedded.write_seconds, 1.0, True
        ),
        Goal("memory of embedded over ZooKeeper's", embedded.memory_bytes / zookeeper.memory_bytes, 1 / 3, False),
        Goal("idle share of a core, embedded", embedded.idle_core_share, 0.01, False),
        Goal("ready time of embedded over ZooKeeper's", embedded.ready_seconds / zookeeper.ready_seconds, 1.0, False),
        Goal("ready time of embedded, seconds", embedded.ready_seconds, READY_TARGET_SECONDS, False),
    ]


def show(figures: dict[str, Figures], goals: Sequence[Goal], partitions: int) -> None:
    """Prints the table and the goals."""
    embedded, zookeeper = figures[EMBEDDED], figures[ZOOKEEPER]
    rows = [
        (f"create {partitions:,} states and their parents, s", "populate_seconds", 1.0, 2),
        ("write all states, our client pipelined, s", "write_seconds", 1.0, 2),
        ("write all states, kazoo pipelined, s", "kazoo_write_seconds", 1.0, 2),
        ("read all states, our client by multiRead, s", "read_seconds", 1.0, 2),
        ("read all states, kazoo pipelined, s", "kazoo_read_seconds", 1.0, 2),
        ("resident memory after the writes, MiB", "memory_bytes", 1 / (1 << 20), 0),
        ("idle, % of a core", "idle_core_share", 100.0, 2),
        ("ready from exec to the first session, s", "ready_seconds", 1.0, 3),
    ]
    print(f"{'':52}{EMBEDDED:>12}{ZOOKEEPER:>12}{'ratio':>9}")
    for label, field, scale, digits in rows:
        ours, theirs = getattr(embedded, field), getattr(zookeeper, field)
        ratio = f"{ours / theirs:9.2f}" if theirs else f"{'n/a':>9}"
        print(f"{label:52}{ours * scale:12.{digits}f}{theirs * scale:12.{digits}f}{ratio}")
    print("\ngoals:")
    for goal in goals:
        bound = f"{'at least' if goal.at_least else 'at most'} {goal.limit:.3g}"
        print(f"  {goal.what:56}{goal.value:9.3f}   {bound:14} {'reached' if goal.is_reached else 'MISSED'}")


def _over(figures: Figures, work: str) -> float:
    return float(getattr(figures, f"kazoo_{work}_seconds") / getattr(figures, f"{work}_seconds"))


def _first_session(port: int, deadline: float) -> None:
    """Returns when a session request is answered.

    A server that is starting may take a connection and never answer on it, so every few milliseconds another connection
    asks, and the first answer on any of them counts.
    """
    request = struct.pack(">iiqiqi16s?", 45, 0, 0, 30_000, 0, 16, bytes(16), False)
    asking: list[socket.socket] = []
    try:
        while time.perf_counter() < deadline:
            if len(asking) < PROBES_MAX:
                with contextlib.suppress(OSError):
                    asking.append(socket.create_connection(("127.0.0.1", port), timeout=1.0))
                    asking[-1].sendall(request)
            time.sleep(PROBE_SECONDS)
            for answered in select.select(asking, [], [], 0.0)[0]:
                with contextlib.suppress(OSError):
                    if answered.recv(64):
                        return
                asking.remove(answered)
                answered.close()
    finally:
        for connection in asking:
            connection.close()
    raise TimeoutError("the server does not give a session within 60 s")


def _used_seconds(process_id: int) -> float:
    """Processor time of all threads, in the kernel's nanoseconds; ticks of 10 ms are too coarse for an idle server."""
    tasks = Path(f"/proc/{process_id}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


if __name__ == "__main__":
    sys.exit(main())
