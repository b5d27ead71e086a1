"""Tiered storage in real processes: copied, deleted locally, read from remote storage by librdkafka, followed by a
replica that has nothing, through kill -9, and gone with its topic."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import DeleteRecordsRequest, IncrementalAlterConfigsRequest, ListOffsetsRequest
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.tiered_topics import (
    CONFIGS,
    EARLIEST,
    EARLIEST_LOCAL,
    FIRST_MS,
    LATEST_TIERED,
    any_port,
    offset,
    produce,
    read,
    wait_until_tiered,
)
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, delete_topic, leader_port, leaders, metadata

RECORDS = 3_000
FEWER_RECORDS = 1_500
LONG = os.environ.get("BARNABAS_LONG_FAILURES") == "1"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, remote: Path) -> Iterator[BrokerCluster]:
    overrides = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"file://{remote}",
        "rlmm.config.remote.log.metadata.topic.num.partitions": 3,
        "remote.log.manager.task.interval.ms": 200,
        "log.retention.check.interval.ms": 200,
        "log.initial.task.delay.ms": 200,
        "replica.lag.time.max.ms": 5_000,
    }
    with broker_cluster(tmp_path_factory.mktemp("tiered"), 3, overrides=overrides) as running:
        yield running


def test_what_is_deleted_locally_is_read_from_remote_storage(cluster: BrokerCluster, remote: Path) -> None:
    topic = "flights"
    create_topic(any_port(cluster), topic, 1, 3, **CONFIGS)
    produce(cluster, topic, 0, FEWER_RECORDS)
    local_start = wait_until_tiered(cluster, topic, FEWER_RECORDS // 2)
    port = leader_port(any_port(cluster), topic)
    assert offset(port, topic, EARLIEST) == 0
    assert offset(port, topic, LATEST_TIERED) >= local_start - 1
    assert offset(port, topic, FIRST_MS + 77) == 77, "it is looked up in remote storage"
    assert offset(port, topic, FIRST_MS + FEWER_RECORDS - 5) == FEWER_RECORDS - 5, "it is looked up here"
    read(cluster, topic, 0, FEWER_RECORDS)
    read(cluster, topic, 777, FEWER_RECORDS, "read_uncommitted")

    killed = leaders(port, topic)[0]
    cluster.brokers[killed].kill()
    wait_until(lambda: leaders(any_port(cluster), topic).get(0, killed) not in (killed, -1), "another leads")
    produce(cluster, topic, FEWER_RECORDS, FEWER_RECORDS + 300)
    read(cluster, topic, 0, FEWER_RECORDS + 300)
    cluster.brokers[killed].start()
    _wait_for_isr(cluster, topic, 3)
    read(cluster, topic, 0, FEWER_RECORDS + 300)


@pytest.mark.skipif(not LONG, reason="a minute; in make test-cluster")
def test_a_replica_that_has_nothing_goes_on_behind_remote_storage_and_leads(cluster: BrokerCluster) -> None:
    topic = "moved"
    create_topic(any_port(cluster), topic, 1, 3, **CONFIGS)
    produce(cluster, topic, 0, RECORDS)
    wait_until_tiered(cluster, topic, RECORDS // 2)
    follower = next(each for each in cluster.brokers if each != leaders(any_port(cluster), topic)[0])
    broker = cluster.brokers[follower]
    broker.stop()
    for directory in broker.directory.glob(f"**/{topic}-0"):
        shutil.rmtree(directory)
    broker.start()
    _wait_for_isr(cluster, topic, 3)
    assert offset_at_follower(broker.port, topic) > 0, "its log does not have what is in remote storage"
    for each in [each for each in cluster.brokers if each != follower]:
        cluster.brokers[each].kill()
    wait_until(lambda: leaders(broker.port, topic).get(0) == follower, "it leads", 60.0)
    for each in [each for each in cluster.brokers if each != follower]:
        cluster.brokers[each].start()
    read(cluster, topic, 0, RECORDS)
    produce(cluster, topic, RECORDS, RECORDS + 500)
    _wait_for_isr(cluster, topic, 3)
    read(cluster, topic, 0, RECORDS + 500)


@pytest.mark.skipif(not LONG, reason="half a minute; in make test-cluster")
def test_deleted_records_retention_and_the_topic_are_deleted_remotely(cluster: BrokerCluster, remote: Path) -> None:
    topic = "expired"
    create_topic(any_port(cluster), topic, 1, 3, **CONFIGS)
    produce(cluster, topic, 0, RECORDS)
    wait_until_tiered(cluster, topic, RECORDS // 2)
    (directory,) = remote.glob(f"{topic}-*-0")

    def first_offset() -> int:
        return min((int(path.name[:20]) for path in directory.glob("*.log")), default=0)

    assert first_offset() == 0
    port = leader_port(any_port(cluster), topic)
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1_000)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=30_000
    )
    answer = call(port, ApiKey.DELETE_RECORDS, 2, request)
    assert answer.topics[0].partitions[0].error_code == 0
    wait_until(lambda: 0 < first_offset() <= 1_000, "remote segments before the start are deleted")
    assert offset(port, topic, EARLIEST) == 1_000
    read(cluster, topic, 1_000, RECORDS)

    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2,
        resource_name=topic,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name="retention.bytes", config_operation=0, value="100000")
        ],
    )
    (result,) = call(
        port, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=[resource])
    ).responses
    assert result.error_code == 0, result.error_message
    start = wait_until(
        lambda: (found := offset(port, topic, EARLIEST)) > 1_500 and found, "the whole log is as large as it may be"
    )
    read(cluster, topic, int(start), RECORDS)

    delete_topic(any_port(cluster), topic)
    wait_until(lambda: not list(remote.glob(f"{topic}-*-0/*")), "nothing is left of it", 60.0, cluster.log_tails)


def offset_at_follower(port: int, topic: str) -> int:
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=EARLIEST_LOCAL)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])]
    answer = call(port, ApiKey.LIST_OFFSETS, 9, ListOffsetsRequest(replica_id=-2, topics=topics))
    return int(answer.topics[0].partitions[0].offset)


def _wait_for_isr(cluster: BrokerCluster, topic: str, count: int) -> None:
    def has_all() -> bool:
        (found,) = metadata(any_port(cluster), [topic]).topics
        return len(found.partitions[0].isr_nodes) == count

    wait_until(has_all, f"{count} replicas of {topic} are in sync", 90.0, cluster.log_tails)
