"""Spark's integration guide for Kafka, writing: each option and column of the sink, against real brokers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.compression_types import CompressionType
from tests.spark.reading import Source
from tests.spark.topics import Record, Topics, numbered
from tests.support.supervised_cluster import RunningCluster


class Sink:
    """Spark's Kafka sink on one cluster."""

    def __init__(self, spark: Any, bootstrap_servers: str) -> None:
        self._spark = spark
        self._bootstrap_servers = bootstrap_servers

    def write(self, rows: str, **options: str) -> None:
        """Writes what a SELECT gives, as a batch; a double underscore in the name of an option is a dot."""
        named = {name.replace("__", "."): value for name, value in options.items()}
        writer = self._spark.sql(rows).write.format("kafka")
        writer.option("kafka.bootstrap.servers", self._bootstrap_servers).options(**named).save()


@pytest.fixture
def sink(spark: Any, cluster: RunningCluster) -> Sink:
    return Sink(spark, cluster.bootstrap_servers)


def test_keys_and_values_arrive_as_they_are(topics: Topics, sink: Sink) -> None:
    topic = topics.create()
    sink.write("SELECT 'a key' AS key, 'a value' AS value", topic=topic)
    sink.write("SELECT X'0001' AS key, X'FF' AS value", topic=topic)
    sink.write("SELECT string(NULL) AS key, 'no key' AS value", topic=topic)
    sink.write("SELECT 'no column for it' AS value", topic=topic)
    sink.write("SELECT 'a tombstone' AS key, string(NULL) AS value", topic=topic)
    assert topics.read(topic) == [
        Record(b"a value", b"a key"),
        Record(b"\xff", b"\x00\x01"),
        Record(b"no key", None),
        Record(b"no column for it", None),
        Record(None, b"a tombstone"),
    ]


def test_each_row_goes_to_the_topic_of_its_column(topics: Topics, sink: Sink) -> None:
    even, odd = topics.create(), topics.create()
    sink.write(f"SELECT IF(id % 2 = 0, '{even}', '{odd}') AS topic, string(id) AS value FROM range(10)")
    assert sorted(topics.values(even)) == list("02468")
    assert sorted(topics.values(odd)) == list("13579")


def test_the_option_wins_over_the_column(topics: Topics, sink: Sink) -> None:
    column, option = topics.create(), topics.create()
    sink.write(f"SELECT '{column}' AS topic, string(id) AS value FROM range(10)", topic=option)
    assert topics.values(column) == []
    assert sorted(topics.values(option)) == list("0123456789")


def test_the_partition_is_that_of_its_column(topics: Topics, sink: Sink) -> None:
    topic = topics.create(3)
    sink.write("SELECT int((id + 1) % 3) AS partition, string(id) AS value FROM range(9)", topic=topic)
    assert sorted((record.partition, record.value) for record in topics.read(topic)) == sorted(
        ((each + 1) % 3, b"%d" % each) for each in range(9)
    )


def test_without_a_partition_the_key_decides(topics: Topics, sink: Sink) -> None:
    topic = topics.create(3)
    for _ in range(2):
        rows = "SELECT int(NULL) AS partition, string(id) AS key, 'same' AS value FROM range(30)"
        sink.write(rows, topic=topic)
    places = Counter((record.key, record.partition) for record in topics.read(topic))
    assert len(places) == 30
    assert set(places.values()) == {2}
    assert {partition for _, partition in places} == {0, 1, 2}


def test_a_partitioner_can_be_named(topics: Topics, sink: Sink) -> None:
    topic = topics.create(3)
    partitioner = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
    sink.write(
        "SELECT 'one' AS key, string(id) AS value FROM range(30)", topic=topic, kafka__partitioner__class=partitioner
    )
    found = topics.read(topic)
    assert len(found) == 30
    # The key alone would have put them all into one.
    assert len({record.partition for record in found}) > 1


def test_headers_are_written(topics: Topics, sink: Sink) -> None:
    topic = topics.create()
    headers = "array(struct('trace' AS key, X'0001' AS value), struct('null' AS key, binary(NULL) AS value))"
    sink.write(f"SELECT 'a' AS value, {headers} AS headers", topic=topic, includeHeaders="true")
    assert topics.read(topic) == [Record(b"a", headers=(("trace", b"\x00\x01"), ("null", None)))]


@pytest.mark.parametrize("compression", list(CompressionType))
def test_batches_are_compressed_as_asked(
    compression: CompressionType, topics: Topics, source: Source, sink: Sink
) -> None:
    topic = topics.create()
    rows = "SELECT concat('a long text that compresses well ', id) AS value FROM range(0, 500, 1, 1)"
    sink.write(rows, topic=topic, kafka__compression__type=compression.name.lower(), kafka__linger__ms="100")
    assert topics.compressions(topic) == {compression}
    assert sorted(source.values({"subscribe": topic})) == sorted(
        f"a long text that compresses well {each}" for each in range(500)
    )


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_any_acknowledgement_can_be_asked_for(acks: str, topics: Topics, sink: Sink) -> None:
    topic = topics.create()
    sink.write(
        "SELECT string(id) AS value FROM range(50)",
        topic=topic,
        kafka__acks=acks,
        kafka__enable__idempotence=str(acks == "all").lower(),
    )
    assert len(topics.values(topic)) == 50


def test_a_topic_that_does_not_exist_fails_the_write(topics: Topics, sink: Sink) -> None:
    with pytest.raises(Exception, match="not present in metadata"):
        sink.write("SELECT 'a' AS value", topic=topics.name("missing"), kafka__max__block__ms="2000")


def test_a_record_that_is_too_large_fails_the_write(topics: Topics, sink: Sink) -> None:
    topic = topics.create(max_message_bytes="10000")
    with pytest.raises(Exception, match="RecordTooLargeException"):
        sink.write("SELECT repeat('x', 20000) AS value", topic=topic)
    assert topics.values(topic) == []


def test_a_stream_writes_to_the_topics_of_its_rows_and_goes_on_later(
    topics: Topics, source: Source, tmp_path: Path
) -> None:
    origin = topics.filled(numbered(0, 20))
    even, odd = topics.create(), topics.create()

    def run() -> None:
        rows = source.stream({"subscribe": origin, "startingOffsets": "earliest"}).selectExpr(
            "key", "value", f"IF(int(string(value)) % 2 = 0, '{even}', '{odd}') AS topic"
        )
        query = (
            rows.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", topics.bootstrap_servers)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run()
    topics.produce(origin, numbered(20, 30))
    run()
    assert sorted(map(int, topics.values(even))) == [*range(0, 30, 2)]
    assert sorted(map(int, topics.values(odd))) == [*range(1, 30, 2)]
