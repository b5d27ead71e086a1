"""Quotas of clients in a cluster with a broker of each kind: asked alike they answer alike, what one sets the other
reads and enforces, and Kafka's own tool works with both."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AlterClientQuotasRequest,
    CreateTopicsRequest,
    DescribeClientQuotasRequest,
    ProduceRequest,
)
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.interop.test_administration import znodes
from tests.support.apache_kafka import CONFIG_COMMAND, apache_kafka_broker, run_tool
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import CLIENT_ID, Connection, call, controller_port, leaders
from tests.support.zookeeper import ZooKeeperServer

OURS, THEIRS = 5, 6
STATIC: Final = {
    "log.index.size.max.bytes": 1_048_576,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "zookeeper.session.timeout.ms": 6_000,
    "controlled.shutdown.retry.backoff.ms": 200,
    "auto.leader.rebalance.enable": "false",
}
PATIENCE_SECONDS: Final = 90.0
EXACT, DEFAULT, ANY = range(3)
RATE: Final = "producer_byte_rate"
VALUE_BYTES: Final = 20_000
LEVELS: Final = tuple(
    (user, client_id)
    for user, client_id in (
        ("ANONYMOUS", "c"),
        ("ANONYMOUS", None),
        ("ANONYMOUS", ""),
        (None, "c"),
        (None, None),
        (None, ""),
        ("", "c"),
        ("", None),
    )
)
"""User and client id of the quotas that may hold for a request, the first one that is set; None is the default, and ""
not a part of it."""
LEVEL_BYTES: Final = tuple(1_024.0 / 2**level for level in range(len(LEVELS)))
"""Bytes in a second of each, by which it is told from the others: so little that one request is too much."""
Entity = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Both:
    """One broker of each kind in one cluster, each with a topic that it leads: `ours` and `theirs`."""

    ports: dict[int, int]
    zookeeper: str

    def quotas(self) -> dict[str, Any]:
        """What is below `/config`, but for topics, brokers and announcements."""
        found = znodes(self.zookeeper)
        return {
            path: json.loads(data or b"null")
            for path, data in found.items()
            if path.startswith(("/config/users/", "/config/clients/", "/config/ips/"))
        }


@pytest.fixture(scope="module")
def both(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    address = f"{zookeeper_server.address}/quotas"
    directory = tmp_path_factory.mktemp("quotas")
    ours = BrokerProcess(directory / "ours", OURS, address, overrides=STATIC)
    with apache_kafka_broker(directory / "theirs", address, THEIRS, overrides=STATIC) as theirs:
        ours.start()
        try:
            cluster = Both({OURS: ours.port, THEIRS: theirs.port}, address)
            for broker_id, name in ((OURS, "ours"), (THEIRS, "theirs")):
                topic = CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[broker_id])
                    ],
                )
                request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
                answer = call(controller_port(ours.port), ApiKey.CREATE_TOPICS, 5, request)
                assert answer.topics[0].error_code == 0
                for port in cluster.ports.values():
                    wait_until(
                        lambda port=port, name=name, leader=broker_id: leaders(port, name) == {0: leader},  # type: ignore[misc]
                        f"{name} is led",
                        PATIENCE_SECONDS,
                    )
            yield cluster
        finally:
            ours.stop()


def altering(*changes: tuple[Entity, dict[str, float | None]], validate_only: bool = False) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[
                    AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for entity, values in changes
        ],
        validate_only=validate_only,
    )


def asking(*components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ],
        strict=strict,
    )


ALTERATIONS: Final = (
    altering(({"user": "U 1"}, {RATE: 1e6, "request_percentage": 12.5, "controller_mutation_rate": 2})),
    altering(({"user": None}, {RATE: 5}), ({"client-id": "c/d:é*"}, {"consumer_byte_rate": 1e12})),
    altering(({"user": "U 1", "client-id": "c"}, {RATE: 7}), ({"user": None, "client-id": None}, {RATE: 8})),
    altering(({"client-id": None}, {RATE: 9, "request_percentage": 1e8})),
    altering(
        ({"ip": "127.0.0.1"}, {"connection_creation_rate": 10_000}),
        ({"ip": None}, {"connection_creation_rate": 20_000}),
    ),
    altering(({"user": "checked"}, {RATE: 1}), validate_only=True),
    altering(({"user": "U 1"}, {RATE: None, "consumer_byte_rate": 3.0000000001})),
    altering(({"user": "V", "client-id": "gone"}, {RATE: 1}), ({"client-id": "also gone"}, {RATE: 1})),
    altering(({"user": "V", "client-id": "gone"}, {RATE: None}), ({"client-id": "also gone"}, {RATE: None})),
    altering(({"user": "W"}, {RATE: 1}), ({"user": "W", "client-id": "x"}, {RATE: 1})),
    altering(({"user": "W"}, {RATE: None})),
    altering(({"client-id": "nobody"}, {RATE: None, "unknown": None})),
    altering(({}, {RATE: 1}), ({"team": "t"}, {RATE: 1}), ({"user": ""}, {RATE: 1}), ({"ip": ""}, {RATE: 1})),
    altering(
        ({"user": "u", "ip": "127.0.0.1"}, {RATE: 1}), ({"ip": "not.a.host.invalid"}, {"connection_creation_rate": 1})
    ),
    altering(
        ({"ip": "127.0.0.1"}, {RATE: 1}), ({"user": "u"}, {"connection_creation_rate": 1}), ({"user": "u"}, {"x": 1})
    ),
    altering(
        ({"user": "u"}, {RATE: 1.5}),
        ({"client-id": "u"}, {RATE: 1e30}),
        ({"ip": None}, {"connection_creation_rate": 1e10}),
    ),
)
QUESTIONS: Final = (
    asking(),
    asking(strict=True),
    asking(("user", ANY, None)),
    asking(("user", ANY, None), strict=True),
    asking(("user", DEFAULT, None)),
    asking(("user", EXACT, "U 1")),
    asking(("user", EXACT, "U 1"), strict=True),
    asking(("user", EXACT, "nobody")),
    asking(("client-id", ANY, None), strict=True),
    asking(("client-id", EXACT, "c/d:é*"), strict=True),
    asking(("client-id", EXACT, "c"), ("user", ANY, None)),
    asking(("user", DEFAULT, None), ("client-id", DEFAULT, None), strict=True),
    asking(("ip", ANY, None)),
    asking(("ip", EXACT, "127.0.0.1"), strict=True),
    asking(("ip", DEFAULT, None)),
    asking(("", ANY, None)),
    asking(("team", ANY, None)),
    asking(("user", ANY, None), ("user", ANY, None)),
    asking(("client-id", ANY, None), ("client-id", ANY, None)),
    asking(("user", ANY, None), ("ip", ANY, None)),
)


def told(answer: Any) -> list[Any]:
    """An answer, without Kafka's order, which is that of a hash table."""
    if getattr(answer, "error_code", 0):
        return [(answer.error_code, answer.error_message, answer.entries)]
    return sorted(
        (
            sorted((part.entity_type, part.entity_name or "<default>") for part in entry.entity),
            [(value.key, value.value) for value in sorted(entry.values, key=lambda value: value.key)]
            if hasattr(entry, "values")
            else (entry.error_code, entry.error_message or ""),
        )
        for entry in answer.entries
    )


