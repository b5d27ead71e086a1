"""What ACLs and quotas cost: processor time of a request in one broker process, with and without them in turns.

The broker's time is that of all its threads, the kernel's part too, to the nanosecond; turns are of some milliseconds
(`load.c`). What is compared changes its sides in each of ten rounds, and so does what is not.

Quotas: two clients, of which one has quotas of bytes and of time by its client id, too large to hold anything back, and
the other has none. They are set and removed while the broker runs, and another client is asked whether it has heard of
that. With nothing neither has any.

ACLs: there is an authorizer, or there is none, which a broker is told when it starts; `switchable` takes it out and
puts it back before each turn. The client may write to and read from its topics by a prefix, and somebody else by two.
What was decided is kept until rules change, so nearly all requests only see that they have not. With nothing it is
taken out before each turn.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import AlterClientQuotasRequest, CreateAclsRequest, ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from benchmarks.brokers.load import LoadGenerator, Sides
from benchmarks.brokers.servers import BARNABAS, PROGRAM, SWITCHABLE, Cluster
from benchmarks.brokers.turns import Turns, interval, paired, ratios
from tests.support import wire_calls
from tests.support.waiting import wait_until

TURNS: Final = 1_200
ROUNDS: Final = 10
_SECONDS_MAX: Final = 120.0
_HOW: Final = {
    "single": "produce 1 record of 100 B, 1 connection, 1 in flight",
    "connections": "produce 1 record of 100 B, 100 connections",
    "fetch": "fetch 1 record of 100 B, 1 connection, 1 in flight",
}
ROWS: Final = {f"{what}-{how}": f"{what}, {said}" for what in ("ACLs", "quotas") for how, said in _HOW.items()}
_FETCHED_BATCHES: Final = 1_000
_CLIENT_IDS: Final = ("client-0", "client-1")
_PROBE: Final = "probe"
_LARGE_QUOTAS: Final = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e9}
_SMALL_QUOTA: Final = {"request_percentage": 1e-6}
"""Whoever has it is held back after each request, for a second at most."""
_OF_ACLS: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:root",
}
_Run = Callable[[Sides], list[float]]


def measure(place: Path, only: Sequence[str], turns: int) -> dict[str, Turns]:
    """The figures of these rows, each of so many turns."""
    load, found = LoadGenerator(place), {}
    for what, rounds in (("ACLs", _rounds_of_acls), ("quotas", _rounds_of_quotas)):
        names = [name for name in only if name.startswith(what)]
        if not names:
            continue
        with _broker(place, what) as made:
            for name in names:
                port = made.brokers[0].port
                make_topic(port, name)
                run = _runs(name, load, port, turns // ROUNDS // 4 * 4)
                run(Sides(made.brokers[0].process.process_id, _CLIENT_IDS))  # warms up
                found[name] = Turns()
                for _ in rounds(made, name, run, found[name]):
                    low, high = interval(ratios(found[name].pairs))
                    print(f"{ROWS[name]}: between {low:.3f} and {high:.3f}", file=sys.stderr, flush=True)
    return found


def _rounds_of_quotas(made: Cluster, topic: str, run: _Run, found: Turns) -> Iterator[None]:
    port = made.brokers[0].port
    sides = Sides(made.brokers[0].process.process_id, _CLIENT_IDS)
    for number in range(ROUNDS):
        side = number % 2
        limit(port, topic, _CLIENT_IDS[side], is_set=True)
        found.pairs.extend(paired(run(sides), side=side))
        limit(port, topic, _CLIENT_IDS[side], is_set=False)
        found.alike.extend(paired(run(sides), side=side))
        yield


def _rounds_of_acls(made: Cluster, _topic: str, run: _Run, found: Turns) -> Iterator[None]:
    sides = functools.partial(Sides, made.brokers[0].process.process_id, _CLIENT_IDS[:1])
    has, has_not = signal.SIGUSR1, signal.SIGUSR2
    for number in range(ROUNDS):
        side = number % 2
        found.pairs.extend(paired(run(sides((has_not, has) if side else (has, has_not))), side=side))
        found.alike.extend(paired(run(sides((has_not, has_not))), side=side))
        yield


@contextlib.contextmanager
def _broker(place: Path, what: str) -> Iterator[Cluster]:
    of_acls = what == "ACLs"
    properties, program = (_OF_ACLS, SWITCHABLE) if of_acls else ({}, PROGRAM)
    made = Cluster(BARNABAS, place / what, 1, properties=properties, program=program)
    try:
        made.start()
        if of_acls:
            set_acls(made.brokers[0].port)
        yield made
    finally:
        made.stop()


def _runs(name: str, load: LoadGenerator, port: int, turns: int) -> _Run:
    """What has the sides take so many turns."""
    produce = functools.partial(load.produce_in_turns, port, name, value_bytes=100)
    if name.endswith("-single"):
        return functools.partial(produce, connections=1, turns=turns, requests=200)
    if name.endswith("-connections"):
        return functools.partial(produce, connections=100, turns=turns, requests=2_000)
    produce(Sides(0), connections=1, turns=1, requests=_FETCHED_BATCHES)
    return functools.partial(load.fetch_in_turns, port, name, turns=turns, requests=200, batches=_FETCHED_BATCHES)


def limit(port: int, topic: str, client_id: str, *, is_set: bool) -> None:
    """Sets the quotas of a client or removes them; the broker knows of it when this returns."""
    # It hears of them in this order: what the probe is told of its own holds for the client's.
    entries = [_quotas(client_id, _LARGE_QUOTAS, is_set), _quotas(_PROBE, _SMALL_QUOTA, is_set)]
    request = AlterClientQuotasRequest(entries=entries, validate_only=False)
    answer = wire_calls.call(port, ApiKey.ALTER_CLIENT_QUOTAS, 0, request)
    _raise_for([result.error_code for result in answer.entries])
    wait_until(
        lambda: _is_held_back(port, topic) == is_set, f"the broker knows the quotas of {client_id}", _SECONDS_MAX
    )


def _is_held_back(port: int, topic: str) -> bool:
    """Whether another client is, that sends a record."""
    builder = RecordBatchBuilder()
    builder.append(int(time.time() * 1000), None, bytes(100))
    partition = ProduceRequest.PartitionProduceData(index=0, records=memoryview(builder.build()))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    with wire_calls.Connection(port) as connection:
        request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data])
        answer: Any = connection.call(ApiKey.PRODUCE, 7, request, client_id=_PROBE)
    return bool(answer.throttle_time_ms)


def make_topic(port: int, name: str) -> None:
    """Of one partition, that has a leader when this returns."""
    wire_calls.create_topic(port, name, 1, 1, **{"file.delete.delay.ms": "0"})
    wait_until(lambda: len(wire_calls.leaders(port, name)) == 1, f"{name} has a leader", _SECONDS_MAX)


def set_acls(port: int) -> None:
    """By which the load may write to its topics and read them, and some of another user, which have to be looked at."""
    everybody, somebody = "User:ANONYMOUS", "User:somebody"
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=ResourceType.TOPIC,
            resource_name=name,
            resource_pattern_type=PatternType.PREFIXED,
            principal=principal,
            host="*",
            operation=operation,
            permission_type=AclPermissionType.ALLOW,
        )
        for name, principal in (("ACLs-", everybody), ("ACLs-", somebody), ("A", somebody))
        for operation in (AclOperation.WRITE, AclOperation.READ)
    ]
    answer = wire_calls.call(port, ApiKey.CREATE_ACLS, 1, CreateAclsRequest(creations=creations))
    _raise_for([result.error_code for result in answer.results])


def _quotas(client_id: str, values: dict[str, float], is_set: bool) -> AlterClientQuotasRequest.EntryData:
    return AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[
            AlterClientQuotasRequest.OpData(key=key, value=value if is_set else 0.0, remove=not is_set)
            for key, value in values.items()
        ],
    )


def _raise_for(codes: Sequence[int]) -> None:
    if any(codes):
        raise RuntimeError(f"the broker answered {codes}")
