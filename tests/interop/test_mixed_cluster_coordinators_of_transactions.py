"""Transaction coordinators of either kind, while leaders of both kinds take the records, offsets and markers.

A topic has a partition on each broker, and so have `__transaction_state` and `__consumer_offsets` of those that the
tests name: by the transactional id and the group a test chooses who coordinates. What both kinds write into
`__transaction_state` is held against each other by Apache Kafka's own formatters.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.coordinators.placement import partition_for
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AlterPartitionReassignmentsRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    FindCoordinatorRequest,
)
from tests.interop.test_internal_records import json_documents
from tests.interop.test_mixed_cluster import OFFSETS_TOPIC, PATIENCE_SECONDS, create_assigned_topic
from tests.interop.test_mixed_cluster_transactions import consumer, values
from tests.support.apache_kafka import CONSOLE_CONSUMER, run_tool
from tests.support.apache_kafka_jars import class_path
from tests.support.java_gateway import JavaProcess
from tests.support.mixed_cluster import Kind, MixedCluster, mixed_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import call

STATE_TOPIC: Final = "__transaction_state"
STATE_ASSIGNMENT: Final = ((1, 11), (11, 1), (1,), (11,))
OFFSETS_ASSIGNMENT: Final = ((2, 12), (12, 2), (1,), (11,))
WIDE_ASSIGNMENT: Final = ((1, 11), (11, 1), (2, 12), (12, 2))
PARTITIONS: Final = range(len(WIDE_ASSIGNMENT))
OVERRIDES: Final[Mapping[str, object]] = {
    "zookeeper.session.timeout.ms": 18_000,
    "transaction.state.log.num.partitions": len(STATE_ASSIGNMENT),
    "offsets.topic.num.partitions": len(OFFSETS_ASSIGNMENT),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
}
TIMEOUT_MS: Final = 60_000
LATE_MS: Final = 2_000
COORDINATORS: Final = {Kind.BARNABAS: 1, Kind.APACHE_KAFKA: 11}
"""Who coordinates, and whose partitions of `__transaction_state` have a replica on the other."""
LEADERS: Final = {Kind.BARNABAS: 2, Kind.APACHE_KAFKA: 12}
LEADERS_OF_OFFSETS: Final = [replicas[0] for replicas in OFFSETS_ASSIGNMENT]
KINDS: Final = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
LONG: Final = pytest.mark.skipif(
    os.environ.get("BARNABAS_LONG_FAILURES") != "1", reason="BARNABAS_LONG_FAILURES=1 does it, as the nightly does"
)
AGAIN: Final = pytest.mark.night("15 s for each, and no commit says that one has found anything")
FORMATTERS: Final = (
    "kafka.coordinator.transaction.TransactionLog$TransactionLogMessageFormatter",
    "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter",
)


PROVOKED_COMPLAINTS = (
    # A coordinator that slept, and was replaced, sends its markers when it wakes, and is fenced.
    r"TransactionCoordinatorFencedException: Invalid coordinator epoch .* \(zombie\)",
)


@pytest.fixture(scope="module")
def cluster(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with mixed_cluster(tmp_path_factory.mktemp("mixed"), coordinator="embedded", overrides=OVERRIDES) as running:
        for topic, assignment in ((OFFSETS_TOPIC, OFFSETS_ASSIGNMENT), (STATE_TOPIC, STATE_ASSIGNMENT)):
            # A topic begins with as many replicas of each partition.
            pairs = [
                (*replicas, *COORDINATORS.values())[:2] if replicas != (1,) else (1, 11) for replicas in assignment
            ]
            create_assigned_topic(running, topic, pairs, **{"cleanup.policy": "compact"})
            for number, replicas in enumerate(assignment):
                if replicas != pairs[number]:
                    reassign(running, topic, number, replicas)
        yield running
        assert running.unexpected_complaints(*PROVOKED_COMPLAINTS) == []


def name_in(partition: int, word: str, partitions: int = len(STATE_ASSIGNMENT)) -> str:
    """A transactional id or a group whose records are in that partition; `word` is used for one only."""
    return next(
        name for number in itertools.count() if partition_for(name := f"{word}-{number}", partitions) == partition
    )


def producer(cluster: MixedCluster, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
        }
    )
    made.init_transactions(PATIENCE_SECONDS)
    return made


def send(made: Producer, topic: str, value: bytes, partitions: range | tuple[int, ...] = PARTITIONS) -> None:
    """One record into each partition, one partition after the other, so that all coordinators hear of them alike."""
    failures: list[Any] = []
    for partition in partitions:
        made.produce(topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error))
        assert made.flush(PATIENCE_SECONDS) == 0
    assert failures == [None] * len(partitions)


@contextlib.contextmanager
def members(cluster: MixedCluster, *groups: str) -> Iterator[list[Consumer]]:
    made = [consumer(cluster, group) for group in groups]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def committed(member: Consumer, topic: str) -> int:
    (found,) = member.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    return int(max(0, found.offset))


def send_offset(made: Producer, member: Consumer, topic: str, offset: int) -> None:
    made.send_offsets_to_transaction(
        [TopicPartition(topic, 0, offset)], member.consumer_group_metadata(), PATIENCE_SECONDS
    )


def state(cluster: MixedCluster, transactional_id: str) -> str | None:
    """The transaction's state as its coordinator tells it; None while there is none that answers."""
    broker_id = coordinator(cluster, transactional_id)
    if broker_id is None:
        return None
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (found,) = call(cluster.port(broker_id), ApiKey.DESCRIBE_TRANSACTIONS, 0, request, 10.0).transaction_states
    return found.transaction_state if found.error_code == 0 else None


