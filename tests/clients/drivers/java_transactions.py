"""Apache Kafka's Java producer with a transactional id and consumer of committed records, driven from Python through
py4j, which Spark brings.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.clients.drivers.model import Fenced
from tests.support.apache_kafka_jars import class_path
from tests.support.java_gateway import JavaProcess

POLL_SECONDS = 1
_FENCED = ("ProducerFencedException", "InvalidProducerEpochException")
_PACKAGE = "org.apache.kafka.common.serialization"
_WRITING = {f"{each}.serializer": f"{_PACKAGE}.ByteArraySerializer" for each in ("key", "value")}
_READING = {f"{each}.deserializer": f"{_PACKAGE}.ByteArrayDeserializer" for each in ("key", "value")}


class JavaTransactions:
    """A Java producer with a transactional id."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, timeout_ms: int) -> None:
        self._clients = _jvm().org.apache.kafka.clients.producer
        configs = {"transactional.id": transactional_id, "transaction.timeout.ms": str(timeout_ms)}
        self._producer = self._clients.KafkaProducer(_configs(bootstrap_servers, {**configs, **_WRITING}))
        self._producer.initTransactions()

    def begin(self) -> None:
        self._producer.beginTransaction()

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        record = self._clients.ProducerRecord
        for sent in [self._producer.send(record(topic, partition, None, each)) for each in values]:
            sent.get()

    def commit(self) -> None:
        try:
            self._producer.commitTransaction()
        except Py4JJavaError as raised:
            if raised.java_exception.getClass().getSimpleName() in _FENCED:
                raise Fenced from raised
            raise

    def abort(self) -> None:
        self._producer.abortTransaction()

    def close(self) -> None:
        self._producer.close(_jvm().java.time.Duration.ofSeconds(0))


def read_committed(bootstrap_servers: str, topic: str, partition: int) -> list[bytes]:
    """The values that the Java consumer finds before the last stable offset."""
    jvm = _jvm()
    configs = {"isolation.level": "read_committed", "enable.auto.commit": "false", **_READING}
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(_configs(bootstrap_servers, configs))
    try:
        place = jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        places = jvm.java.util.List.of(place)
        consumer.assign(places)
        consumer.seekToBeginning(places)
        end = consumer.endOffsets(places)[place]
        found: list[bytes] = []
        while consumer.position(place) < end:
            polled = consumer.poll(jvm.java.time.Duration.ofSeconds(POLL_SECONDS))
            found += [bytes(record.value()) for record in polled.records(place)]
        return found
    finally:
        consumer.close()


def close() -> None:
    """Ends the JVM, if there is one."""
    if _process.cache_info().currsize:
        process = _process()
        _process.cache_clear()
        process.kill()


def _jvm() -> Any:
    return _process().jvm


@functools.cache
def _process() -> JavaProcess:
    """The JVM of all clients of this process."""
    return JavaProcess(class_path())


def _configs(bootstrap_servers: str, configs: Mapping[str, str]) -> Any:
    return _process().properties({"bootstrap.servers": bootstrap_servers, **configs})
