"""Options of a topic that is written exactly once, as they are seen at a real broker."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from barnabas.pipelines.definition import Option, Pipeline, PipelineError
from barnabas.pipelines.outbox_thread import sending
from barnabas.testing.kafka_cluster import KafkaCluster
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.messages import FetchRequest
from barnabas.wire.records import walk_batches
from tests.support.wire_calls import call, leader_port
from tests.unit.pipelines.made_pipelines import made_pipeline
from tests.unit.pipelines.outbox_cluster import PARTITIONS, committed, outbox_of, sink_of, staged

VALUES = [b"key-%d " % (number % 7) + b"the same again and again " * 20 for number in range(60)]
LARGE = b"key-1 " + b"x" * 3_000


def pipeline_of(directory: Path, topic: str, **options: str) -> Pipeline:
    given = tuple(Option(f"kafka.{name.replace('_', '.')}", value, 33) for name, value in options.items())
    return made_pipeline(directory, name=topic, sinks=(dataclasses.replace(sink_of(topic), options=given),))


def batches_of(cluster: KafkaCluster, topic: str) -> list[tuple[CompressionType, int, int]]:
    """Compression, bytes and number of records of each batch of records, as the brokers have them."""
    found = []
    port = int(cluster.bootstrap_servers.split(",")[0].rpartition(":")[2])
    for number in range(PARTITIONS):
        partition = FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1_000_000)
        topics = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
        request = FetchRequest(replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=1_000_000, topics=topics)
        answer = call(leader_port(port, topic, number), ApiKey.FETCH, 10, request)
        records = bytes(answer.responses[0].partitions[0].records or b"")
        for span in walk_batches(records).spans:
            batch = batch_at(records, span)
            if not batch.is_control:
                found.append((batch.compression_type, span.size_bytes, len(list(batch.records()))))
    return found


def delivered(directory: Path, cluster: KafkaCluster, pipeline: Pipeline, values: list[bytes]) -> None:
    with sending(pipeline, "one", cluster.bootstrap_servers, threading.Event()) as senders:
        outbox = outbox_of(pipeline, senders)
        outbox.deliver(staged(outbox, 0, pipeline, values))


@pytest.mark.parametrize("codec", [kind for kind in CompressionType if kind])
def test_batches_have_the_compression_of_the_options(
    cluster: KafkaCluster, topic: str, tmp_path: Path, codec: CompressionType
) -> None:
    delivered(tmp_path, cluster, pipeline_of(tmp_path, topic, compression_type=codec.name.lower()), VALUES)
    found = batches_of(cluster, topic)
    assert {kind for kind, _, _ in found} == {codec}
    assert sum(count for _, _, count in found) == len(VALUES)
    assert sum(size for _, size, _ in found) < sum(map(len, VALUES)) / 4
    assert sorted(value or b"" for _, _, value in committed(cluster, topic)) == sorted(VALUES)


def test_batches_are_no_larger_than_the_options_say(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    delivered(tmp_path, cluster, pipeline_of(tmp_path, topic, batch_size="2000"), VALUES)
    found = batches_of(cluster, topic)
    assert max(size for _, size, _ in found) <= 2_000
    assert sum(count for _, _, count in found) == len(VALUES)
    assert len(found) >= len(VALUES) * len(VALUES[0]) // 2_000
    assert {kind for kind, _, _ in found} == {CompressionType.NONE}


def test_a_row_that_is_larger_than_the_options_allow_is_told_and_nothing_of_its_batch_is_there(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    bounded = pipeline_of(tmp_path, topic, max_request_size="2500")
    with pytest.raises(PipelineError, match=r"delays\.yaml:30: a row for topic \S+ is larger than kafka\.max\.request"):
        delivered(tmp_path, cluster, bounded, [*VALUES, LARGE])
    assert committed(cluster, topic) == []
    # What is staged is sent once the options allow it.
    delivered(tmp_path, cluster, pipeline_of(tmp_path, topic, max_request_size="4000"), [*VALUES, LARGE])
    assert len(committed(cluster, topic)) == len(VALUES) + 1
