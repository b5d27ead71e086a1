"""librdkafka by confluent-kafka."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.clients.drivers.model import Capability, Fenced, Place, Record
from tests.support.waiting import wait_until

TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.1


class ConfluentMember:
    """A group member on a thread of its own."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "enable.auto.commit": False,
            }
        )
        self._assigned: frozenset[int] = frozenset()
        self._received: list[tuple[Place, bytes | None]] = []
        self._closing = threading.Event()
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def assigned(self) -> frozenset[int]:
        return self._assigned

    def received(self) -> list[tuple[Place, bytes | None]]:
        return list(self._received)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(TIMEOUT_SECONDS)

    def _poll(self) -> None:
        while not self._closing.is_set():
            message = self._consumer.poll(POLL_SECONDS)
            self._assigned = frozenset(each.partition for each in self._consumer.assignment())
            if message is not None and message.error() is None:
                self._received.append((Place(message.partition(), message.offset()), message.value()))
                self._consumer.commit(message, asynchronous=False)
        self._consumer.close()


class ConfluentTransactions:
    """A producer with a transactional id."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, timeout_ms: int) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
            }
        )
        self.producer.init_transactions(TIMEOUT_SECONDS)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=partition)
        left = self.producer.flush(TIMEOUT_SECONDS)
        assert not left, f"{left} records were not acknowledged"

    def commit(self) -> None:
        try:
            self.producer.commit_transaction(TIMEOUT_SECONDS)
        except KafkaException as raised:
            if raised.args[0].code() == KafkaError._FENCED:
                raise Fenced from raised
            raise

    def abort(self) -> None:
        self.producer.abort_transaction(TIMEOUT_SECONDS)

    def close(self) -> None:
        """The producer ends with the object."""


class ConfluentClient:
    """confluent-kafka's producer, consumer and admin client."""

    name: ClassVar[str] = "confluent-kafka"
    missing: ClassVar[Mapping[Capability, str]] = {}

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        failures: list[KafkaError] = []
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "compression.type": compression,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        for record in records:
            options: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                headers=list(record.headers),
                on_delivery=lambda error, _message: failures.append(error) if error else None,
                **options,
            )
        left = producer.flush(TIMEOUT_SECONDS)
        assert not left, f"{left} records were not acknowledged"
        assert not failures, failures[0]

    def read(self, topic: str, count: int, *, partition: int = 0) -> list[Record]:
        consumer = self._reader(**{"enable.partition.eof": True})
        records: list[Record] = []
        try:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            while len(records) < count:
                message = consumer.poll(TIMEOUT_SECONDS)
                assert message is not None, f"nothing came after {len(records)} records"
                error = message.error()
                if error is None:
                    headers = tuple((key, value) for key, value in message.headers() or ())
                    records.append(Record(message.value(), message.key(), headers, message.timestamp()[1], partition))
                elif error.code() == KafkaError._PARTITION_EOF:
                    break
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return records

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        consumer = self._reader()
        try:
            asked = TopicPartition(topic, partition, timestamp_ms)
            (found,) = consumer.offsets_for_times([asked], timeout=TIMEOUT_SECONDS)
            if found.error:
                raise KafkaException(found.error)
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_SECONDS)
            return int(found.offset) if 0 <= found.offset < end else None
        finally:
            consumer.close()

    def join(self, topic: str, group: str) -> ConfluentMember:
        return ConfluentMember(self._bootstrap_servers, topic, group)

    def transactional(self, transactional_id: str, timeout_ms: int = 60_000) -> ConfluentTransactions:
        return ConfluentTransactions(self._bootstrap_servers, transactional_id, timeout_ms)

    def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        # librdkafka's consumers read committed records, if not told otherwise; the end is the last stable offset.
        return [record.value or b"" for record in self.read(topic, sys.maxsize, partition=partition)]

    def copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        writer = self.transactional(transactional_id)
        consumer = self._reader(**{"group.id": group, "auto.offset.reset": "earliest"})
        place, number = TopicPartition(source, 0), 0
        consumer.subscribe([source])
        try:
            while place.offset < count:
                polled = consumer.consume(5, TIMEOUT_SECONDS)
                writer.begin()
                writer.send(target, [message.value() or b"" for message in polled])
                next_place = TopicPartition(source, 0, polled[-1].offset() + 1)
                writer.producer.send_offsets_to_transaction(
                    [next_place], consumer.consumer_group_metadata(), TIMEOUT_SECONDS
                )
                number += 1
                if number % 3:
                    writer.commit()
                    place = next_place
                else:
                    writer.abort()
                    consumer.seek(TopicPartition(source, 0, max(0, place.offset)))
        finally:
            consumer.close()

    def administer(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap_servers})
        _finish(admin.create_topics([NewTopic(topic, 2, 3)]))
        wait_until(lambda: self._partitions(admin, topic) == 2, f"{topic} is listed", TIMEOUT_SECONDS)
        entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _finish(admin.incremental_alter_configs([resource]))
        (described,) = _finish(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        wait_until(
            lambda: (
                _finish(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))[0]["retention.ms"].value
                == "86400000"
            ),
            "retention.ms is set",
            TIMEOUT_SECONDS,
        )
        assert described["min.insync.replicas"].value == "1"
        _finish(admin.create_partitions([NewPartitions(topic, 3)]))
        wait_until(lambda: self._partitions(admin, topic) == 3, f"{topic} has 3 partitions", TIMEOUT_SECONDS)
        assert not admin.list_consumer_groups().result(TIMEOUT_SECONDS).errors
        _finish(admin.delete_topics([topic], operation_timeout=TIMEOUT_SECONDS))
        wait_until(lambda: not self._partitions(admin, topic), f"{topic} is gone", TIMEOUT_SECONDS)

    def _reader(self, **options: object) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 2_000_000,
                **options,
            }
        )

    @staticmethod
    def _partitions(admin: AdminClient, topic: str) -> int:
        found = admin.list_topics(timeout=TIMEOUT_SECONDS).topics.get(topic)
        return 0 if found is None or found.error is not None else len(found.partitions)


def _finish(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(TIMEOUT_SECONDS) for future in futures.values()]