@pytest.mark.parametrize("version", [0, 1])
def test_both_answer_alike_and_write_the_same_znodes(both: Both, version: int) -> None:
    seen = []
    for broker_id, other in ((OURS, THEIRS), (THEIRS, OURS)):
        assert both.quotas() == {}
        answers = [told(call(both.ports[broker_id], ApiKey.ALTER_CLIENT_QUOTAS, version, each)) for each in ALTERATIONS]
        for question in QUESTIONS:
            by_one, by_other = (
                told(call(both.ports[each], ApiKey.DESCRIBE_CLIENT_QUOTAS, version, question))
                for each in (broker_id, other)
            )
            assert by_one == by_other, question
        found = both.quotas()
        assert len(found) > 10
        seen.append((answers, found))
        clear(both, other)
    (our_answers, our_znodes), (their_answers, their_znodes) = seen
    for request, ours, theirs in zip(ALTERATIONS, our_answers, their_answers, strict=True):
        assert ours == theirs, request
    assert our_znodes == their_znodes


def clear(both: Both, broker_id: int) -> None:
    """Removes all quotas, through one of the brokers."""
    everything = call(both.ports[broker_id], ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, asking())
    changes = [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            dict.fromkeys((value.key for value in entry.values), None),
        )
        for entry in everything.entries
    ]
    # Kafka leaves a user's znode that is empty but for client ids whose quotas go later: those go first.
    changes.sort(key=lambda change: -len(change[0]))
    answer = call(both.ports[broker_id], ApiKey.ALTER_CLIENT_QUOTAS, 1, altering(*changes))
    assert {entry.error_code for entry in answer.entries} <= {0}


def throttle_ms(both: Both, broker_id: int, client_id: str = CLIENT_ID) -> int:
    """What a broker says to a record for the topic that it leads."""
    builder = RecordBatchBuilder()
    builder.append(int(time.time() * 1000), None, bytes(VALUE_BYTES))
    partition = ProduceRequest.PartitionProduceData(index=0, records=builder.build())
    data = ProduceRequest.TopicProduceData(name="ours" if broker_id == OURS else "theirs", partition_data=[partition])
    request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data])
    with Connection(both.ports[broker_id]) as connection:
        answer = connection.call(ApiKey.PRODUCE, 9, request, client_id=client_id)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    found: int = answer.throttle_time_ms
    return found


