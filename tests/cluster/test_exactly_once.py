"""Members of a group copy a topic in transactions while brokers, both coordinators and members are killed with -9:
one of librdkafka, one of kafka-python, one of Java, which is Apache Kafka's own tool for this test, and, where there is
Go, one of franz-go.

All that was written into the first topic is in the second one exactly once for readers of committed records, and
copying goes on within the time-out of a transaction and the time in which a cluster recovers.
BARNABAS_EXACTLY_ONCE_SECONDS says for how long they are killed; `.ci/nightly` does ten minutes of it.
"""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import DescribeProducersRequest, DescribeTransactionsRequest, FindCoordinatorRequest
from tests.clients.drivers import franzgo
from tests.support.apache_kafka_jars import class_path
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.exactly_once_member import TRANSACTION_TIMEOUT_MS
from tests.support.java import java
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, leaders, metadata

SECONDS: Final = float(os.environ.get("BARNABAS_EXACTLY_ONCE_SECONDS", "0"))
SEED: Final = int(os.environ.get("BARNABAS_FAILURE_SEED", "0")) or random.randrange(1, 1_000_000)
BROKERS: Final = 3
PARTITIONS: Final = 4
PROGRAMS: Final = {
    "librdkafka": "tests.support.exactly_once_member",
    "kafka-python": "tests.support.exactly_once_kafka_python",
}
MEMBERS: Final = (*PROGRAMS, "java", *(() if franzgo.reason_to_skip() else ("franz-go",)))
RECOVERY_SECONDS: Final = 90.0
SOURCE, TARGET, GROUP = "source", "target", "copiers"
OVERRIDES: Final = {
    "zookeeper.session.timeout.ms": 3_000,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    "group.initial.rebalance.delay.ms": 0,
    "replica.lag.time.max.ms": 3_000,
    "min.insync.replicas": 2,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, BROKERS, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


def java_member(bootstrap: str, transactional_id: str) -> list[str]:
    """The command of a member that consumes, and produces, by Java's client."""
    return [
        *(str(java().executable), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-cp", class_path(), "org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list", bootstrap),
        *("--input-topic", SOURCE, "--input-partition", "-1", "--output-topic", TARGET, "--consumer-group", GROUP),
        *("--transactional-id", transactional_id, "--transaction-timeout", str(TRANSACTION_TIMEOUT_MS)),
        *("--transaction-size", "50", "--group-mode", "--use-group-metadata"),
    ]


class Members:
    """The copying processes. One that ends is started again; Java's does so whenever it has copied what there was."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self._logs = [directory / f"member-{number}-{client}.log" for number, client in enumerate(MEMBERS)]
        self._bootstrap = bootstrap
        self._running = [self._started(number) for number in range(len(MEMBERS))]

    def look_after(self) -> None:
        for number, process in enumerate(self._running):
            if process.poll() is not None:
                self._running[number] = self._started(number)

    def kill(self, number: int) -> None:
        self._running[number].kill()
        self._running[number].wait()

    def kill_all(self) -> None:
        for number in range(len(MEMBERS)):
            self.kill(number)

    def have_copied_more(self, before: int) -> int | None:
        """How many records they have copied, if there are more than `before`."""
        self.look_after()
        now = committed(self._bootstrap)
        return now if now > before else None

    def log_tails(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in self._logs)

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        client, transactional_id = MEMBERS[number], f"copier-{number}"
        topics = SOURCE, TARGET, GROUP, transactional_id
        if client == "java":
            command = java_member(self._bootstrap, transactional_id)
        elif client == "franz-go":
            command = franzgo.copying(self._bootstrap, *topics, TRANSACTION_TIMEOUT_MS)
        else:
            command = [sys.executable, "-m", PROGRAMS[client], self._bootstrap, *topics]
        with self._logs[number].open("a") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class Writer:
    """Writes numbers into the first topic; each is there once, whatever becomes of brokers meanwhile."""

    def __init__(self, bootstrap: str) -> None:
        self.count = 0
        self._ending = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 300_000}
        )
        self._failures: list[KafkaError] = []
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Returns when all are acknowledged."""
        self._ending.set()
        self._thread.join()
        assert self._producer.flush(RECOVERY_SECONDS) == 0
        assert not self._failures

    def _write(self) -> None:
        while not self._ending.wait(0.01):
            for _ in range(3):
                value = str(self.count).encode()
                self._producer.produce(
                    SOURCE, value, partition=self.count % PARTITIONS, on_delivery=lambda error, _: self._told(error)
                )
                self.count += 1
            self._producer.poll(0)

    def _told(self, error: KafkaError | None) -> None:
        if error is not None:
            self._failures.append(error)


def any_port(cluster: BrokerCluster) -> int:
    return next(broker.port for broker in cluster.brokers.values() if broker.process.is_running)


def coordinator(cluster: BrokerCluster, key: str, key_type: int) -> int:
    def known() -> int | None:
        answer = call(any_port(cluster), ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=key, key_type=key_type))
        return answer.node_id if answer.error_code == 0 else None

    return wait_until(known, f"{key} has a coordinator", RECOVERY_SECONDS, cluster.log_tails)


def hurt(cluster: BrokerCluster, members: Members, generator: random.Random) -> None:
    """Kills somebody, and has everybody back."""
    who = generator.choice(("any", "transactions", "group", "member"))
    if who == "member":
        members.kill(generator.randrange(len(MEMBERS)))
        return
    broker_id = {
        "any": lambda: generator.randrange(1, BROKERS + 1),
        "transactions": lambda: coordinator(cluster, f"copier-{generator.randrange(len(MEMBERS))}", 1),
        "group": lambda: coordinator(cluster, GROUP, 0),
    }[who]()
    cluster.brokers[broker_id].kill()
    time.sleep(generator.choice((0.2, 4.0)))
    cluster.brokers[broker_id].start()
    for topic in (SOURCE, TARGET, "__consumer_offsets", "__transaction_state"):
        wait_until(lambda: is_whole(cluster, topic), f"{topic} is whole", RECOVERY_SECONDS, cluster.log_tails)  # noqa: B023


def is_whole(cluster: BrokerCluster, topic: str) -> bool:
    (found,) = metadata(any_port(cluster), [topic]).topics
    return bool(found.partitions) and all(len(each.isr_nodes) == BROKERS for each in found.partitions)


def committed(bootstrap: str) -> int:
    """How many records the group has committed as read."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        places = [TopicPartition(SOURCE, number) for number in range(PARTITIONS)]
        return sum(max(0, place.offset) for place in reader.committed(places, timeout=RECOVERY_SECONDS))
    finally:
        reader.close()


def read_all(bootstrap: str, topic: str) -> list[int]:
    """The numbers in committed records, up to the last stable offset of each partition, which comes to an end only
    where nobody writes any more.
    """
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    found: list[int] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + RECOVERY_SECONDS
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, f"{ended} of {topic} came to an end"
            message = reader.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(int(message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        reader.close()
    return found


def those_who_wrote(cluster: BrokerCluster) -> set[str]:
    """The clients whose present producer id the leaders of the second topic know."""
    numbers = list(range(PARTITIONS))
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name=TARGET, partition_indexes=numbers)]
    )
    known = {
        producer.producer_id
        for broker in cluster.brokers.values()
        for topic in call(broker.port, ApiKey.DESCRIBE_PRODUCERS, 0, request).topics
        for partition in topic.partitions
        for producer in partition.active_producers
    }
    found = set()
    for number, client in enumerate(MEMBERS):
        transactional_id = f"copier-{number}"
        port = cluster.brokers[coordinator(cluster, transactional_id, 1)].port
        described = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (state,) = call(port, ApiKey.DESCRIBE_TRANSACTIONS, 0, described).transaction_states
        if state.producer_id in known:
            found.add(client)
    return found


@pytest.mark.skipif(not SECONDS, reason="BARNABAS_EXACTLY_ONCE_SECONDS says for how long")
@pytest.mark.timeout(SECONDS + 400)
def test_each_record_is_copied_exactly_once(cluster: BrokerCluster, tmp_path: Path) -> None:
    generator = random.Random(SEED)
    for topic in (SOURCE, TARGET):
        create_topic(any_port(cluster), topic, PARTITIONS, BROKERS)
        for broker in cluster.brokers.values():
            wait_until(lambda: len(leaders(broker.port, topic)) == PARTITIONS, f"{topic} is led", RECOVERY_SECONDS)  # noqa: B023
    writer = Writer(cluster.bootstrap_servers)
    members = Members(tmp_path, cluster.bootstrap_servers)
    try:
        wait_until(lambda: committed(cluster.bootstrap_servers), "something is copied", RECOVERY_SECONDS)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            hurt(cluster, members, generator)
            members.look_after()
            time.sleep(generator.uniform(0.5, 3.0))
        writer.finish()

        copied_before = -1
        while copied_before < writer.count:
            # However much has been left while everybody was killed: nothing hangs.
            copied_before = wait_until(
                functools.partial(members.have_copied_more, copied_before),
                f"more than {copied_before} of {writer.count} are copied (seed {SEED})",
                RECOVERY_SECONDS,
                members.log_tails,
            )
    finally:
        members.kill_all()
    # That of the offsets may be written before the other markers of the last transaction.
    wait_until(
        lambda: len(read_all(cluster.bootstrap_servers, TARGET)) >= writer.count, "all are read", RECOVERY_SECONDS
    )
    copied = Counter(read_all(cluster.bootstrap_servers, TARGET))
    assert [number for number in range(writer.count) if copied[number] != 1] == [], f"seed {SEED}"
    assert copied.total() == writer.count
    assert those_who_wrote(cluster) == set(MEMBERS)
