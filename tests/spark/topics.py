"""What is done to topics beside Spark: made, filled, cut short, read back, by confluent-kafka and by plain requests."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.messages import FetchRequest
from barnabas.wire.records import walk_batches
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, leader_port, leaders, metadata

PATIENCE_SECONDS = 120.0
REPLICAS = 3
_FETCH_VERSION = 10
# What a broker that is away says is no news here.
_QUIET = {"log_level": 2}


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it is given to a topic, or read from it. `timestamp_ms` 0 is now; it is not read back."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Topics:
    """The topics of one cluster. Every call returns when it is done, and raises what went wrong."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._ports = [int(address.rpartition(":")[2]) for address in bootstrap_servers.split(",")]
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET})
        self._numbers = itertools.count(1)

    def name(self, stem: str = "topic") -> str:
        """A name that no topic has."""
        return f"{stem}-{next(self._numbers)}"

    def create(self, partitions: int = 1, *, name: str | None = None, **configs: str) -> str:
        """A topic on all brokers that keeps records of any age; dots in names of `configs` are underscores."""
        topic = name or self.name()
        wanted = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in configs.items()}}
        (made,) = self._admin.create_topics([NewTopic(topic, partitions, REPLICAS, config=wanted)]).values()
        made.result(PATIENCE_SECONDS)
        self._wait_for_leaders(topic, partitions)
        return topic

    @contextlib.contextmanager
    def created_soon(self, name: str, partitions: int) -> Iterator[None]:
        """Creates the topic while the block runs, a second after its beginning."""
        timer = threading.Timer(1.0, self.create, args=(partitions,), kwargs={"name": name})
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def filled(self, records: Iterable[Record], partitions: int = 1, *, name: str | None = None, **configs: str) -> str:
        """A new topic with these records in it."""
        topic = self.create(partitions, name=name, **configs)
        self.produce(topic, records)
        return topic

    def produce(self, topic: str, records: Iterable[Record]) -> None:
        """Returns when every in-sync replica has them."""
        failures: list[str] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(str(error))

        # One that had asked before may not know of new partitions yet.
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True, **_QUIET})
        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        assert producer.flush(PATIENCE_SECONDS) == 0, f"records for {topic} are not acknowledged"
        assert not failures, failures[:5]

    def add_partitions(self, topic: str, total: int) -> None:
        (done,) = self._admin.create_partitions([NewPartitions(topic, total)]).values()
        done.result(PATIENCE_SECONDS)
        self._wait_for_leaders(topic, total)

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> None:
        """DeleteRecords: the log begins at offset `before` then."""
        wanted = TopicPartition(topic, partition, before)
        (done,) = self._admin.delete_records([wanted], request_timeout=PATIENCE_SECONDS).values()
        assert done.result(PATIENCE_SECONDS).low_watermark == before

    def delete(self, topic: str) -> None:
        """Returns when no broker knows it any more."""
        (done,) = self._admin.delete_topics([topic]).values()
        done.result(PATIENCE_SECONDS)
        for port in self._ports:
            wait_until(lambda: not leaders(port, topic), f"port {port} has forgotten {topic}", PATIENCE_SECONDS)  # noqa: B023

    def read(self, topic: str) -> list[Record]:
        """All records of all partitions, by partition and offset."""
        (description,) = metadata(self._ports[0], [topic]).topics
        partitions = range(len(description.partitions))
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                **_QUIET,
            }
        )
        found: list[Record] = []
        unread = set(partitions)
        try:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            while unread:
                message = consumer.poll(PATIENCE_SECONDS)
                assert message is not None, f"partitions {unread} of {topic} gave nothing for {PATIENCE_SECONDS} s"
                error = message.error()
                if error is None:
                    found.append(_record_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition() or 0)
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return sorted(found, key=lambda record: record.partition)

    def values(self, topic: str) -> list[str]:
        """The values of all records, as text."""
        return [(record.value or b"").decode() for record in self.read(topic)]

    def compressions(self, topic: str) -> set[CompressionType]:
        """How the batches of partition 0 are compressed at its leader."""
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=1_000,
            min_bytes=1,
            max_bytes=1_000_000,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        )
        answer = call(leader_port(self._ports[0], topic), ApiKey.FETCH, _FETCH_VERSION, request)
        records = bytes(answer.responses[0].partitions[0].records)
        return {batch_at(records, span).compression_type for span in walk_batches(records).spans}

    def groups(self) -> Mapping[str, Sequence[str]]:
        """The names of all groups, and the client ids of their members."""
        listed = self._admin.list_consumer_groups(request_timeout=PATIENCE_SECONDS).result(PATIENCE_SECONDS).valid
        names = [group.group_id for group in listed]
        if not names:
            return {}
        described = self._admin.describe_consumer_groups(names, request_timeout=PATIENCE_SECONDS)
        return {
            name: [member.client_id for member in future.result(PATIENCE_SECONDS).members]
            for name, future in described.items()
        }

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads the partition."""
        return leaders(self._ports[0], topic)[partition]

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        for port in self._ports:
            wait_until(lambda: len(leaders(port, topic)) == partitions, f"port {port} knows {topic}", PATIENCE_SECONDS)  # noqa: B023


def numbered(first: int, last: int, *, partitions: int = 1) -> list[Record]:
    """Records with the values `first` to `last` - 1 as text and key, in turn over the partitions."""
    return [Record(b"%d" % number, b"%d" % number, number % partitions) for number in range(first, last)]


def _record_of(message: Message) -> Record:
    return Record(message.value(), message.key(), message.partition() or 0, headers=tuple(message.headers() or ()))
