"""`barnabas cluster describe`: brokers with what they lead and keep, also when one does not answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from barnabas.client.errors import ClientTimeoutError
from barnabas.link.errors import ConnectionLostError
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import DescribeLogDirsResponse
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]
Directory = DescribeLogDirsResponse.DescribeLogDirsResult


def directory(path: str, *sizes_bytes: int, error: int = 0, room: tuple[int, int] = (-1, -1)) -> Directory:
    result = DescribeLogDirsResponse
    partitions = [
        result.DescribeLogDirsPartition(partition_index=number, partition_size=size_bytes)
        for number, size_bytes in enumerate(sizes_bytes)
    ]
    topics = [result.DescribeLogDirsTopic(name="flights", partitions=partitions)]
    return Directory(log_dir=path, error_code=error, topics=topics, usable_bytes=room[0], total_bytes=room[1])


@pytest.fixture
def three(cluster: FakeCluster) -> FakeCluster:
    """Broker 1 is ours, 2 another's, 3 does not answer."""
    cluster.add(topic("flights", partition(1), partition(2, isr=(1, 2)), partition(-1, (3,))))
    cluster.api_versions = {
        1: {ApiKey.METADATA: (0, 12), ApiKey.DESCRIBE_CONTROLLER: (0, 0)},
        2: {ApiKey.METADATA: (0, 12)},
        3: ConnectionLostError("no connection"),
    }
    cluster.log_directories = {
        1: [directory("/b", 10), directory("/a", 1024, 2048, room=(5 * 1024**3, 9 * 1024**3))],
        2: [directory("/c", error=ErrorCode.KAFKA_STORAGE_ERROR)],
        3: ClientTimeoutError("it does not answer"),
    }
    return cluster


def test_describe(three: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("cluster", "describe")
    assert (done.status, done.errors) == (0, "")
    assert done.rows == [
        "Cluster cluster-1",
        "Controller broker 2",
        "Brokers 3",
        "Topics 1, 3 partitions",
        "Under-replicated 1",
        "No leader 1",
        "Broker Host Port Rack Leads Replicas Behind Logs Software",
        "1 host-1 9091 rack-a 1 2 0 3.0 KiB Barnabas",
        "2 host-2 9092 rack-a 1 2 0 0 B Apache Kafka or other",
        "3 host-3 9093 rack-a 0 3 1 - does not answer",
        "",
        "Broker Log directory Logs Size Free Of State",
        "1 /a 2 3.0 KiB 5.0 GiB 9.0 GiB ok",
        "1 /b 1 10 B - - ok",
        "2 /c 0 0 B - - KAFKA_STORAGE_ERROR",
    ]


def test_describe_for_programs(three: FakeCluster, barnabas: Barnabas) -> None:
    found = barnabas("cluster", "describe", "--json").document
    first, second, third = found.pop("brokers")
    assert found == {"cluster_id": "cluster-1", "controller": 2, "topics": 1, "partitions": 3}
    directories = first.pop("log_directories")
    assert first == {
        "id": 1,
        "host": "host-1",
        "port": 9091,
        "rack": "rack-a",
        "leads": 1,
        "replicas": 2,
        "behind": 0,
        "software": "barnabas",
        "size_bytes": 3082,
    }
    assert directories[0] == {
        "path": "/a",
        "error": None,
        "logs": 2,
        "size_bytes": 3072,
        "usable_bytes": 5 * 1024**3,
        "total_bytes": 9 * 1024**3,
    }
    assert directories[1]["usable_bytes"] is None
    assert (second["software"], second["log_directories"][0]["error"]) == ("other", "KAFKA_STORAGE_ERROR")
    assert (third["software"], third["size_bytes"], third["log_directories"]) == (None, None, None)


def test_a_cluster_without_controller(three: FakeCluster, barnabas: Barnabas) -> None:
    three.cluster = replace(three.cluster, controller_id=-1)
    assert "none now" in barnabas("cluster", "describe").output
    assert barnabas("cluster", "describe", "--json").document["controller"] is None
