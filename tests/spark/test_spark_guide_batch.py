"""Spark's integration guide for Kafka, batch queries: each option of the source, against real brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.spark.reading import Source, as_json
from tests.spark.topics import Record, Topics, numbered

# The times of the records that the options by timestamp are tried with, far from now.
HOUR_MS = 3_600_000
FIRST_MS = 1_357_000_000_000
MUCH_LATER_MS = FIRST_MS + 1_000 * HOUR_MS
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
CREATE_TIME = 0
LOG_APPEND_TIME = 1


@pytest.fixture(scope="module")
def hourly(topics: Topics) -> str:
    """Two partitions: 0 has one record an hour, a to e; 1 has one, f, at the last of these hours."""
    records = [Record(letter.encode(), timestamp_ms=FIRST_MS + at * HOUR_MS) for at, letter in enumerate("abcde")]
    return topics.filled([*records, Record(b"f", partition=1, timestamp_ms=FIRST_MS + 4 * HOUR_MS)], 2)


@pytest.mark.parametrize("way", ["assign", "subscribe", "subscribePattern"])
def test_reads_what_was_asked_for_and_no_other_topic(way: str, topics: Topics, source: Source) -> None:
    stem = topics.name("wanted")
    first = topics.filled(numbered(0, 30, partitions=3), 3, name=f"{stem}.first")
    second = topics.filled(numbered(30, 40), name=f"{stem}.second")
    topics.filled(numbered(900, 910), name=f"un{stem}")
    wanted = {
        "assign": json.dumps({first: [0, 2], second: [0]}),
        "subscribe": f"{first},{second}",
        "subscribePattern": f"{stem}\\..*",
    }
    expected = {record.value for record in numbered(0, 30, partitions=3) if way != "assign" or record.partition != 1}
    expected |= {record.value for record in numbered(30, 40)}
    found = source.values({way: wanted[way]})
    assert sorted(found) == sorted((value or b"").decode() for value in expected)


def test_rows_have_the_columns_of_the_guide(topics: Topics, source: Source) -> None:
    records = [
        Record(b"value", b"key", timestamp_ms=FIRST_MS),
        Record(None, b"key", timestamp_ms=FIRST_MS + 1),
        Record(b"", None, timestamp_ms=FIRST_MS + 2),
    ]
    topic = topics.filled(records)
    frame = source.batch({"subscribe": topic})
    assert dict(frame.dtypes) == COLUMNS
    rows = frame.selectExpr("key", "value", "partition", "offset", "unix_millis(timestamp)", "timestampType").collect()
    assert [tuple(row) for row in sorted(rows, key=lambda row: row.offset)] == [
        (bytearray(b"key"), bytearray(b"value"), 0, 0, FIRST_MS, CREATE_TIME),
        (bytearray(b"key"), None, 0, 1, FIRST_MS + 1, CREATE_TIME),
        (None, bytearray(b""), 0, 2, FIRST_MS + 2, CREATE_TIME),
    ]


def test_the_time_is_the_brokers_where_the_topic_says_so(topics: Topics, source: Source) -> None:
    topic = topics.filled([Record(b"a", timestamp_ms=FIRST_MS)], message_timestamp_type="LogAppendTime")
    ((kind, is_recent),) = (
        source.batch({"subscribe": topic})
        .selectExpr("timestampType", "abs(unix_millis(timestamp) - unix_millis(now())) < 600000")
        .collect()
    )
    assert (kind, is_recent) == (LOG_APPEND_TIME, True)


@pytest.mark.parametrize("include", ["true", "false"])
def test_headers_are_there_when_they_are_asked_for(include: str, topics: Topics, source: Source) -> None:
    headers = (("trace", b"\x00\x01"), ("trace", b"again"), ("empty", b""), ("null", None))
    topic = topics.filled([Record(b"with", headers=headers), Record(b"without")])
    frame = source.batch({"subscribe": topic, "includeHeaders": include})
    if include == "false":
        assert "headers" not in frame.columns
        return
    found = {bytes(row.value): row.headers for row in frame.collect()}
    assert [(header.key, header.value) for header in found[b"with"]] == list(headers)
    assert not found[b"without"]


def test_offsets_of_each_partition_begin_and_end_a_batch(topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 30, partitions=3), 3)
    earliest, latest = -2, -1
    options = {
        "subscribe": topic,
        "startingOffsets": as_json(topic, 4, earliest, 10),
        "endingOffsets": as_json(topic, 6, 2, latest),
    }
    assert source.values(options) == ["12", "15", "1", "4"]
    whole = {"subscribe": topic, "startingOffsets": "earliest", "endingOffsets": "latest"}
    assert source.values(whole) == source.values({"subscribe": topic})
    assert len(source.values(whole)) == 30


def test_one_timestamp_begins_and_ends_a_batch(hourly: str, source: Source) -> None:
    begin, end = FIRST_MS + HOUR_MS - 5, FIRST_MS + 3 * HOUR_MS
    options = {"subscribe": hourly, "startingTimestamp": str(begin)}
    assert source.values(options) == ["b", "c", "d", "e", "f"]
    assert source.values({**options, "endingTimestamp": str(end)}) == ["b", "c"]
    # Nothing is as late as that: the end of the partition it is.
    assert source.values({**options, "endingTimestamp": str(MUCH_LATER_MS)}) == ["b", "c", "d", "e", "f"]


def test_a_timestamp_of_each_partition_begins_and_ends_a_batch(hourly: str, source: Source) -> None:
    options = {
        "subscribe": hourly,
        "startingOffsetsByTimestamp": as_json(hourly, FIRST_MS + 2 * HOUR_MS, FIRST_MS),
        "endingOffsetsByTimestamp": as_json(hourly, FIRST_MS + 2 * HOUR_MS + 1, MUCH_LATER_MS),
    }
    assert source.values(options) == ["c", "f"]


def test_a_start_later_than_all_records_is_an_error_or_the_end(hourly: str, source: Source) -> None:
    options = {"subscribe": hourly, "startingTimestamp": str(MUCH_LATER_MS)}
    with pytest.raises(Exception, match="No offset matched from request of topic-partition"):
        source.values({**options, "startingOffsetsByTimestampStrategy": "error"})
    assert source.values({**options, "startingOffsetsByTimestampStrategy": "latest"}) == []


def test_records_that_are_gone_fail_a_batch_unless_loss_is_allowed(topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 20))
    topics.delete_records(topic, before=12)
    options = {"subscribe": topic, "startingOffsets": as_json(topic, 5)}
    with pytest.raises(Exception, match="Some data may have been lost because they are not available in Kafka"):
        source.values({**options, "failOnDataLoss": "true"})
    assert source.values({**options, "failOnDataLoss": "false"}) == [str(each) for each in range(12, 20)]
    assert source.values({"subscribe": topic}) == [str(each) for each in range(12, 20)]


@pytest.mark.parametrize(("option", "value"), [("minPartitions", "4"), ("maxRecordsPerPartition", "30")])
def test_a_large_partition_is_split_for_more_tasks(option: str, value: str, topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 100))
    options = {"subscribe": topic, "startingOffsets": as_json(topic, 0), "endingOffsets": as_json(topic, 100)}
    assert source.batch(options).rdd.getNumPartitions() == 1
    assert source.batch({**options, option: value}).rdd.getNumPartitions() == 4
    assert source.values({**options, option: value}) == [str(each) for each in range(100)]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_either_isolation_level_reads_what_no_transaction_wrote(level: str, topics: Topics, source: Source) -> None:
    topic = topics.filled(numbered(0, 20))
    options = {"subscribe": topic, "kafka.isolation.level": level, "startingTimestamp": "1"}
    assert source.values(options) == [str(each) for each in range(20)]


@pytest.mark.parametrize("way", ["assign", "subscribe", "subscribePattern"])
def test_offsets_can_be_fetched_by_a_consumer_as_spark_3_did(
    way: str, topics: Topics, source: Source, spark: Any
) -> None:
    name = topics.name("group")
    topic = topics.filled(numbered(0, 20, partitions=2), 2, name=name)
    wanted = {"assign": json.dumps({topic: [0, 1]}), "subscribe": topic, "subscribePattern": f"{name}.*"}
    setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark.conf.set(setting, "true")
    try:
        options = {way: wanted[way], "kafka.group.id": f"reader-of-{topic}"}
        assert len(source.values(options)) == 20
        by_time = {"startingTimestamp": str(FIRST_MS), "endingOffsets": as_json(topic, 3, -1)}
        assert len(source.values({**options, **by_time})) == 13
    finally:
        spark.conf.unset(setting)
