"""A pipeline with a topic on a real broker, and batches that are staged for it, for tests of the outbox."""

from __future__ import annotations

import zlib

import confluent_kafka

from barnabas.pipelines.definition import Pipeline, TopicSink
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_sender import QuerySender
from barnabas.pipelines.outbox_thread import OutboxSenders
from barnabas.pipelines.staged_batches import StagedBatch
from barnabas.pipelines.state_directory import BatchesDone
from barnabas.testing.kafka_cluster import KafkaCluster

VIEW = "by_day"
PARTITIONS = 3


def sink_of(topic: str, key: tuple[str, ...] = ("carrier",)) -> TopicSink:
    return TopicSink(topic, VIEW, line=30, from_line=31, key=key)


def outbox_of(
    pipeline: Pipeline, senders: OutboxSenders, begun: int = -1, finished: int = -1, count: int = 1
) -> Outbox:
    """`count` senders are to send what is staged from now on."""
    sinks = [sink for sink in pipeline.sinks if isinstance(sink, TopicSink)]
    outbox = Outbox(pipeline.state_directory / "outbox", "one", {}, senders.sender(VIEW, sinks), count)
    outbox.open(BatchesDone(begun, finished))
    return outbox


def staged(
    outbox: Outbox, batch_id: int, pipeline: Pipeline, values: list[bytes], *, keys: bool = True, count: int = 1
) -> StagedBatch:
    """The values for each topic of the pipeline, their keys being what is before their first blank; for so many
    senders.
    """
    sinks = [sink for sink in pipeline.sinks if isinstance(sink, TopicSink)]
    for number in range(len(sinks)):
        shares: dict[int, list[bytes]] = {}
        for value in values:
            key = value.split()[0] if value else b""
            shares.setdefault(zlib.crc32(key) % count + 1, []).extend((key, value) if keys else (value,))
        directory = outbox.staged.being_written(batch_id, number)
        for sender, lines in shares.items() or [(1, [])]:
            place = directory / f"sender={sender}" if count > 1 else directory
            place.mkdir(parents=True)
            (place / "part-0").write_bytes(b"".join(line + b"\n" for line in lines))
    return outbox.staged.publish(batch_id, [(sink.topic, keys) for sink in sinks])


def values_of(batch_id: int, count: int = 30) -> list[bytes]:
    return [b"key-%d value of batch %d" % (number, batch_id) for number in range(count)]


def committed(cluster: KafkaCluster, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """(partition, key, value) of each record that readers of committed records are given."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.partition.eof": True}
    )
    found: list[tuple[int, bytes | None, bytes | None]] = []
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "no end within 30 s: a transaction is open"
        if message.error() is None:
            found.append((message.partition() or 0, message.key(), message.value()))
        else:
            ends += 1
    consumer.close()
    return found


async def forgotten(sender: QuerySender) -> None:
    """As after a failure whose abort was not answered."""
    if sender._producer is not None:
        await sender._producer.close()
    sender._producer = None
