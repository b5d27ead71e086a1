"""What security costs: TLS beside Apache Kafka's, ACLs and quotas beside ours without them.

    python -m benchmarks.brokers --secure [--rounds N] [--only WORD ...] [--json FILE]

TLS: one broker of each kind with a listener for it (one certificate, P-256, of one authority; clients show none), each
with what TLS its platform has, so TLS 1.3 and AES by the processor; `load.c` with OpenSSL on the other end, for whose
part of the processor both kinds have to wait. ACLs, quotas: processor time of our broker for a request, of one that has
them and of one that has not, in turns. ACLs: the client may write to topics by a prefix, and somebody else by two.
Quotas: of bytes and of time, by client id, too large to hold anything back. Small requests come one at a time (the
dearest case, since nothing is shared among them) and from 100 connections. After one round that only warms up; medians.
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

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import AlterClientQuotasRequest, CreateAclsRequest
from benchmarks.brokers.load import CLIENT_ID, Load, LoadGenerator
from benchmarks.brokers.servers import BARNABAS, KAFKA, KINDS, Cluster
from benchmarks.ratios import Row, table
from tests.support import wire_calls
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.tls_cluster import pem_properties
from tests.support.waiting import wait_until

WITH, WITHOUT = "with", "without"
SETTLE_SECONDS = 3.0
_SECONDS_MAX = 120.0
_ANY_BYTES, _ANY_PERCENT = 1e12, 1e9
_USER, _ALLOW, _WRITE, _TOPIC, _PREFIXED = "User:ANONYMOUS", 3, 4, 2, 4
TLS_ROWS = {
    "tls-bulk": Row("TLS: produce 1 MB batches, 1 connection, 5 in flight, acks=1", "MB/s", 1.1, True),
    "tls-connections": Row("... produce 1 record of 100 B, 100 connections", "1/s", 1.3, True),
    "tls-single": Row("... 1 connection, 1 in flight, median", "us", 1.0, False),
}
COST_ROWS = {
    f"{what}-{how}": Row(f"{name}, produce 1 record of 100 B, {said}: processor time of a request", "us", 1.05, False)
    for what, name in (("acls", "ACLs"), ("quotas", "quotas"))
    for how, said in (("connections", "100 connections"), ("single", "1 connection, 1 in flight"))
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers --secure", description="What security costs.")
    parser.add_argument("--rounds", type=int, default=5)
    rows = [*TLS_ROWS, *COST_ROWS]
    parser.add_argument("--only", nargs="+", choices=rows, default=rows, metavar="WORD", help=", ".join(rows))
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="secure-") as directory:
        place = Path(directory)
        if any(name in TLS_ROWS for name in options.only):
            _measure_tls(place, options.only, options.rounds, figures)
        if any(name in COST_ROWS for name in options.only):
            _measure_costs(place, options.only, options.rounds, figures)
    tls = {name: row for name, row in figures.items() if name in TLS_ROWS}
    costs = {name: row for name, row in figures.items() if name in COST_ROWS}
    if tls:
        print(table(TLS_ROWS, tls, BARNABAS, KAFKA))
    if costs:
        print(table(COST_ROWS, costs, WITH, WITHOUT, "with / without"))
    print(
        f"load of the machine in the last 1, 5 and 15 minutes: {', '.join(f'{each:.1f}' for each in os.getloadavg())}"
    )
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
                    done, _ = _loaded(name, number, made, port, load)
                    _keep(figures, name, kind, number, _tls_figure(name, done))


def _measure_costs(place: Path, only: Sequence[str], rounds: int, figures: dict[str, dict[str, list[float]]]) -> None:
    load = LoadGenerator(place)
    acls = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:root",
    }
    for what, properties, prepare in (("acls", acls, set_acls), ("quotas", {}, set_quotas)):
        names = [name for name in COST_ROWS if name in only and name.startswith(what)]
        if not names:
            continue
        with contextlib.ExitStack() as stack:
            with_it = stack.enter_context(_running(Cluster(BARNABAS, place / what, 1, properties=properties)))
            without = stack.enter_context(_running(Cluster(BARNABAS, place / f"no-{what}", 1)))
            prepare(with_it.brokers[0].port)
            time.sleep(SETTLE_SECONDS)  # the broker hears of them by ZooKeeper
            kinds = {WITH: with_it, WITHOUT: without}
            for name in names:
                for number in range(rounds + 1):
                    for kind, made in kinds.items() if number % 2 else list(kinds.items())[::-1]:
                        done, cpu_seconds = _loaded(name, number, made, made.brokers[0].port, load)
                        _keep(figures, name, kind, number, 1e6 * cpu_seconds / done.requests)


def set_acls(port: int) -> None:
    """By which the load may write to its topics, and some of another user, which have to be looked at."""
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=_TOPIC,
            resource_name=name,
            resource_pattern_type=_PREFIXED,
            principal=principal,
            host="*",
            operation=operation,
            permission_type=_ALLOW,
        )
        for name, principal in (("acls-", _USER), ("acls-", "User:somebody"), ("a", "User:somebody"))
        for operation in (_WRITE, 6, 8)  # and Delete and Describe, which the measuring needs
    ]
    answer = wire_calls.call(port, ApiKey.CREATE_ACLS, 1, CreateAclsRequest(creations=creations))
    _raise_for([result.error_code for result in answer.results])


def set_quotas(port: int) -> None:
    """For the load's client id: of bytes and of time, by far more than it takes."""
    entry = AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=CLIENT_ID)],
        ops=[
            AlterClientQuotasRequest.OpData(key=key, value=value, remove=False)
            for key, value in (("producer_byte_rate", _ANY_BYTES), ("request_percentage", _ANY_PERCENT))
        ],
    )
    answer = wire_calls.call(
        port, ApiKey.ALTER_CLIENT_QUOTAS, 0, AlterClientQuotasRequest(entries=[entry], validate_only=False)
    )
    _raise_for([result.error_code for result in answer.entries])


