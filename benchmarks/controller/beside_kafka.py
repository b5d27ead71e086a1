"""Our controller beside Apache Kafka's 3.9.1, in one run: takeover, a broker's death, topics, and nothing to do.

    python -m benchmarks.controller.beside_kafka [--rounds N] [--partitions N] [--led N] [--led-alone N] [--topics N]
        [--only WORD ...] [--kinds KIND ...] [--zookeeper] [--json FILE]

Takeover: partitions with three replicas each are written to the coordinator, all on brokers that are dead, and one
broker with nothing on it is started; what its log says is timed. Death: of three brokers that lead so many partitions
each one is killed with -9; timed from the end of its registration until the survivors know leaders of all its
partitions. Alone, where it is asked for with --led-alone: the same of a broker that leads all partitions there are, so
that very many fit three brokers of Apache Kafka on one machine (10,000 take 10,000 files and 20,000 mappings each;
`ulimit -n 20000`). Topics: of one partition with three replicas, one after another. Idle: processor time of the three
brokers with the partitions of "death", and nobody there. Ours has the embedded coordinator, or with --zookeeper the
same as Kafka's. The table that is printed is the one of docs/performance.md, unless one kind is left out; below it is
what the logs of our brokers and coordinator say of turns of their loops over 50 ms.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from barnabas.coordination.client import Client
from barnabas.coordination.layout.access import PERSISTENT_PATHS
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.real_host import RealHost, fastest_loop_factory, run
from barnabas.kernel.timers import Timers
from benchmarks.brokers.servers import BARNABAS, KAFKA, KINDS, Broker, Cluster, cluster
from benchmarks.controller.__main__ import DEAD, write_partitions
from benchmarks.ratios import Row, table
from tests.support import wire_calls
from tests.support.long_turns import turns_in
from tests.support.waiting import wait_until

ROUNDS = 3
TAKEOVER_SECONDS_MAX = 300.0
DEATH_SECONDS_MAX = 180.0
SETTLE_SECONDS = 5.0
IDLE_SECONDS = 30.0
TOPIC = "led"
PARTITIONS_PER_TOPIC = 1_000
"""Of those that one broker leads: Apache Kafka makes so many in some seconds."""
TOPICS_COMPARED = 0.1
"""The last tenth of the topics is compared with the first."""
ROWS = {
    "read": Row("takeover: from the election until the context is read", "s", 0.12, False),
    "started": Row("... until the state machines have started", "s", 0.15, False),
    "memory": Row("... resident memory at most", "MiB", 0.2, False),
    "death": Row("a broker dies: from its expiry until all that it led has leaders", "ms", 0.3, False),
    "alone": Row("a broker that leads all partitions dies: likewise", "ms", 0.3, False),
    "topics": Row("topics one after another, each", "ms", 0.4, False),
    "idle": Row("three idle brokers with the partitions, processor time", "% of a core", 0.25, False),
}
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]")
_MARKS = {
    "elected": ("successfully elected as the controller", "Elected controller of epoch"),
    "read": ("Currently active brokers in the cluster", "Loaded the context"),
    "ready": ("Ready to serve as the new controller",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the controller beside Apache Kafka's.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--partitions", type=int, default=100_000, help="those that are taken over")
    parser.add_argument("--aged", action="store_true", help="their epochs differ, as in a cluster that has lived")
    parser.add_argument("--led", type=int, default=700, help="those that each broker leads when one dies")
    parser.add_argument(
        "--led-alone", type=int, default=0, help="those that one broker leads, of which it dies; 0: not"
    )
    parser.add_argument("--topics", type=int, default=1_000, help="those that are made one after another")
    parser.add_argument("--only", nargs="*", choices=["takeover", "death", "alone", "topics", "idle"])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--zookeeper", action="store_true", help="ours on ZooKeeper too")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    measures: dict[str, Callable[[str, Path], dict[str, float]]] = {
        "takeover": functools.partial(takeover, given),
        "death": functools.partial(death, given),
        **({"alone": functools.partial(alone, given)} if given.led_alone else {}),
        "topics": functools.partial(topics, given),
        "idle": functools.partial(idle, given),
    }
    figures: dict[str, dict[str, list[float]]] = {}
    turns: list[str] = []
    for _ in range(given.rounds):
        for name, measure in measures.items():
            if given.only and name not in given.only:
                continue
            for kind in given.kinds:
                with tempfile.TemporaryDirectory() as directory:
                    for row, figure in measure(kind, Path(directory)).items():
                        figures.setdefault(row, {}).setdefault(kind, []).append(figure)
                        print(f"{row}: {kind} {figure:,.4g}", file=sys.stderr, flush=True)
                    turns += [f"{name}: {turn}" for turn in _long_turns(Path(directory))]
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    if set(given.kinds) == set(KINDS):
        print(table(ROWS, figures, BARNABAS, KAFKA))
    for row, name in (("first", "the first"), ("last", "the last")):
        for kind, found in figures.get(row, {}).items():
            print(f"{kind}: {name} topics took {sorted(found)[len(found) // 2]:.1f} ms each")
    if BARNABAS in given.kinds:
        print("\n".join(["Turns over 50 ms:", *turns]) if turns else "No turn over 50 ms.")
    return 0


# What is measured.


def takeover(given: argparse.Namespace, kind: str, directory: Path) -> dict[str, float]:
    made = Cluster(kind, directory, 1, with_zookeeper=given.zookeeper)
    try:
        made.start_coordinator()
        topics = max(1, given.partitions // 100)
        on_coordinator(made, lambda host, client: _write(host, client, topics, given))
        (broker,) = made.brokers
        broker.process.start()
        wait_until(
            lambda: _time_of("ready", broker) is not None,
            f"{kind} has taken over",
            TAKEOVER_SECONDS_MAX,
            broker.process.log_tail,
        )
        elected, read, ready = (_time_of(mark, broker) or 0.0 for mark in ("elected", "read", "ready"))
        return {"read": read - elected, "started": ready - read, "memory": _peak_memory_mib(broker)}
    finally:
        made.stop()


def death(given: argparse.Namespace, kind: str, directory: Path) -> dict[str, float]:
    with cluster(kind, directory, 3, with_zookeeper=given.zookeeper) as running:
        _spread(running, given.led)
        return {"death": _until_all_are_led(running, _not_the_controller(running), {TOPIC: 3 * given.led})}


def alone(given: argparse.Namespace, kind: str, directory: Path) -> dict[str, float]:
    with cluster(kind, directory, 3, with_zookeeper=given.zookeeper) as running:
        victim = _not_the_controller(running)
        counts: dict[str, int] = {}
        for start in range(0, given.led_alone, PARTITIONS_PER_TOPIC):
            name = f"{TOPIC}-{start:06}"
            counts[name] = min(PARTITIONS_PER_TOPIC, given.led_alone - start)
            replicas = [[victim, (victim + 1) % 3, (victim + 2) % 3]] * counts[name]
            wire_calls.create_assigned_topic(running.brokers[0].port, name, replicas)
            _wait_for_leaders(running, {name: counts[name]})
        time.sleep(SETTLE_SECONDS)
        return {"alone": _until_all_are_led(running, victim, counts)}


def _not_the_controller(running: Cluster) -> int:
    return int(wire_calls.metadata(running.brokers[0].port).controller_id + 1) % 3


def _until_all_are_led(running: Cluster, victim: int, counts: Mapping[str, int]) -> float:
    """Kills a broker; the milliseconds from the end of its registration until the others know leaders of all."""
    survivors = [running.brokers[number] for number in range(3) if number != victim]

    async def kill_and_wait(host: RealHost, client: Client) -> float:
        timers = Timers(host.loop)
        running.brokers[victim].process.kill()
        while await client.exists(broker_id_path(victim)) is not None:
            await timers.sleep(5)
        return time.perf_counter()

    gone = on_coordinator(running, kill_and_wait)

    def are_led() -> bool:
        for broker in survivors:
            for topic, count in counts.items():
                leaders = wire_calls.leaders(broker.port, topic)
                if len(leaders) != count or victim in leaders.values():
                    return False
        return True

    wait_until(are_led, "all have leaders", DEATH_SECONDS_MAX)
    return (time.perf_counter() - gone) * 1000


def topics(given: argparse.Namespace, kind: str, directory: Path) -> dict[str, float]:
    with cluster(kind, directory, 3, with_zookeeper=given.zookeeper) as running:
        port = running.brokers[0].port
        wire_calls.create_topic(port, "warm-up", 1, 3)
        taken = []
        for number in range(given.topics):
            began = time.perf_counter()
            wire_calls.create_topic(port, f"topic-{number:06}", 1, 3)
            taken.append((time.perf_counter() - began) * 1000)
    part = max(1, int(len(taken) * TOPICS_COMPARED))
    mean = sum(taken) / len(taken)
    return {"topics": mean, "first": sum(taken[:part]) / part, "last": sum(taken[-part:]) / part}


def idle(given: argparse.Namespace, kind: str, directory: Path) -> dict[str, float]:
    with cluster(kind, directory, 3, with_zookeeper=given.zookeeper) as running:
        _spread(running, given.led)
        time.sleep(2 * SETTLE_SECONDS)
        before, began = running.cpu_seconds(), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        return {"idle": 100 * (running.cpu_seconds() - before) / (time.perf_counter() - began)}


# By what.


def on_coordinator(running: Cluster, work: Callable[[RealHost, Client], object]) -> float:
    """What `work` returns, a coroutine, that is given a session with the coordinator."""

    async def main(host: RealHost) -> float:
        client = Client(host, ClientSettings(running.coordinator_address, session_timeout_ms=30_000))
        await client.connect()
        try:
            found: float = await work(host, client)  # type: ignore[misc]
            return found
        finally:
            await client.close()

    return run(main, loop_factory=fastest_loop_factory())


async def _write(host: RealHost, client: Client, topic_count: int, given: argparse.Namespace) -> None:
    for path in PERSISTENT_PATHS:
        await client.ensure_path(path)
    await write_partitions(client, host, topic_count, given.partitions, DEAD, aged=given.aged)


def _spread(running: Cluster, led: int) -> None:
    """A topic of which each of the three brokers leads so many partitions; waits until all know it, and then some."""
    wire_calls.create_topic(running.brokers[0].port, TOPIC, 3 * led, 3)
    _wait_for_leaders(running, {TOPIC: 3 * led})
    time.sleep(SETTLE_SECONDS)


def _wait_for_leaders(running: Cluster, counts: Mapping[str, int]) -> None:
    for broker in running.brokers:
        for topic, count in counts.items():
            wait_until(
                lambda: len(wire_calls.leaders(broker.port, topic)) == count,  # noqa: B023 - called in this turn
                "the partitions have leaders",
                DEATH_SECONDS_MAX,
            )


def _time_of(mark: str, broker: Broker) -> float | None:
    """When the broker's log first had the line; None while it has not."""
    for line in broker.process.log_path.read_text(errors="replace").splitlines():
        if any(text in line for text in _MARKS[mark]) and (stamp := _STAMP.match(line)):
            return dt.datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=dt.UTC).timestamp()
    return None


def _long_turns(directory: Path) -> list[str]:
    """What the logs of our processes say of them; there are none in others'."""
    logs = sorted(directory.glob("*/*.log"))
    return [turn.shown for log in logs for turn in turns_in(log.read_text(errors="replace"), log.parent.name)]


def _peak_memory_mib(broker: Broker) -> float:
    status = Path(f"/proc/{broker.process.process_id}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError("the kernel does not tell a process's memory")
    return int(found[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