def coordinator(cluster: MixedCluster, transactional_id: str) -> int | None:
    """Whom both brokers that may coordinate name."""
    request = FindCoordinatorRequest(key=transactional_id, key_type=1)
    named = {
        answer.node_id if answer.error_code == 0 else None
        for answer in (
            call(cluster.port(each), ApiKey.FIND_COORDINATOR, 2, request, 10.0) for each in COORDINATORS.values()
        )
    }
    return named.pop() if len(named) == 1 else None


def move_coordinator(cluster: MixedCluster, transactional_id: str, broker_id: int) -> None:
    """The other replica of the id's partition leads it: it becomes the preferred one, and is elected. Brokers that
    have no part in it may be asleep.
    """
    number = partition_for(transactional_id, len(STATE_ASSIGNMENT))
    reassign(cluster, STATE_TOPIC, number, (broker_id, *(each for each in COORDINATORS.values() if each != broker_id)))
    elect_preferred(cluster, STATE_TOPIC, number)
    wait_until(
        lambda: coordinator(cluster, transactional_id) == broker_id and state(cluster, transactional_id),
        f"{broker_id} coordinates {transactional_id}",
        PATIENCE_SECONDS,
        cluster.log_tails,
    )


def reassign(cluster: MixedCluster, topic: str, number: int, replicas: tuple[int, ...]) -> None:
    """The partition has these replicas, all in sync."""
    controller = cluster.port(cluster.controller())
    wanted = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=number, replicas=list(replicas))
    asked = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[wanted])
    request = AlterPartitionReassignmentsRequest(topics=[asked], timeout_ms=30_000)
    answer = call(controller, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
    assert answer.responses[0].partitions[0].error_code == 0, answer

    def is_so() -> bool:
        there = cluster.znode(f"/brokers/topics/{topic}")["partitions"][str(number)]
        return bool(there == list(replicas) and set(cluster.partition_state(topic, number)["isr"]) == set(replicas))

    wait_until(is_so, f"the replicas of {topic}-{number} are {replicas}", PATIENCE_SECONDS, cluster.log_tails)


def elect_preferred(cluster: MixedCluster, topic: str, partition: int) -> None:
    asked = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
    request = ElectLeadersRequest(election_type=0, topic_partitions=[asked], timeout_ms=30_000)

    def elected() -> bool:
        answer = call(cluster.port(cluster.controller()), ApiKey.ELECT_LEADERS, 2, request)
        codes = {each.error_code for result in answer.replica_election_results for each in result.partition_result}
        return codes <= {0, ErrorCode.ELECTION_NOT_NEEDED}

    wait_until(elected, f"the first replica of {topic}-{partition} leads", PATIENCE_SECONDS, cluster.log_tails)


def end(made: Producer, word: str) -> None:
    getattr(made, f"{word}_transaction")(PATIENCE_SECONDS)


# Each kind coordinates, all brokers take the markers.


@KINDS
def test_outcomes_reach_leaders_and_groups_of_both_kinds(cluster: MixedCluster, kind: Kind) -> None:
    """Commit, abort, fencing and time-out, in every partition and with offsets at group coordinators of both kinds."""
    topic = f"outcomes-{kind.value}"
    create_assigned_topic(cluster, topic, WIDE_ASSIGNMENT)
    transactional_id = name_in(list(Kind).index(kind), f"outcomes-{kind.value}")
    made = producer(cluster, transactional_id)
    assert coordinator(cluster, transactional_id) == COORDINATORS[kind]
    groups = [name_in(number, f"group-{kind.value}", len(OFFSETS_ASSIGNMENT)) for number in (0, 1)]
    with members(cluster, *groups) as own:
        for offset, word in enumerate(("commit", "abort", "commit", "abort"), 1):
            made.begin_transaction()
            send(made, topic, f"{word}-{offset}".encode())
            for member in own:
                send_offset(made, member, topic, offset)
            end(made, word)
        expected = [b"commit-1", b"commit-3"]
        assert [values(cluster, topic, partition) for partition in PARTITIONS] == [expected] * len(PARTITIONS)
        assert [committed(member, topic) for member in own] == [3, 3]
        # Whoever comes with the same id fences the former, and aborts what it has open.
        made.begin_transaction()
        send(made, topic, b"fenced")
        for member in own:
            send_offset(made, member, topic, 77)
        latter = producer(cluster, transactional_id)
        with pytest.raises(KafkaException) as raised:
            made.commit_transaction(PATIENCE_SECONDS)
        assert raised.value.args[0].fatal()
        latter.begin_transaction()
        send(latter, topic, b"latter")
        end(latter, "commit")
        expected.append(b"latter")
        # One that is open for too long.
        late = producer(cluster, transactional_id, LATE_MS)
        late.begin_transaction()
        send(late, topic, b"late")
        for member in own:
            send_offset(late, member, topic, 78)
        wait_until(
            lambda: state(cluster, transactional_id) == "CompleteAbort", "the late one is aborted", PATIENCE_SECONDS
        )
        with pytest.raises(KafkaException):
            late.commit_transaction(PATIENCE_SECONDS)
        assert [values(cluster, topic, partition) for partition in PARTITIONS] == [expected] * len(PARTITIONS)
        assert [committed(member, topic) for member in own] == [3, 3]


@LONG
@KINDS
def test_a_coordinator_of_the_other_kind_ends_an_open_transaction(cluster: MixedCluster, kind: Kind) -> None:
    """The coordinator moves to the other kind and back, each time with a transaction open, fenced and late ones too."""
    topic = f"moved-{kind.value}"
    create_assigned_topic(cluster, topic, WIDE_ASSIGNMENT)
    number = list(Kind).index(kind)
    transactional_id = name_in(number, f"moved-{kind.value}")
    here, there = COORDINATORS[kind], COORDINATORS[kind.other]
    made = producer(cluster, transactional_id)
    with members(cluster, name_in(number, f"moved-group-{kind.value}", len(OFFSETS_ASSIGNMENT))) as (member,):
        for offset, (word, target) in enumerate(
            [("commit", there), ("abort", here), ("commit", there), ("commit", here)], 1
        ):
            made.begin_transaction()
            send(made, topic, f"{word}-{offset}".encode(), (0, 1))
            send_offset(made, member, topic, offset)
            move_coordinator(cluster, transactional_id, target)
            assert state(cluster, transactional_id) == "Ongoing"
            send(made, topic, f"{word}-{offset}".encode(), (2, 3))
            end(made, word)
            wait_until(
                lambda: str(state(cluster, transactional_id)).startswith("Complete"), "it ends", PATIENCE_SECONDS
            )
        expected = [b"commit-1", b"commit-3", b"commit-4"]
        assert [values(cluster, topic, partition) for partition in PARTITIONS] == [expected] * len(PARTITIONS)
        assert committed(member, topic) == 4
        # The epoch goes on from one kind to the other: who comes there fences who came here.
        made.begin_transaction()
        send(made, topic, b"fenced")
        move_coordinator(cluster, transactional_id, there)
        late = producer(cluster, transactional_id, LATE_MS)
        with pytest.raises(KafkaException) as raised:
            made.commit_transaction(PATIENCE_SECONDS)
        assert raised.value.args[0].fatal()
        # The time-out is that of the one who began it, whoever coordinates when it is over.
        late.begin_transaction()
        send(late, topic, b"late")
        move_coordinator(cluster, transactional_id, here)
        wait_until(
            lambda: state(cluster, transactional_id) == "CompleteAbort", "the late one is aborted", PATIENCE_SECONDS
        )
        assert [values(cluster, topic, partition) for partition in PARTITIONS] == [expected] * len(PARTITIONS)
        assert committed(member, topic) == 4


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (Kind.BARNABAS, "commit"),
        (Kind.APACHE_KAFKA, "abort"),
        pytest.param(Kind.BARNABAS, "abort", marks=AGAIN),
        pytest.param(Kind.APACHE_KAFKA, "commit", marks=AGAIN),
    ],
    ids=lambda it: it.value if isinstance(it, Kind) else it,
)
def test_a_coordinator_of_the_other_kind_ends_a_prepared_transaction(
    cluster: MixedCluster, kind: Kind, word: str
) -> None:
    """A leader sleeps, so that its marker cannot be written; the coordinator of the other kind writes it."""
    topic = f"prepared-{kind.value}-{word}"
    asleep = LEADERS[kind.other]
    number = list(Kind).index(kind)
    create_assigned_topic(cluster, topic, [(asleep,), (COORDINATORS[kind],)])
    transactional_id = name_in(number, topic)
    cluster.move_controller(COORDINATORS[kind.other])
    made = producer(cluster, transactional_id)
    assert coordinator(cluster, transactional_id) == COORDINATORS[kind]
    group = name_in(LEADERS_OF_OFFSETS.index(asleep), f"{topic}-group", len(OFFSETS_ASSIGNMENT))
    with members(cluster, group) as (member,):
        made.begin_transaction()
        send(made, topic, b"value", (0, 1))
        send_offset(made, member, topic, 5)
        prepared = {"commit": "PrepareCommit", "abort": "PrepareAbort"}[word]
        with cluster.suspended(asleep):
            end(made, word)
            assert state(cluster, transactional_id) == prepared
            move_coordinator(cluster, transactional_id, COORDINATORS[kind.other])
            assert state(cluster, transactional_id) == prepared
        complete = prepared.replace("Prepare", "Complete")
        wait_until(lambda: state(cluster, transactional_id) == complete, "it ends", PATIENCE_SECONDS)
        expected = [b"value"] if word == "commit" else []
        assert [values(cluster, topic, partition) for partition in (0, 1)] == [expected] * 2
        assert committed(member, topic) == (5 if word == "commit" else 0)
    move_coordinator(cluster, transactional_id, COORDINATORS[kind])