# Inside.


@contextlib.contextmanager
def _running(made: Cluster) -> Iterator[Cluster]:
    try:
        made.start()
        time.sleep(SETTLE_SECONDS)
        yield made
    finally:
        made.stop()


def _loaded(name: str, number: int, made: Cluster, port: int, load: LoadGenerator) -> tuple[Load, float]:
    """What a run measured on the port, and the processor time of the broker meanwhile, in seconds."""
    plain, topic = made.brokers[0].port, f"{name}-{number}"
    wire_calls.create_topic(plain, topic, 1, 1, **{"file.delete.delay.ms": "0"})
    wait_until(lambda: len(wire_calls.leaders(plain, topic)) == 1, f"{topic} has a leader", _SECONDS_MAX)
    connections, depth, records, value_bytes, requests = {
        "bulk": (1, 5, 1_000, 1_000, 300),
        "connections": (100, 1, 1, 100, 60_000),
        "single": (1, 1, 1, 100, 15_000),
    }[name.rpartition("-")[2]]
    before = made.cpu_seconds()
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
    cpu_seconds = made.cpu_seconds() - before
    wire_calls.delete_topic(plain, topic)
    return done, cpu_seconds


def _tls_figure(name: str, done: Load) -> float:
    how = name.rpartition("-")[2]
    if how == "bulk":
        return done.megabytes_out_per_second
    return done.median_us if how == "single" else done.requests_per_second


def _keep(figures: dict[str, dict[str, list[float]]], name: str, kind: str, number: int, figure: float) -> None:
    """The first round only warms up."""
    if number:
        row = (TLS_ROWS | COST_ROWS)[name]
        figures.setdefault(name, {}).setdefault(kind, []).append(figure)
        print(f"{row.name}: {kind} {figure:,.4g} {row.unit}", file=sys.stderr, flush=True)


def _raise_for(codes: Sequence[int]) -> None:
    if any(codes):
        raise RuntimeError(f"the broker answered {codes}")
