"""Kafka Streams with `exactly_once_v2` on three brokers, while brokers and its own instances are killed with -9.

The topology counts the records of each key in a state store, and tells each new count: consume, transform, produce. A
count that was lost, or that was made of a record twice, would show in all that follow; so the counts of each key that a
reader of committed records finds have to be 1, 2, 3, and so on, in that order, up to what was written of it.
BARNABAS_STREAMS_SECONDS says for how long; `.ci/nightly` does it.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.cluster.test_exactly_once import (
    BROKERS,
    OVERRIDES,
    PARTITIONS,
    RECOVERY_SECONDS,
    SEED,
    any_port,
    coordinator,
    is_whole,
)
from tests.support.apache_kafka_jars import STREAMS, class_path
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.java_gateway import JavaProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders, metadata

SECONDS: Final = float(os.environ.get("BARNABAS_STREAMS_SECONDS", "0"))
INSTANCES: Final = 2
KEYS: Final = 8
APPLICATION, SOURCE, TARGET, STORE = "counters", "words", "counts", "store"
CHANGELOG: Final = f"{APPLICATION}-{STORE}-changelog"
COUNT_BYTES: Final = 8
PATIENCE_SECONDS: Final = 2 * RECOVERY_SECONDS
"""An instance that ended by itself starts once more, and reads its store anew."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, BROKERS, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


class Instance:
    """One JVM with Kafka Streams, whose state directory stays."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        directory.mkdir(exist_ok=True)
        self.log = directory / "streams.log"
        configuration = directory / "log4j.properties"
        configuration.write_text(
            "log4j.rootLogger=WARN, stderr\nlog4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.stderr.target=System.err\nlog4j.appender.stderr.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
        )
        classes = f"{class_path()}:{class_path(STREAMS)}"
        self._process = JavaProcess(classes, f"-Dlog4j.configuration=file:{configuration}", log=self.log)
        streams = self._process.jvm.org.apache.kafka.streams
        builder = streams.StreamsBuilder()
        counted = builder.stream(SOURCE).groupByKey().count(getattr(streams.kstream.Materialized, "as")(STORE))
        counted.toStream().to(TARGET)
        serde = "org.apache.kafka.common.serialization.Serdes$StringSerde"
        self._streams = streams.KafkaStreams(
            builder.build(),
            self._process.properties(
                {
                    "application.id": APPLICATION,
                    "bootstrap.servers": bootstrap,
                    "processing.guarantee": "exactly_once_v2",
                    "replication.factor": str(BROKERS),
                    "state.dir": str(directory / "state"),
                    "default.key.serde": serde,
                    "default.value.serde": serde,
                    "commit.interval.ms": "100",
                    # Else only the last count of several would be told.
                    "statestore.cache.max.bytes": "0",
                    "consumer.auto.offset.reset": "earliest",
                    "consumer.session.timeout.ms": "6000",
                    "consumer.heartbeat.interval.ms": "1000",
                    "producer.transaction.timeout.ms": "10000",
                }
            ),
        )
        self._streams.start()

    def state(self) -> str:
        return str(self._streams.state().toString())

    def kill(self) -> None:
        self._process.kill()


class Instances:
    """One that has ended by itself, as after an error that it takes as fatal, is started again."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self._directories = [directory / f"instance-{number}" for number in range(INSTANCES)]
        self._bootstrap = bootstrap
        self._running = [Instance(each, bootstrap) for each in self._directories]

    def look_after(self) -> None:
        for number, instance in enumerate(self._running):
            if instance.state() in ("PENDING_ERROR", "ERROR", "NOT_RUNNING"):
                self.restart(number)

    def restart(self, number: int) -> None:
        """Kills it with -9, and starts another on its state directory."""
        self._running[number].kill()
        self._running[number] = Instance(self._directories[number], self._bootstrap)

    def are_running(self) -> bool:
        self.look_after()
        return all(instance.state() == "RUNNING" for instance in self._running)

    def kill_all(self) -> None:
        for instance in self._running:
            instance.kill()

    def log_tails(self) -> str:
        return "\n".join(instance.log.read_text()[-3_000:] for instance in self._running)


