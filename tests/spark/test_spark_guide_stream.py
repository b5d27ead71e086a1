"""Spark's integration guide for Kafka, streaming queries: each option of the source, against real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.reading import Source, as_json
from tests.spark.topics import Record, Topics, numbered
from tests.support.supervised_cluster import RunningCluster
from tests.support.waiting import wait_until

FIRST_MS = 1_357_000_000_000
TOO_LATE = str(FIRST_MS + 3_600_000_000)
EARLIEST, LATEST = -2, -1
PATIENCE_SECONDS = 180.0


def text(numbers: range) -> list[str]:
    return sorted(str(number) for number in numbers)


@pytest.mark.parametrize("way", ["assign", "subscribe", "subscribePattern"])
def test_a_bounded_run_reads_all_there_is(way: str, topics: Topics, source: Source) -> None:
    stem = topics.name("wanted")
    first = topics.filled(numbered(0, 30, partitions=3), 3, name=f"{stem}.first")
    second = topics.filled(numbered(30, 40), name=f"{stem}.second")
    topics.filled(numbered(900, 910), name=f"un{stem}")
    wanted = {
        "assign": json.dumps({first: [0, 1, 2], second: [0]}),
        "subscribe": f"{first},{second}",
        "subscribePattern": f"{stem}\\..*",
    }
    found = source.stream_to_its_end({way: wanted[way], "startingOffsets": "earliest"})
    assert sorted(found.values()) == text(range(40))


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (lambda topic: {"startingOffsets": "earliest"}, 0),
        (lambda topic: {"startingOffsets": "latest"}, 20),
        (lambda topic: {}, 20),
        (lambda topic: {"startingOffsets": as_json(topic, 7)}, 7),
        (lambda topic: {"startingOffsets": as_json(topic, EARLIEST)}, 0),
        (lambda topic: {"startingOffsets": as_json(topic, LATEST)}, 20),
        (lambda topic: {"startingTimestamp": str(FIRST_MS + 12)}, 12),
        (lambda topic: {"startingOffsetsByTimestamp": as_json(topic, FIRST_MS + 15)}, 15),
        (lambda topic: {"startingTimestamp": TOO_LATE, "startingOffsetsByTimestampStrategy": "latest"}, 20),
    ],
    ids="earliest latest default number -2 -1 timestamp timestamps too-late".split(),
)
def test_a_new_query_starts_where_it_is_told(
    options: Callable[[str], dict[str, str]], first: int, topics: Topics, source: Source
) -> None:
    topic = topics.filled(Record(b"%d" % each, timestamp_ms=FIRST_MS + each) for each in range(20))
    with source.streaming({"subscribe": topic, **options(topic)}) as stream:
        assert sorted(stream.values_when_idle()) == text(range(first, 20))
        topics.produce(topic, numbered(20, 25))
        assert sorted(stream.values_when_idle()) == text(range(first, 25))


def test_a_start_later_than_all_records_fails_the_query(topics: Topics, source: Source) -> None:
    topic = topics.filled([Record(b"a", timestamp_ms=FIRST_MS)])
    with pytest.raises(Exception, match="No offset matched from request of topic-partition"):
        source.stream_to_its_end({"subscribe": topic, "startingTimestamp": TOO_LATE})


def test_a_query_goes_on_where_it_stopped(topics: Topics, source: Source, tmp_path: Path) -> None:
    topic = topics.filled(numbered(0, 20, partitions=2), 2)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert sorted(source.stream_to_its_end(options, tmp_path / "same").values()) == text(range(20))
    topics.produce(topic, numbered(20, 30, partitions=2))
    assert sorted(source.stream_to_its_end(options, tmp_path / "same").values()) == text(range(20, 30))


def test_batches_are_no_larger_than_the_most_offsets_per_trigger(topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 90, partitions=3), 3)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    found = source.stream_to_its_end(options)
    assert sorted(found.values()) == text(range(90))
    assert found.batch_sizes() == [30, 30, 30]


def test_a_batch_waits_for_the_least_offsets_per_trigger(topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 5))
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "50",
        "maxTriggerDelay": "1h",
    }
    with source.streaming(options) as stream:
        # The first batch does not wait.
        assert sorted(stream.values_when_idle()) == text(range(5))
        topics.produce(topic, numbered(5, 15))
        assert sorted(stream.values_when_idle()) == text(range(5))
        topics.produce(topic, numbered(15, 65))
        assert sorted(stream.values_when_idle()) == text(range(65))
        assert stream.batch_sizes() == [5, 60]


def test_a_batch_waits_no_longer_than_the_longest_delay(topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 5))
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "50", "maxTriggerDelay": "1s"}
    with source.streaming(options) as stream:
        stream.values_when_idle()
        topics.produce(topic, numbered(5, 15))
        wait_until(lambda: len(stream.values()) == 15, "ten records are read after a second", PATIENCE_SECONDS)


def test_split_partitions_are_read_whole(topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 100))
    for option in ({"minPartitions": "5"}, {"maxRecordsPerPartition": "30"}):
        found = source.stream_to_its_end({"subscribe": topic, "startingOffsets": "earliest", **option})
        assert sorted(found.values()) == text(range(100))


def test_headers_come_with_a_stream(topics: Topics, source: Source, tmp_path: Path) -> None:
    topic = topics.filled([Record(b"a", headers=(("trace", b"\x01"), ("null", None)))])
    query = (
        source.stream({"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"})
        .selectExpr("transform(headers, header -> header.key || '=' || ifnull(hex(header.value), 'null')) AS headers")
        .writeStream.format("memory")
        .queryName("with_headers")
        .option("checkpointLocation", str(tmp_path / "headers"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert [row.headers for row in source.spark.table("with_headers").collect()] == [["trace=01", "null=null"]]


def test_records_that_are_gone_fail_a_stream_unless_loss_is_allowed(
    topics: Topics, source: Source, tmp_path: Path
) -> None:
    topic = topics.filled(numbered(0, 20))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    for checkpoint in ("strict", "lenient"):
        source.stream_to_its_end(options, tmp_path / checkpoint)
    topics.produce(topic, numbered(20, 40))
    topics.delete_records(topic, before=32)
    with pytest.raises(Exception, match="Some data may have been lost because they are not available in Kafka"):
        source.stream_to_its_end({**options, "failOnDataLoss": "true"}, tmp_path / "strict")
    found = source.stream_to_its_end({**options, "failOnDataLoss": "false"}, tmp_path / "lenient")
    assert sorted(found.values()) == text(range(32, 40))


def test_a_deleted_topic_fails_a_stream_unless_loss_is_allowed(topics: Topics, source: Source, tmp_path: Path) -> None:
    kept, topic = topics.filled(numbered(0, 10)), topics.filled(numbered(10, 30))
    options = {"subscribePattern": f"{kept}|{topic}", "startingOffsets": "earliest"}
    for checkpoint in ("strict", "lenient"):
        source.stream_to_its_end(options, tmp_path / checkpoint)
    topics.delete(topic)
    topics.produce(kept, numbered(40, 45))
    with pytest.raises(Exception, match="Some data may have been lost because they are not available in Kafka"):
        source.stream_to_its_end({**options, "failOnDataLoss": "true"}, tmp_path / "strict")
    found = source.stream_to_its_end({**options, "failOnDataLoss": "false"}, tmp_path / "lenient")
    assert sorted(found.values()) == text(range(40, 45))
    # A topic of the same name begins anew.
    topics.filled(numbered(50, 53), name=topic)
    found = source.stream_to_its_end({**options, "failOnDataLoss": "false"}, tmp_path / "lenient")
    assert sorted(found.values()) == text(range(50, 53))


def test_new_partitions_are_read_from_their_beginning(topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 10))
    with source.streaming({"subscribe": topic, "startingOffsets": "latest"}) as stream:
        assert stream.values_when_idle() == []
        topics.add_partitions(topic, 3)
        topics.produce(topic, numbered(10, 40, partitions=3))
        assert sorted(stream.values_when_idle()) == text(range(10, 40))


def test_new_topics_of_a_pattern_are_read_from_their_beginning(topics: Topics, source: Source) -> None:
    stem = topics.name("growing")
    topics.filled(numbered(0, 10), name=f"{stem}.1")
    with source.streaming({"subscribePattern": f"{stem}\\..*"}) as stream:
        assert stream.values_when_idle() == []
        topics.filled(numbered(10, 20, partitions=2), 2, name=f"{stem}.2")
        assert sorted(stream.values_when_idle()) == text(range(10, 20))


def test_offsets_are_asked_for_again_while_the_topic_is_not_there(topics: Topics, source: Source) -> None:
    topic = topics.name()
    options = {"subscribe": topic, "startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "100"}
    with pytest.raises(Exception, match="UnknownTopicOrPartitionException"):
        source.stream_to_its_end({**options, "fetchOffset.numRetries": "1"})
    with topics.created_soon(topic, partitions=2):
        found = source.stream_to_its_end({**options, "fetchOffset.numRetries": "300"})
    assert found.values() == []


@pytest.mark.parametrize("way", ["groupIdPrefix", "kafka.group.id"])
def test_the_group_is_named_as_asked(way: str, topics: Topics, source: Source, spark: Any) -> None:
    """Only a consumer that fetches offsets, as Spark 3 had it, is a member of a group that brokers know."""
    topic = topics.filled(numbered(0, 20, partitions=2), 2)
    group = topics.name("readers")
    setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark.conf.set(setting, "true")
    try:
        options = {"subscribe": topic, "startingOffsets": "earliest", way: group, "kafka.metadata.max.age.ms": "500"}
        with source.streaming(options) as stream:
            assert sorted(stream.values_when_idle()) == text(range(20))
            mine = {name: members for name, members in topics.groups().items() if name.startswith(group)}
            topics.add_partitions(topic, 4)
            topics.produce(topic, numbered(20, 40, partitions=4))
            wait_until(lambda: sorted(stream.values()) == text(range(40)), "new partitions are read", PATIENCE_SECONDS)
    finally:
        spark.conf.unset(setting)
    ((name, members),) = mine.items()
    assert (name == group) == (way == "kafka.group.id")
    assert len(members) == 1


def test_continuous_processing_reads_and_writes(topics: Topics, source: Source, tmp_path: Path) -> None:
    origin, target = topics.filled(numbered(0, 10)), topics.create()
    query = (
        source.stream({"subscribe": origin, "startingOffsets": "earliest"})
        .selectExpr("key", "concat('x', string(value)) AS value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", topics.bootstrap_servers)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "continuous"))
        .trigger(continuous="1 second")
        .start()
    )
    try:
        wait_until(lambda: len(topics.read(target)) == 10, "the first ten arrive", PATIENCE_SECONDS)
        topics.produce(origin, numbered(10, 15))
        wait_until(lambda: len(topics.read(target)) == 15, "five more arrive", PATIENCE_SECONDS)
    finally:
        query.stop()
    assert topics.values(target) == [f"x{each}" for each in range(15)]


def test_a_stream_outlives_the_kill_of_a_broker(
    topics: Topics, source: Source, cluster: RunningCluster, tmp_path: Path
) -> None:
    origin, target = topics.filled(numbered(0, 30, partitions=3), 3), topics.create(3)
    victim = topics.leader(origin)
    query = (
        source.stream({"subscribe": origin, "startingOffsets": "earliest"})
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", topics.bootstrap_servers)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "copied"))
        .start()
    )
    try:
        query.processAllAvailable()
        cluster.kill_broker(victim)
        topics.produce(origin, numbered(30, 60, partitions=3))
        query.processAllAvailable()
        cluster.start_broker(victim)
        topics.produce(origin, numbered(60, 90, partitions=3))
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(set(topics.values(target))) == text(range(90))