# __transaction_state.


@LONG
def test_kafkas_formatters_show_the_same_of_both_kinds(cluster: MixedCluster) -> None:
    create_assigned_topic(cluster, "shown", WIDE_ASSIGNMENT)
    names = {kind: name_in(list(Kind).index(kind), f"shown-{kind.value}") for kind in Kind}
    for kind, transactional_id in names.items():
        group = name_in(0, f"shown-group-{kind.value}", len(OFFSETS_ASSIGNMENT))
        with members(cluster, group) as (member,):
            made = producer(cluster, transactional_id, 54_321)
            assert coordinator(cluster, transactional_id) == COORDINATORS[kind]
            for word in ("commit", "abort"):
                made.begin_transaction()
                send(made, "shown", word.encode())
                send_offset(made, member, "shown", 1)
                end(made, word)
            made.begin_transaction()
            send(made, "shown", b"open", (2,))
        made = producer(cluster, transactional_id, LATE_MS)  # the epoch goes up, what is open is aborted
        made.begin_transaction()
        send(made, "shown", b"late", (3, 0))
        wait_until(lambda: state(cluster, names[kind]) == "CompleteAbort", "it has timed out", PATIENCE_SECONDS)  # noqa: B023
        cluster.wait_until_whole(STATE_TOPIC)
    for formatter in FORMATTERS:
        shown = formatted(cluster, formatter)
        ours, theirs = (normal(shown, names[kind]) for kind in Kind)
        assert len(theirs) > 15, theirs
        assert ours == theirs, formatter