class Writer:
    """Writes records with a few keys, each once, whatever becomes of brokers meanwhile."""

    def __init__(self, bootstrap: str) -> None:
        self.counts = dict.fromkeys(range(KEYS), 0)
        self._ending = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 300_000}
        )
        self._failures: list[KafkaError] = []
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def finish(self) -> dict[str, int]:
        """How many of each key there are; returns when all are acknowledged."""
        self._ending.set()
        self._thread.join()
        assert self._producer.flush(RECOVERY_SECONDS) == 0
        assert not self._failures
        return {str(key): count for key, count in self.counts.items()}

    def _write(self) -> None:
        generator = random.Random(SEED)
        while not self._ending.wait(0.02):
            key = generator.randrange(KEYS)
            self.counts[key] += 1
            self._producer.produce(
                SOURCE, b"word", str(key), key % PARTITIONS, on_delivery=lambda error, _: self._told(error)
            )
            self._producer.poll(0)

    def _told(self, error: KafkaError | None) -> None:
        if error is not None:
            self._failures.append(error)


def hurt(cluster: BrokerCluster, instances: Instances, generator: random.Random) -> None:
    """Kills somebody, and has everybody back."""
    who = generator.choice(("any", "transactions", "group", "instance"))
    if who == "instance":
        instances.restart(generator.randrange(INSTANCES))
        return
    broker_id = {
        "any": lambda: generator.randrange(1, BROKERS + 1),
        # The ids are Streams' own: the leader of any of the few partitions coordinates some.
        "transactions": lambda: generator.choice([*leaders(any_port(cluster), "__transaction_state").values()]),
        "group": lambda: coordinator(cluster, APPLICATION, 0),
    }[who]()
    cluster.brokers[broker_id].kill()
    time.sleep(generator.choice((0.2, 4.0)))
    cluster.brokers[broker_id].start()
    for topic in (SOURCE, TARGET, CHANGELOG, "__consumer_offsets", "__transaction_state"):
        wait_until(lambda: is_whole(cluster, topic), f"{topic} is whole", RECOVERY_SECONDS, cluster.log_tails)  # noqa: B023


def told_counts(bootstrap: str) -> dict[str, list[int]]:
    """The counts of each key in committed records, in their order, up to the last stable offset of each partition."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    found: dict[str, list[int]] = defaultdict(list)
    ended: set[int | None] = set()
    deadline = time.monotonic() + RECOVERY_SECONDS
    try:
        reader.assign([TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, f"{ended} of {TARGET} came to an end"
            message = reader.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                value = message.value() or b""
                assert len(value) == COUNT_BYTES
                found[(message.key() or b"").decode()].append(int.from_bytes(value, "big"))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        reader.close()
    return found


@pytest.mark.skipif(not SECONDS, reason="BARNABAS_STREAMS_SECONDS says for how long")
@pytest.mark.timeout(SECONDS + 600)
def test_each_record_is_counted_exactly_once(cluster: BrokerCluster, tmp_path: Path) -> None:
    generator = random.Random(SEED)
    for topic in (SOURCE, TARGET):
        create_topic(any_port(cluster), topic, PARTITIONS, BROKERS)
        for broker in cluster.brokers.values():
            wait_until(lambda: len(leaders(broker.port, topic)) == PARTITIONS, f"{topic} is led", RECOVERY_SECONDS)  # noqa: B023
    writer = Writer(cluster.bootstrap_servers)
    instances = Instances(tmp_path, cluster.bootstrap_servers)
    try:
        wait_until(
            lambda: instances.are_running() and told_counts(cluster.bootstrap_servers),
            "something is counted",
            PATIENCE_SECONDS,
            instances.log_tails,
        )
        (changelog,) = metadata(any_port(cluster), [CHANGELOG]).topics
        assert len(changelog.partitions) == PARTITIONS
        deadline = time.monotonic() + SECONDS
        hurts = 0
        while time.monotonic() < deadline:
            hurt(cluster, instances, generator)
            instances.look_after()
            time.sleep(generator.uniform(0.5, 5.0))
            hurts += 1
        written = writer.finish()

        def are_all_counted() -> bool:
            instances.look_after()
            found = told_counts(cluster.bootstrap_servers)
            return all(found[key][-1:] == [count] for key, count in written.items() if count)

        wait_until(are_all_counted, f"all are counted (seed {SEED})", PATIENCE_SECONDS, instances.log_tails)
    finally:
        instances.kill_all()
    assert hurts > SECONDS / 60, "hardly anybody was killed"
    found = told_counts(cluster.bootstrap_servers)
    assert found == {key: list(range(1, count + 1)) for key, count in written.items() if count}, f"seed {SEED}"