@pytest.mark.parametrize("setter", [OURS, THEIRS])
def test_a_quota_that_one_sets_holds_at_both_until_it_is_removed(both: Both, setter: int) -> None:
    port = both.ports[setter]
    user: Entity = {"user": "ANONYMOUS"}
    call(port, ApiKey.ALTER_CLIENT_QUOTAS, 1, altering((user, {RATE: 100})))
    for broker_id in (OURS, THEIRS):
        wait_until(lambda b=broker_id: throttle_ms(both, b) > 0, f"{broker_id} throttles", PATIENCE_SECONDS)  # type: ignore[misc]
    call(port, ApiKey.ALTER_CLIENT_QUOTAS, 1, altering((user, {RATE: None})))
    for broker_id in (OURS, THEIRS):
        wait_until(lambda b=broker_id: throttle_ms(both, b) == 0, f"{broker_id} does not", PATIENCE_SECONDS)  # type: ignore[misc]
    assert both.quotas() == {}


def level_of(both: Both, broker_id: int, client_id: str) -> int | None:
    """Which of the levels holds for a client id at a broker: by how much longer it is held back for each record more,
    whatever was taken before."""
    told = [throttle_ms(both, broker_id, client_id) for _ in range(4)]
    if not any(told):
        return None
    longer = statistics.median(after - before for before, after in itertools.pairwise(told))
    return round(math.log2(longer / 1000 * LEVEL_BYTES[0] / VALUE_BYTES))


def knows(both: Both, broker_id: int, client_id: str) -> bool:
    """Whether a byte in a second is what holds for a client id at a broker: so little as no level allows."""
    before, after = (throttle_ms(both, broker_id, client_id) for _ in range(2))
    return (after - before) / 1000 > VALUE_BYTES / 2


def entity_of(level: int, client_id: str) -> Entity:
    user, client = LEVELS[level]
    entity: Entity = {} if user == "" else {"user": user}
    return entity if client == "" else entity | {"client-id": client_id if client else None}


@pytest.mark.parametrize("setter", [OURS, THEIRS])
def test_of_several_quotas_the_same_one_holds_at_both(both: Both, setter: int) -> None:
    """Whichever are set: each one alone, all from one on, and twenty choices at random."""
    port, chance = both.ports[setter], random.Random(setter)
    chosen = [[level] for level in range(8)] + [list(range(first, 8)) for first in range(8)]
    chosen += [sorted(chance.sample(range(8), chance.randint(2, 6))) for _ in range(20)]
    chance.shuffle(chosen)
    for number, levels in enumerate([*chosen, []]):
        client_id, known = f"client-{setter}-{number}", f"known-{setter}-{number}"
        before: list[tuple[Entity, dict[str, float | None]]] = []
        if number:
            last, former = chosen[number - 1], f"client-{setter}-{number - 1}"
            before = [(entity_of(level, former), {RATE: None}) for level in last]
            before.append(({"user": "ANONYMOUS", "client-id": f"known-{setter}-{number - 1}"}, {RATE: None}))
        now: list[tuple[Entity, dict[str, float | None]]]
        now = [(entity_of(level, client_id), {RATE: LEVEL_BYTES[level]}) for level in levels]
        # Whoever knows the last one knows all: brokers hear of them in order.
        now.append(({"user": "ANONYMOUS", "client-id": known}, {RATE: 1.0}))
        answer = call(port, ApiKey.ALTER_CLIENT_QUOTAS, 1, altering(*before, *now))
        assert {entry.error_code for entry in answer.entries} == {0}
        for broker_id in (OURS, THEIRS):
            wait_until(
                lambda b=broker_id, known=known: knows(both, b, known),  # type: ignore[misc]
                f"{broker_id} knows {levels}",
                PATIENCE_SECONDS,
            )
            holds = levels[0] if levels else None
            # On a busy machine a window of the rate may end between two records.
            wait_until(
                lambda b=broker_id, client=client_id, level=holds: level_of(both, b, client) == level,  # type: ignore[misc]
                f"the level {holds} of {levels} holds at {broker_id}",
                PATIENCE_SECONDS,
            )
    clear(both, setter)
    assert both.quotas() == {}


def sorted_values(output: str) -> str:
    """Quotas come in the order of a hash table."""
    head, _, values = output.strip().rpartition(" are ")
    return f"{head} are {', '.join(sorted(values.split(', ')))}"


def test_kafkas_own_tool_says_the_same_of_both(both: Both) -> None:
    outputs = []
    for broker_id, other in ((OURS, THEIRS), (THEIRS, OURS)):
        here, there = (f"127.0.0.1:{both.ports[each]}" for each in (broker_id, other))
        entity = ("--entity-type", "users", "--entity-name", "U 1", "--entity-type", "clients", "--entity-default")
        config = f"{RATE}=1000,consumer_byte_rate=2000,request_percentage=50"
        said = [run_tool(CONFIG_COMMAND, ["--bootstrap-server", here, "--alter", *entity, "--add-config", config])]
        said += [
            sorted_values(run_tool(CONFIG_COMMAND, ["--bootstrap-server", server, "--describe", *entity]))
            for server in (here, there)
        ]
        assert said[1] == said[2]
        assert "producer_byte_rate=1000.0" in said[1]
        keys = f"{RATE},consumer_byte_rate,request_percentage"
        said.append(
            run_tool(CONFIG_COMMAND, ["--bootstrap-server", there, "--alter", *entity, "--delete-config", keys])
        )
        outputs.append(said)
        assert both.quotas() == {}
    assert outputs[0] == outputs[1]