def formatted(cluster: MixedCluster, formatter: str) -> list[str]:
    """All records of the topic, as the formatter shows them."""
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", STATE_TOPIC, "--from-beginning"]
    with members(cluster, "shown") as (reader,):
        ends = [
            reader.get_watermark_offsets(TopicPartition(STATE_TOPIC, number), PATIENCE_SECONDS)[1]
            for number in range(len(STATE_ASSIGNMENT))
        ]
    text = run_tool(CONSOLE_CONSUMER, [*arguments, "--max-messages", str(sum(ends)), "--formatter", formatter])
    if formatter.startswith("kafka."):
        return text.splitlines()
    return [json.dumps(document) for document in json_documents(text)]


def normal(lines: list[str], transactional_id: str) -> list[str]:
    """Those of the id, without the id, its group, producer ids and times; the partitions sorted, which Kafka has in no
    order.
    """
    found = []
    for line in lines:
        if f"{transactional_id}::" not in line and f'"{transactional_id}"' not in line:
            continue
        text = line.replace(transactional_id, "<id>")
        text = re.sub(r"(roducerId\"?[=:] ?)\d+", r"\1<producer>", text)
        text = re.sub(r"(Timestamp(?:Ms)?\"?[=:] ?)\d{6,}", r"\1<time>", text)
        text = re.sub(r"(topicPartitions=\w+\()([^)]*)\)", lambda part: part[1] + in_order(part[2]) + ")", text)
        if text.startswith("{"):
            document = json.loads(re.sub(r"<(producer|time)>", "0", text))
            partitions = document["value"]["data"].get("transactionPartitions") or []
            partitions.sort(key=lambda each: each["topic"])
            for each in partitions:
                each["partitionIds"].sort()
            text = json.dumps(document, sort_keys=True)
        found.append(text)
    return found


