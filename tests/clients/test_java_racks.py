"""Apache Kafka's Java consumer reads from the replica in its rack (KIP-392), and from the leader when that is gone."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.clients.drivers import java as java_driver
from tests.clients.test_racks import RACKS, RECORDS, SELECTOR, TIMEOUT_SECONDS, TOPIC, produce
from tests.support.apache_kafka import CONSOLE_CONSUMER
from tests.support.apache_kafka_jars import class_path
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.java import java
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders

_LOGS = """
log4j.rootLogger=WARN, stderr
log4j.logger.org.apache.kafka.clients.consumer.internals=DEBUG
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%m%n
"""
_FETCHES_FROM = re.compile(rf"Added \S+ fetch request for partition {TOPIC}-0 .* to node \S+ \(id: (\d+) ")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    if reason := java_driver.reason_to_skip():
        pytest.skip(reason)
    overrides = {"replica.selector.class": SELECTOR, "offsets.topic.replication.factor": 1}
    with broker_cluster(tmp_path, 3, overrides=overrides, racks=RACKS) as running:
        yield running


class JavaReader:
    """The console consumer in a rack; `broker` is that to which it has sent its last Fetch, as its log says."""

    def __init__(self, directory: Path, bootstrap_servers: str, rack: str) -> None:
        self.broker = -1
        self.received: list[str] = []
        logs = directory / "java-consumer-log4j.properties"
        logs.write_text(_LOGS)
        self._process = subprocess.Popen(
            [
                *(java().executable, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *(f"-Dlog4j.configuration=file:{logs}", "-cp", class_path(), CONSOLE_CONSUMER),
                *("--bootstrap-server", bootstrap_servers, "--topic", TOPIC, "--partition", "0"),
                *("--offset", "earliest", "--consumer-property", f"client.rack={rack}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=self._listen, args=(stream, heed), daemon=True)
            for stream, heed in ((self._process.stdout, self._take), (self._process.stderr, self._note))
        ]
        for thread in self._threads:
            thread.start()

    def has(self, count: int) -> bool:
        return len(self.received) >= count

    def close(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_SECONDS)
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    @staticmethod
    def _listen(stream: Iterator[str], heed: Callable[[str], None]) -> None:
        for line in stream:
            heed(line.rstrip("\n"))

    def _take(self, line: str) -> None:
        self.received.append(line)

    def _note(self, line: str) -> None:
        if found := _FETCHES_FROM.search(line):
            self.broker = int(found[1])


def test_reads_from_its_rack_and_from_the_leader_when_nobody_is_there(cluster: BrokerCluster, tmp_path: Path) -> None:
    port = cluster.brokers[1].port
    create_topic(port, TOPIC, 1, 3)
    leader = wait_until(lambda: leaders(port, TOPIC).get(0), "it has a leader")
    follower = next(broker for broker in RACKS if broker != leader)
    addresses = cluster.bootstrap_servers
    produce(addresses, 0, RECORDS)
    with ExitStack() as readers:
        near, elsewhere = (
            readers.enter_context(closing(JavaReader(tmp_path, addresses, rack)))
            for rack in (RACKS[follower], "rack-9")
        )
        wait_until(lambda: near.has(RECORDS) and near.broker == follower, "it reads in its rack", TIMEOUT_SECONDS)
        wait_until(lambda: elsewhere.has(RECORDS), "it has all", TIMEOUT_SECONDS)
        assert elsewhere.broker == leader
        produce(addresses, RECORDS, RECORDS)
        wait_until(lambda: near.has(2 * RECORDS), "what is new comes from there", TIMEOUT_SECONDS)
        assert near.broker == follower
        cluster.brokers[follower].kill()
        produce(addresses, 2 * RECORDS, RECORDS)
        wait_until(lambda: near.has(3 * RECORDS), "the leader gives the rest", TIMEOUT_SECONDS)
        assert near.received == [str(number) for number in range(3 * RECORDS)]
