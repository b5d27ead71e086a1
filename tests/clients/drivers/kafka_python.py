"""kafka-python: a client in pure Python."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import InvalidProducerEpochError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from tests.clients.drivers.model import Capability, Fenced, Place, Record
from tests.support.waiting import wait_until

TIMEOUT_SECONDS = 30.0
POLL_MS = 3_000
"""A poll whose time is up between SyncGroup and its answer loses the assignment: the member takes itself for joined,
has no partitions and sends no heartbeats (kafka-python 3.0). So as few polls as possible end without records."""


class KafkaPythonMember(ConsumerRebalanceListener):  # type: ignore[misc]
    """A group member on a thread of its own."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self._assigned: frozenset[int] = frozenset()
        self._received: list[tuple[Place, bytes | None]] = []
        self._closing = threading.Event()
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            # Its leader may assign before it knows the topic, and then looks again only when metadata are old.
            metadata_max_age_ms=2_000,
        )
        self._consumer.subscribe([topic], listener=self)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def assigned(self) -> frozenset[int]:
        return self._assigned

    def received(self) -> list[tuple[Place, bytes | None]]:
        return list(self._received)

    def on_partitions_assigned(self, assigned: set[Any]) -> None:
        self._assigned |= {each.partition for each in assigned}

    def on_partitions_revoked(self, revoked: set[Any]) -> None:
        self._assigned -= {each.partition for each in revoked}

    def close(self) -> None:
        self._closing.set()
        self._thread.join(TIMEOUT_SECONDS)

    def _poll(self) -> None:
        while not self._closing.is_set():
            polled = self._consumer.poll(timeout_ms=POLL_MS)
            for records in polled.values():
                self._received += [(Place(record.partition, record.offset), record.value) for record in records]
            if polled:
                self._consumer.commit()
        self._consumer.close()


class KafkaPythonTransactions:
    """A producer with a transactional id."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, timeout_ms: int) -> None:
        self.producer: Any = KafkaProducer(
            bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        for sent in [self.producer.send(topic, value, partition=partition) for value in values]:
            sent.get(TIMEOUT_SECONDS)

    def commit(self) -> None:
        try:
            self.producer.commit_transaction()
        except (ProducerFencedError, InvalidProducerEpochError) as raised:
            raise Fenced from raised

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=0)


class KafkaPythonClient:
    """kafka-python's producer, consumer and admin client."""

    name: ClassVar[str] = "kafka-python"
    missing: ClassVar[Mapping[Capability, str]] = {}

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        producer: Any = KafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            acks="all",
            compression_type=None if compression == "none" else compression,
            max_request_size=2_000_000,
            linger_ms=5,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            for future in sent:
                future.get(TIMEOUT_SECONDS)
        finally:
            producer.close(TIMEOUT_SECONDS)

    def read(self, topic: str, count: int, *, partition: int = 0, **configs: Any) -> list[Record]:
        consumer = self._reader(**configs)
        place = TopicPartition(topic, partition)
        records: list[Record] = []
        try:
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            end = consumer.end_offsets([place])[place]
            while len(records) < count and consumer.position(place) < end:
                for record in consumer.poll(timeout_ms=1_000).get(place, ()):
                    headers = tuple((key, value) for key, value in record.headers)
                    records.append(Record(record.value, record.key, headers, record.timestamp, partition))
        finally:
            consumer.close()
        return records[:count]

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        consumer = self._reader()
        place = TopicPartition(topic, partition)
        try:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()

    def join(self, topic: str, group: str) -> KafkaPythonMember:
        return KafkaPythonMember(self._bootstrap_servers, topic, group)

    def transactional(self, transactional_id: str, timeout_ms: int = 60_000) -> KafkaPythonTransactions:
        return KafkaPythonTransactions(self._bootstrap_servers, transactional_id, timeout_ms)

    def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        read = self.read(topic, sys.maxsize, partition=partition, isolation_level="read_committed")
        return [record.value or b"" for record in read]

    def copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        writer = self.transactional(transactional_id)
        consumer = self._reader(group_id=group, max_poll_records=5)
        place, committed, number = TopicPartition(source, 0), 0, 0
        consumer.subscribe([source])
        try:
            while committed < count:
                records = consumer.poll(timeout_ms=POLL_MS).get(place)
                if not records:
                    continue
                writer.begin()
                writer.send(target, [record.value for record in records])
                after = records[-1].offset + 1
                writer.producer.send_offsets_to_transaction(
                    {place: OffsetAndMetadata(after, "", -1)}, consumer.group_metadata()
                )
                number += 1
                if number % 3:
                    writer.commit()
                    committed = after
                else:
                    writer.abort()
                    consumer.seek(place, committed)
        finally:
            consumer.close()
            writer.close()

    def administer(self, topic: str) -> None:
        admin: Any = KafkaAdminClient(bootstrap_servers=self._bootstrap_servers)
        try:
            admin.create_topics([NewTopic(topic, 2, 3)], timeout_ms=30_000)
            wait_until(lambda: self._partitions(admin, topic) == 2, f"{topic} is listed", TIMEOUT_SECONDS)
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "86400000"})
            admin.alter_configs([resource])
            wait_until(
                lambda: "86400000" in str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])),
                "retention.ms is set",
                TIMEOUT_SECONDS,
            )
            admin.create_partitions({topic: NewPartitions(3)})
            wait_until(lambda: self._partitions(admin, topic) == 3, f"{topic} has 3 partitions", TIMEOUT_SECONDS)
            assert admin.list_groups() is not None
            admin.delete_topics([topic], timeout_ms=30_000)
            wait_until(lambda: not self._partitions(admin, topic), f"{topic} is gone", TIMEOUT_SECONDS)
        finally:
            admin.close()

    def _reader(self, **configs: Any) -> Any:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=2_000_000,
            **configs,
        )

    @staticmethod
    def _partitions(admin: Any, topic: str) -> int:
        for found in admin.describe_topics():
            if found["name"] == topic and not found["error_code"]:
                return len(found["partitions"])
        return 0
