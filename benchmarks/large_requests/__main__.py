"""One request with very many elements, and how long another client waits beside it: our broker and Apache Kafka 3.9.1.

    python -m benchmarks.large_requests [--rounds N] [--only WORD ...] [--json FILE]

The requests are those of tests/support/large_requests.py. In each round the two take turns, request by request, after
a tenth of each request that only warms up; figures are medians over rounds, and the ratio is the median of the rounds'
ratios of the waits. The goals: another client waits for less than 0.5 s beside each, and no turn of our broker's loop
has more than 50 ms of the processor, by the broker's own count of turns that take longer than that.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

from benchmarks.brokers.servers import BARNABAS, KAFKA, KINDS, Cluster, cluster
from tests.support import wire_calls
from tests.support.large_requests import LARGE_REQUESTS, describe_broker, exchange, frame_of, good_client
from tests.support.long_turns import turns_in
from tests.support.waiting import wait_until

ROUNDS = 3
TOPIC = "a-topic"
WAIT_MS_MAX = 500.0
TURN_MS_MAX = 50
ANSWER_SECONDS_MAX = 120.0
# What takes Apache Kafka minutes otherwise.
FEWER = {"create topics": 5_000, "offset delete": 25_000, "delete records": 50_000, "incremental alter configs": 50_000}
_OF_BROKER = "describe configs of the broker"
REQUESTS = {
    **LARGE_REQUESTS,
    _OF_BROKER: replace(LARGE_REQUESTS[_OF_BROKER], make=functools.partial(describe_broker, broker_id="0")),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one request to one broker."""

    answered_seconds: float
    """Negative when the connection was ended instead."""
    wait_ms: float
    """The longest of the other client."""
    turn_ms: int
    """Processor time of the longest turn of those that took more than 50 ms; 0 where there was none. Ours only."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_requests", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", choices=REQUESTS, default=list(REQUESTS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, list[Figures]]] = {}
    with tempfile.TemporaryDirectory(prefix="large-requests-") as directory, clusters(Path(directory)) as running:
        for number in range(options.rounds):
            for name in options.only:
                kinds = KINDS if number % 2 else KINDS[::-1]
                for kind in kinds:
                    found = measured(running[kind], name, warms_up=not number)
                    figures.setdefault(name, {}).setdefault(kind, []).append(found)
                    print(f"round {number + 1}, {name}, {kind}: {found}", file=sys.stderr, flush=True)
    print(table(figures))
    if options.json:
        shown = {name: {kind: [*map(asdict, found)] for kind, found in of.items()} for name, of in figures.items()}
        options.json.write_text(json.dumps(shown, indent=1))
    return 0


@contextlib.contextmanager
def clusters(directory: Path) -> Iterator[dict[str, Cluster]]:
    """One broker of each kind, with a topic of one partition and a coordinator of groups."""
    with contextlib.ExitStack() as stack:
        running = {kind: stack.enter_context(cluster(kind, directory / str(n), 1)) for n, kind in enumerate(KINDS)}
        for each in running.values():
            port = each.brokers[0].port
            wire_calls.create_topic(port, TOPIC, 1, 1)
            wait_until(functools.partial(wire_calls.leaders, port, TOPIC), f"{TOPIC} is led", 60.0)
            exchange(port, frame_of(REQUESTS["find coordinator"], 1, TOPIC))
            wait_until(functools.partial(wire_calls.leaders, port, "__consumer_offsets"), "groups are led", 60.0)
        yield running


def elements(name: str) -> int:
    return FEWER.get(name, REQUESTS[name].count)


def measured(running: Cluster, name: str, *, warms_up: bool) -> Figures:
    """Sends the request once, beside a client that asks for the versions again and again."""
    (broker,) = running.brokers
    request, count = REQUESTS[name], elements(name)
    if warms_up:
        exchange(broker.port, frame_of(request, max(1, count // 10), TOPIC), ANSWER_SECONDS_MAX)
    frame = frame_of(request, count, TOPIC)
    log = broker.process.log_path
    read = log.stat().st_size
    with good_client(broker.port) as client:
        began = perf_counter()
        size = exchange(broker.port, frame, ANSWER_SECONDS_MAX)
        took = perf_counter() - began
    text = log.read_bytes()[read:].decode("utf-8", "replace")
    turn_ms = max((turn.processor_ms for turn in turns_in(text, running.kind)), default=0)
    return Figures(took if size >= 0 else -1.0, client.longest_ms, turn_ms)


def table(figures: dict[str, dict[str, list[Figures]]]) -> str:
    """The figures as a table in Markdown."""
    lines = [
        "| request | elements | answered: ours / Kafka's | longest wait: ours / Kafka's | ratio | turn | goals |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in figures.items():
        ours, theirs = found[BARNABAS], found[KAFKA]
        wait_ms = statistics.median(each.wait_ms for each in ours)
        ratio = statistics.median(mine.wait_ms / other.wait_ms for mine, other in zip(ours, theirs, strict=True))
        turn_ms = statistics.median(each.turn_ms for each in ours)
        misses = [
            *(["waits"] if wait_ms >= WAIT_MS_MAX else []),
            *(["turns"] if turn_ms > TURN_MS_MAX else []),
            *(["not answered"] if min(each.answered_seconds for each in ours) < 0 else []),
        ]
        lines.append(
            f"| {name} | {elements(name):,} | {answered(ours)} / {answered(theirs)} s"
            f" | {wait_ms:.0f} / {statistics.median(each.wait_ms for each in theirs):.0f} ms | {ratio:.2f}"
            f" | {f'{turn_ms:.0f} ms' if turn_ms else 'none over 50 ms'}"
            f" | {'NOT met: ' + ', '.join(misses) if misses else 'met'} |"
        )
    return "\n".join(lines)


def answered(found: list[Figures]) -> str:
    """The median of the times; a dash where the connection was ended instead."""
    seconds = statistics.median(each.answered_seconds for each in found)
    return f"{seconds:.2f}" if seconds >= 0 else "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