def in_order(text: str) -> str:
    return ", ".join(sorted(text.split(", ")))


class JavaProducer:
    """A transactional producer of Apache Kafka's: librdkafka's does not come back to a coordinator that was away with
    no other in its place, be it of whatever kind.
    """

    def __init__(self, java: JavaProcess, bootstrap: str, transactional_id: str) -> None:
        self._kafka = java.jvm.org.apache.kafka
        self._collections = java.jvm.java.util.Collections
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        self._producer = self._kafka.clients.producer.KafkaProducer(
            java.properties(
                {
                    "bootstrap.servers": bootstrap,
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": "240000",
                    "max.block.ms": "120000",
                    "key.serializer": serializer,
                    "value.serializer": serializer,
                }
            )
        )
        self._producer.initTransactions()

    def begin(self) -> None:
        self._producer.beginTransaction()

    def send(self, topic: str, value: bytes) -> None:
        self._producer.send(self._kafka.clients.producer.ProducerRecord(topic, 0, None, value)).get()

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        clients = self._kafka.clients.consumer
        place = self._kafka.common.TopicPartition(topic, 0)
        offsets = self._collections.singletonMap(place, clients.OffsetAndMetadata(offset))
        self._producer.sendOffsetsToTransaction(offsets, clients.ConsumerGroupMetadata(group))

    def end(self, word: str) -> None:
        getattr(self._producer, f"{word}Transaction")()


