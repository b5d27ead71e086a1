"""How long a command takes from exec to its end: `barnabas --help` against an empty Python and against importing the
libraries that it must not load; `barnabas topic list`, which asks one broker; and how long from `barnabas up` to the
first record through a new consumer group.

Run as `python -m benchmarks.startup [--runs N] [--brokers 1,3]`. The goals are 150 ms for both commands, and 1.5 s from
`barnabas up`, which is one broker, to the record.

All modules are compiled first, into a folder of this run (PYTHONPYCACHEPREFIX), as pip does for users: an editable
checkout in an environment with PYTHONDONTWRITEBYTECODE would compile all source at each start of a process, half a
second each. The client is this process's own, with its modules loaded; it makes the topic by producing to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import barnabas
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ConsumerSettings, OffsetReset
from barnabas.kernel.real_host import real_host

GOAL_MS = 150.0
FIRST_RECORD_GOAL_SECONDS = 1.5
RECORD_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
BARNABAS = str(Path(sys.executable).parent / "barnabas")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "barnabas --help": [BARNABAS, "--help"],
    "barnabas coordinator --help": [BARNABAS, "coordinator", "--help"],
}
ASKING = "barnabas topic list"
TOPIC, GROUP = "first-records", "first-readers"


def compiled_environment(directory: str) -> dict[str, str]:
    """The environment of processes that find all of Barnabas, and what it imports, compiled in that directory."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": directory}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    package = str(Path(barnabas.__file__).parent)
    subprocess.run([sys.executable, "-m", "compileall", "-q", package], check=True, env=environment)
    return environment


def elapsed_ms(command: list[str], environment: dict[str, str]) -> float:
    """Wall milliseconds of one run. Raises CalledProcessError when it fails."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return (time.perf_counter() - began) * 1000


@contextlib.contextmanager
def cluster(brokers: int, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """`barnabas up` in a new directory, from exec on; stopped at the end."""
    with tempfile.TemporaryDirectory() as directory:
        command = [BARNABAS, "up", "--brokers", str(brokers), "--port", "0", "--data", directory, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                yield process
            finally:
                process.terminate()
                process.wait(STOP_SECONDS_MAX)


def first_record_seconds(brokers: int, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds from exec of `barnabas up` until it says that it is ready, and until a record that was produced then came
    through a new group.
    """
    began = time.perf_counter()
    with cluster(brokers, environment) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        ready = time.perf_counter() - began
        asyncio.run(_one_record(said["bootstrap_servers"]))
        return ready, time.perf_counter() - began


async def _one_record(bootstrap_servers: str) -> None:
    settings = ClientSettings(bootstrap_servers=tuple(bootstrap_servers.split(",")), creates_topics=True)
    reading = ConsumerSettings(group_id=GROUP, offset_reset=OffsetReset.EARLIEST)
    async with (
        asyncio.timeout(RECORD_SECONDS_MAX),
        real_host("benchmark", asyncio.get_running_loop()) as host,
        Client(host, settings, logging.getLogger("benchmark")) as client,
    ):
        async with Producer(client) as producer:
            await (await producer.send(ProducerRecord(TOPIC, b"first")))
        async with Consumer(client, reading) as consumer:
            consumer.subscribe([TOPIC])
            while not await consumer.poll(1_000):
                pass


def asking_ms(runs: int, environment: dict[str, str]) -> list[float]:
    """Wall milliseconds of `barnabas topic list` on one broker, of each run but the first."""
    with cluster(1, environment) as process:
        assert process.stdout is not None
        servers = json.loads(process.stdout.readline())["bootstrap_servers"]
        command = [BARNABAS, "topic", "list", "--bootstrap-server", servers]
        return [elapsed_ms(command, environment) for _ in range(runs + 1)][1:]


def _line(name: str, measured: list[float], unit: str, digits: int) -> str:
    median, least = statistics.median(measured), min(measured)
    return f"{name:42} median {median:7.{digits}f} {unit}   least {least:7.{digits}f} {unit}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="of commands; a third of it of clusters")
    parser.add_argument("--brokers", default="1,3", help="sizes of the clusters, or nothing")
    options = parser.parse_args(arguments)
    runs: int = options.runs
    sizes = [int(size) for size in options.brokers.split(",") if size]
    with tempfile.TemporaryDirectory() as directory:
        environment = compiled_environment(directory)
        for command in COMMANDS.values():
            elapsed_ms(command, environment)  # the first run compiles what else is imported and fills the page cache
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(runs):
            for name, command in COMMANDS.items():
                times[name].append(elapsed_ms(command, environment))
        times[ASKING] = asking_ms(runs, environment)
        for name, measured in times.items():
            print(_line(name, measured, "ms", 1))
        clusters = {size: _cluster_times(size, max(1, runs // 3), environment) for size in sizes}
    for name in ("barnabas --help", ASKING):
        median = statistics.median(times[name])
        print(f"goal for {name}: {GOAL_MS:.0f} ms, {_met(median <= GOAL_MS)} over {runs} runs")
    if 1 in clusters:
        median = statistics.median(clusters[1])
        print(f"goal for the first record of one broker: {FIRST_RECORD_GOAL_SECONDS} s", end="")
        print(f", {_met(median <= FIRST_RECORD_GOAL_SECONDS)} over {len(clusters[1])} runs")
    return 0


def _cluster_times(brokers: int, runs: int, environment: dict[str, str]) -> list[float]:
    """Seconds to the first record, of each run but the first, which compiles what else is imported."""
    measured = [first_record_seconds(brokers, environment) for _ in range(runs + 1)][1:]
    name = f"barnabas up, {brokers} broker{'s' if brokers > 1 else ''}"
    print(_line(f"{name}: ready", [ready for ready, _ in measured], "s", 2))
    print(_line(f"{name}: first record of a group", [first for _, first in measured], "s", 2))
    return [first for _, first in measured]


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
