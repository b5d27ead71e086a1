"""Options of a source and of a topic as Spark's tasks and Kafka's clients have them, and what the console shows. One
broker, whose batches and whose clients are looked at.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.progress import Progress, RunSummary, ShownRows
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from barnabas.pipelines.topic_options import SINK_OPTIONS, SOURCE_OPTIONS
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.messages import FetchRequest
from barnabas.wire.records import walk_batches
from tests.support.wire_calls import call, leader_port

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

ROWS = 40
FETCH_BYTES = 600
FILE = """\
name: copied
sources:
  numbers:
    topic: numbers
    schema: "n INT, text STRING"
    options:
      minPartitions: 4
      kafka.max.partition.fetch.bytes: {fetch_bytes}
      kafka.client.id: reader-of-options
sinks:
  - {{parquet: out, from: numbers}}
  - topic: copies
    from: numbers
    delivery: at_least_once
    options: {{kafka.compression.type: lz4, kafka.max.request.size: {request_bytes}, kafka.linger.ms: 50}}
  - {{console: 3, width: 8, from: numbers}}
"""


class Told:
    """What a run tells and shows, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def said(self, line: str) -> None: ...

    def batch(self, progress: Progress) -> None:
        self.events.append(progress.batch_id)

    def ended(self, summary: RunSummary) -> None: ...


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


def run(spark: Any, brokers: str, path: Path, **sizes: int) -> Told:
    path.write_text(FILE.format(**{"fetch_bytes": FETCH_BYTES, "request_bytes": 100_000, **sizes}))
    told = Told()
    options = RunOptions(brokers, once=True, show=told.events.append)
    run_pipeline_in(spark.newSession(), read_pipeline(path), options, told)
    return told


def compressions(brokers: str, topic: str) -> set[CompressionType]:
    """Of the batches of the topic's partition."""
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
    request = FetchRequest(replica_id=-1, max_wait_ms=1_000, min_bytes=1, max_bytes=1_000_000, topics=topics)
    answer = call(leader_port(int(brokers.rpartition(":")[2]), topic), ApiKey.FETCH, 10, request)
    records = bytes(answer.responses[0].partitions[0].records)
    return {batch_at(records, span).compression_type for span in walk_batches(records).spans}


def values_of(brokers: str, topic: str) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "none"})
    place = TopicPartition(topic, 0, 0)
    consumer.assign([place])
    end = consumer.get_watermark_offsets(place, timeout=60)[1]
    found = [message for message in consumer.consume(end, timeout=60) if message.error() is None]
    consumer.close()
    return [json.loads(message.value() or b"null") for message in found]


def fetched(spark: Any) -> tuple[float, float]:
    """Bytes and fetches of a consumer with the name of the options, by its own account."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    named = jvm.java.lang.Class.forName
    types, given = gateway.new_array(jvm.java.lang.Class, 2), gateway.new_array(jvm.java.lang.Object, 2)
    types[0], types[1] = named("javax.management.ObjectName"), named("java.lang.String")
    # By the interface: the class of the server is not for others.
    get = named("javax.management.MBeanServer").getMethod("getAttribute", types)
    name = "kafka.consumer:type=consumer-fetch-manager-metrics,client-id=reader-of-options"
    given[0] = jvm.javax.management.ObjectName(name)

    def total(attribute: str) -> float:
        given[1] = f"{attribute}-total"
        return float(get.invoke(server, given))

    return total("bytes-consumed"), total("fetch")


def test_options_are_in_force_and_the_first_rows_of_each_batch_are_shown(
    spark: Any, brokers: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in ("numbers", "copies")]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": brokers, "batch.num.messages": 1})
    for number in range(ROWS):
        producer.produce("numbers", json.dumps({"n": number, "text": f"the number {number}"}))
    assert producer.flush(60) == 0
    path = tmp_path / "copied.yaml"
    told = run(spark, brokers, path)

    # More tasks than the topic has partitions: each has written a file.
    (batch,) = (tmp_path / "out").glob("batch_id=*")
    assert len(list(batch.glob("*.parquet"))) >= 4
    # The consumer has the name of the options, and a fetch of it no more bytes than they say.
    size, count = fetched(spark)
    assert 0 < size / count <= FETCH_BYTES
    assert compressions(brokers, "copies") == {CompressionType.LZ4}
    assert sorted(each["n"] for each in values_of(brokers, "copies")) == list(range(ROWS))

    shown, number = told.events
    assert number == 0
    rows = (("0", "the num…"), ("1", "the num…"), ("2", "the num…"))
    assert shown == ShownRows("numbers", 0, ("n", "text"), rows, has_more=True, is_again=False)

    # A producer that is told to send less refuses; nothing is told of a batch that the others do not have.
    producer.produce("numbers", json.dumps({"n": ROWS, "text": "x" * 300}))
    assert producer.flush(60) == 0
    with pytest.raises(PipelineError, match=r"copied\.yaml:15: a row of numbers is larger than kafka\.max\.request"):
        run(spark, brokers, path, request_bytes=200)
    # It may have been shown, for all that the next run knows.
    (shown, number) = run(spark, brokers, path).events
    assert number == 1
    assert shown == ShownRows("numbers", 1, ("n", "text"), (("40", "xxxxxxx…"),), has_more=False, is_again=True)


def test_kafkas_clients_know_all_options_by_their_names(spark: Any) -> None:
    clients = spark._jvm.org.apache.kafka.clients
    for options, config in (
        (SOURCE_OPTIONS, clients.consumer.ConsumerConfig),
        (SINK_OPTIONS, clients.producer.ProducerConfig),
    ):
        known = {f"kafka.{name}" for name in config.configNames()}
        assert {name for name in options if name.startswith("kafka.")} - known == set()
