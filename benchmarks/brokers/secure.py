"""What security costs: TLS beside Apache Kafka's, ACLs and quotas beside none.

    python -m benchmarks.brokers --secure [--rounds N] [--turns N] [--only WORD ...] [--json FILE]

TLS: one broker of each kind with a listener for it (one certificate, P-256, of one authority; clients show none), each
with what TLS its platform has, so TLS 1.3 and AES by the processor; `load.c` with OpenSSL on the other end, for whose
part of the processor both kinds have to wait. After one round that only warms up; medians.

ACLs and quotas: processor time of a request in one broker process, with and without them in very many short turns
(`costs` says how, `turns` what is made of the figures). The table has the median of the ratios of neighbours and where
it would be 19 times in 20, and both again where neither neighbour has it: what the method makes of nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.brokers import costs, turns
from benchmarks.brokers.load import Load, LoadGenerator
from benchmarks.brokers.servers import BARNABAS, KAFKA, KINDS, Cluster
from benchmarks.ratios import Row, table
from tests.support import wire_calls
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.tls_cluster import pem_properties

SETTLE_SECONDS = 3.0
COST_RATIO_MAX = 1.05
TLS_ROWS = {
    "tls-bulk": Row("TLS: produce 1 MB batches, 1 connection, 5 in flight, acks=1", "MB/s", 1.1, True),
    "tls-connections": Row("... produce 1 record of 100 B, 100 connections", "1/s", 1.3, True),
    "tls-single": Row("... 1 connection, 1 in flight, median", "us", 1.0, False),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers --secure", description="What security costs.")
    parser.add_argument("--rounds", type=int, default=5, help="of TLS")
    parser.add_argument("--turns", type=int, default=costs.TURNS, help="of each row of ACLs and quotas, %(default)s")
    rows = [*TLS_ROWS, *costs.ROWS]
    parser.add_argument("--only", nargs="+", choices=rows, default=rows, metavar="WORD", help=", ".join(rows))
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="secure-") as directory:
        place = Path(directory)
        if any(name in TLS_ROWS for name in options.only):
            _measure_tls(place, options.only, options.rounds, figures)
            print(table(TLS_ROWS, figures, BARNABAS, KAFKA))
        found = costs.measure(place, options.only, options.turns)
    if found:
        print(turns.table(costs.ROWS, found, COST_RATIO_MAX))
        for name, of_row in found.items():
            figures[name] = {"ratios": turns.ratios(of_row.pairs), "of nothing": turns.ratios(of_row.alike)}
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"load of the machine in the last 1, 5 and 15 minutes: {load}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


def _measure_tls(place: Path, only: Sequence[str], rounds: int, figures: dict[str, dict[str, list[float]]]) -> None:
    authority = Authority(place / "authority")
    key = pem_properties(authority.sign("/O=Castle/CN=broker"), authority)
    load = LoadGenerator(place, is_secured=True)
    with contextlib.ExitStack() as stack:
        running: dict[str, tuple[Cluster, int]] = {}
        for kind in KINDS:
            port = free_port()
            made = Cluster(kind, place / kind.lower().replace(" ", "-"), 1, properties=key, secured_ports={0: port})
            running[kind] = stack.enter_context(_running(made)), port
        for name in (name for name in TLS_ROWS if name in only):
            for number in range(rounds + 1):
                for kind in KINDS if number % 2 else KINDS[::-1]:
                    made, port = running[kind]
                    os.sync()  # what another has left to write would hold back the writes of this one
                    done = _loaded(name, number, made, port, load)
                    _keep(figures, name, kind, number, _tls_figure(name, done))


# Inside.


@contextlib.contextmanager
def _running(made: Cluster) -> Iterator[Cluster]:
    try:
        made.start()
        time.sleep(SETTLE_SECONDS)
        yield made
    finally:
        made.stop()


def _loaded(name: str, number: int, made: Cluster, port: int, load: LoadGenerator) -> Load:
    """What a run measured on the port."""
    plain, topic = made.brokers[0].port, f"{name}-{number}"
    costs.make_topic(plain, topic)
    connections, depth, records, value_bytes, requests = {
        "bulk": (1, 5, 1_000, 1_000, 300),
        "connections": (100, 1, 1, 100, 60_000),
        "single": (1, 1, 1, 100, 15_000),
    }[name.rpartition("-")[2]]
    done = load.produce(
        port,
        topic,
        connections=connections,
        depth=depth,
        records_per_batch=records,
        value_bytes=(value_bytes,),
        requests=requests,
        acks=1,
    )
    wire_calls.delete_topic(plain, topic)
    return done


def _tls_figure(name: str, done: Load) -> float:
    how = name.rpartition("-")[2]
    if how == "bulk":
        return done.megabytes_out_per_second
    return done.median_us if how == "single" else done.requests_per_second


def _keep(figures: dict[str, dict[str, list[float]]], name: str, kind: str, number: int, figure: float) -> None:
    """The first round only warms up."""
    if number:
        row = TLS_ROWS[name]
        figures.setdefault(name, {}).setdefault(kind, []).append(figure)
        print(f"{row.name}: {kind} {figure:,.4g} {row.unit}", file=sys.stderr, flush=True)
