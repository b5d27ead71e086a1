"""Configs of topics and brokers act while the broker runs, and are there again after a restart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    DescribeConfigsRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from barnabas.wire.record_batch import ATTRIBUTE_COMPRESSION, ATTRIBUTE_LOG_APPEND_TIME
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, delete_topic

TOPIC = 2
BROKER = 4
SET = 0
EARLIEST = -2
ATTRIBUTES_AT = 22
OLD_MS = 1_000_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    overrides = {"log.retention.check.interval.ms": 200, "log.initial.task.delay.ms": 100}
    with broker_cluster(tmp_path_factory.mktemp("live-configs"), 1, overrides=overrides) as running:
        yield running


@pytest.fixture
def port(cluster: BrokerCluster) -> int:
    return cluster.brokers[1].port


def produce(port: int, topic: str, size_bytes: int = 10, timestamp_ms: int | None = None) -> str:
    """Sends one record; the name of the error, or NONE."""
    builder = RecordBatchBuilder()
    builder.append(int(time.time() * 1000) if timestamp_ms is None else timestamp_ms, b"k", b"v" * size_bytes)
    partition = ProduceRequest.PartitionProduceData
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition(index=0, records=builder.build())])
    answer = call(port, ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]))
    return ErrorCode.for_code(answer.responses[0].partition_responses[0].error_code).name


def last_attributes(port: int, topic: str) -> int:
    """The attributes of the batch that holds the last record."""
    offset = end_offset(port, topic) - 1
    partition = FetchRequest.FetchPartition
    asked = FetchRequest.FetchTopic(
        topic=topic, partitions=[partition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)]
    )
    answer = call(port, ApiKey.FETCH, 11, FetchRequest(max_bytes=1_000_000, max_wait_ms=0, min_bytes=1, topics=[asked]))
    records = bytes(answer.responses[0].partitions[0].records)
    return records[ATTRIBUTES_AT]


def offset_of(port: int, topic: str, timestamp: int) -> int:
    partition = ListOffsetsRequest.ListOffsetsPartition
    asked = ListOffsetsRequest.ListOffsetsTopic(
        name=topic, partitions=[partition(partition_index=0, timestamp=timestamp)]
    )
    answer = call(port, ApiKey.LIST_OFFSETS, 5, ListOffsetsRequest(replica_id=-1, topics=[asked]))
    return int(answer.topics[0].partitions[0].offset)


def end_offset(port: int, topic: str) -> int:
    return offset_of(port, topic, -1)


def change(port: int, resource_type: int, name: str, **configs: str) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=key.replace("_", "."), config_operation=SET, value=value
            )
            for key, value in configs.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = call(port, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert result.error_code == 0, result.error_message


def described(port: int, resource_type: int, name: str, key: str) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=[key]
    )
    (result,) = call(port, ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource])).results
    return result.configs[0].value


def test_configs_given_at_the_creation_hold_from_the_first_record_on(port: int) -> None:
    create_topic(port, "narrow", 1, 1, **{"max.message.bytes": "500", "message.timestamp.type": "LogAppendTime"})
    assert produce(port, "narrow", 1000) == "MESSAGE_TOO_LARGE"
    assert produce(port, "narrow") == "NONE"
    assert last_attributes(port, "narrow") & ATTRIBUTE_LOG_APPEND_TIME


def test_what_a_topic_takes_changes_while_it_is_used(port: int) -> None:
    create_topic(port, "changing", 1, 1)
    assert produce(port, "changing", 1000) == "NONE"
    change(port, TOPIC, "changing", max_message_bytes="500")
    wait_until(lambda: produce(port, "changing", 1000) == "MESSAGE_TOO_LARGE", "large records are refused")
    change(port, TOPIC, "changing", max_message_bytes="5000", compression_type="gzip")
    wait_until(lambda: produce(port, "changing", 1000) == "NONE", "large records are taken again")
    assert last_attributes(port, "changing") & ATTRIBUTE_COMPRESSION == CompressionType.GZIP
    assert produce(port, "changing", timestamp_ms=OLD_MS) == "NONE"
    change(port, TOPIC, "changing", message_timestamp_before_max_ms="60000")
    wait_until(lambda: produce(port, "changing", timestamp_ms=OLD_MS) == "INVALID_TIMESTAMP", "old records are refused")
    change(port, TOPIC, "changing", message_timestamp_type="LogAppendTime")
    wait_until(lambda: produce(port, "changing", timestamp_ms=OLD_MS) == "NONE", "the broker stamps the records")


def test_old_records_go_once_they_may(cluster: BrokerCluster, port: int) -> None:
    create_topic(port, "ageing", 1, 1, **{"segment.bytes": "200", "file.delete.delay.ms": "100"})
    for _ in range(5):
        assert produce(port, "ageing", 100) == "NONE"
    assert offset_of(port, "ageing", EARLIEST) == 0
    change(port, TOPIC, "ageing", retention_ms="1")
    wait_until(lambda: offset_of(port, "ageing", EARLIEST) == 5, "the records are deleted")
    change(port, TOPIC, "ageing", retention_ms="-1", retention_bytes="1")
    produce(port, "ageing", 100)
    produce(port, "ageing", 100)
    wait_until(lambda: offset_of(port, "ageing", EARLIEST) >= 6, "all but the last segment is deleted")


def test_what_holds_for_all_topics_changes_for_those_that_do_not_say_otherwise(port: int) -> None:
    create_topic(port, "own", 1, 1, **{"max.message.bytes": "5000"})
    create_topic(port, "plain", 1, 1)
    change(port, BROKER, "", message_max_bytes="500")
    wait_until(lambda: produce(port, "plain", 1000) == "MESSAGE_TOO_LARGE", "the default holds")
    assert produce(port, "own", 1000) == "NONE"
    create_topic(port, "later", 1, 1)
    assert produce(port, "later", 1000) == "MESSAGE_TOO_LARGE"
    change(port, BROKER, "1", message_max_bytes="2000")
    wait_until(lambda: produce(port, "plain", 1000) == "NONE", "the broker's own goes before the default")


def test_a_topic_made_anew_has_nothing_of_the_former(port: int) -> None:
    create_topic(port, "anew", 1, 1, **{"max.message.bytes": "300"})
    assert produce(port, "anew", 1000) == "MESSAGE_TOO_LARGE"
    delete_topic(port, "anew")

    def made() -> bool:
        # Its znodes go after its partitions, and until then it is marked for deletion.
        with contextlib.suppress(RuntimeError):
            create_topic(port, "anew", 1, 1, **{"max.message.bytes": "5000"})
            return True
        return False

    wait_until(made, "the topic is made again")
    assert produce(port, "anew", 1000) == "NONE"


def test_configs_survive_the_broker(cluster: BrokerCluster, port: int) -> None:
    create_topic(port, "lasting", 1, 1, **{"max.message.bytes": "500"})
    change(port, BROKER, "1", log_segment_bytes="1234567")
    broker = cluster.brokers[1]
    broker.kill()
    broker.start()
    wait_until(lambda: produce(port, "lasting") == "NONE", "the broker leads again")
    assert produce(port, "lasting", 1000) == "MESSAGE_TOO_LARGE"
    assert described(port, BROKER, "1", "log.segment.bytes") == "1234567"
    assert described(port, TOPIC, "lasting", "max.message.bytes") == "500"