@LONG
@KINDS
@pytest.mark.timeout(900)
def test_a_log_directory_goes_on_at_the_other_kind_with_a_transaction_open(cluster: MixedCluster, kind: Kind) -> None:
    """No other broker has a replica of the transaction's state, of its records or of its offsets."""
    topic, broker_id = f"exchanged-{kind.value}", COORDINATORS[kind]
    number = 2 + list(Kind).index(kind)
    assert STATE_ASSIGNMENT[number] == OFFSETS_ASSIGNMENT[number] == (broker_id,)
    create_assigned_topic(cluster, topic, [(broker_id,)])
    transactional_id = name_in(number, topic)
    group = name_in(number, f"{topic}-group", len(OFFSETS_ASSIGNMENT))
    java = JavaProcess(class_path())
    try:
        made = JavaProducer(java, cluster.bootstrap_servers, transactional_id)

        def begin(word: str, offset: int) -> None:
            made.begin()
            made.send(topic, word.encode())
            made.send_offset(group, topic, offset)

        def goes_on(word: str, expected: list[bytes], offset: int) -> None:
            wait_until(
                lambda: state(cluster, transactional_id) == "Ongoing",
                "whoever has the log directory now knows the transaction",
                PATIENCE_SECONDS,
                cluster.log_tails,
            )
            made.send(topic, word.encode())
            made.end(word)
            assert values(cluster, topic) == expected
            with members(cluster, group) as (member,):
                assert committed(member, topic) == offset

        begin("commit", 1)
        with cluster.exchanged(broker_id):
            goes_on("commit", [b"commit"] * 2, 1)
            begin("abort", 2)
        goes_on("abort", [b"commit"] * 2, 1)
        begin("commit", 3)
        goes_on("commit", [b"commit"] * 4, 3)
    finally:
        java.kill()


@LONG
@KINDS
@pytest.mark.timeout(900)
def test_a_coordinator_is_killed_and_the_other_kind_goes_on(cluster: MixedCluster, kind: Kind) -> None:
    topic, broker_id = f"killed-{kind.value}", COORDINATORS[kind]
    create_assigned_topic(cluster, topic, WIDE_ASSIGNMENT)
    transactional_id = name_in(list(Kind).index(kind), topic)
    made = producer(cluster, transactional_id, 240_000)
    made.begin_transaction()
    send(made, topic, b"before")
    assert coordinator(cluster, transactional_id) == broker_id
    cluster.brokers[broker_id].kill()
    try:
        send(made, topic, b"after")
        end(made, "commit")
        expected = [[b"before", b"after"]] * len(PARTITIONS)
        assert [values(cluster, topic, partition) for partition in PARTITIONS] == expected
    finally:
        cluster.brokers[broker_id].start()
    for each in (topic, STATE_TOPIC, OFFSETS_TOPIC):
        cluster.wait_until_whole(each)
    elect_preferred(cluster, STATE_TOPIC, list(Kind).index(kind))
    for partition in PARTITIONS:
        elect_preferred(cluster, topic, partition)
    assert [values(cluster, topic, partition) for partition in PARTITIONS] == expected
