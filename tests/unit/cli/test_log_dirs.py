"""`barnabas log-dirs describe`: directories and logs, of some topics and brokers, also where a broker tells nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.client.errors import ClientTimeoutError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import DescribeLogDirsResponse
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]
Log = tuple[str, int, int, int, bool]
"""Topic, partition, bytes, lag, and whether it is future."""


def directory(path: str, *logs: Log, error: int = 0, room: tuple[int, int] = (-1, -1)) -> Any:
    topics: dict[str, Any] = {}
    for name, number, size_bytes, lag, is_future in logs:
        topics.setdefault(name, DescribeLogDirsResponse.DescribeLogDirsTopic(name=name)).partitions.append(
            DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=number, partition_size=size_bytes, offset_lag=lag, is_future_key=is_future
            )
        )
    return DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=path, error_code=error, topics=list(topics.values()), usable_bytes=room[0], total_bytes=room[1]
    )


@pytest.fixture
def three(cluster: FakeCluster) -> FakeCluster:
    """Broker 1 moves a replica, a disk of broker 2 has failed, and broker 3 does not answer."""
    cluster.add(topic("flights", partition(1), partition(2)), topic("delays", partition(1, (1,))))
    cluster.log_directories = {
        1: [
            directory("/b", ("flights", 1, 10, 7, True), room=(1024, 2048)),
            directory("/a", ("flights", 1, 2048, 0, False), ("flights", 0, 5, 0, False), ("delays", 0, 1, -1, False)),
        ],
        2: [directory("/c", error=ErrorCode.KAFKA_STORAGE_ERROR)],
        3: ClientTimeoutError("it does not answer"),
    }
    return cluster


SILENT = "Broker 3 does not tell its log directories; `barnabas cluster describe` shows who answers.\n"


def test_every_directory_and_log_is_shown(three: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("log-dirs", "describe")
    assert (done.status, done.errors) == (0, SILENT)
    assert done.rows == [
        "Broker Log directory Logs Size Free Of State",
        "1 /a 3 2.0 KiB - - ok",
        "1 /b 1 10 B 1.0 KiB 2.0 KiB ok",
        "2 /c 0 0 B - - KAFKA_STORAGE_ERROR",
        "",
        "Topic Partition Broker Log directory Size Lag Future",
        "delays 0 1 /a 1 B - no",
        "flights 0 1 /a 5 B 0 no",
        "flights 1 1 /a 2.0 KiB 0 no",
        "flights 1 1 /b 10 B 7 yes",
    ]


def test_logs_of_some_partitions_and_brokers(three: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("log-dirs", "describe", "flights:1", "delays", "--broker", "2", "--broker", "1")
    assert (done.status, done.errors) == (0, "")
    # The directories are shown with all that they have.
    assert done.rows[1:4] == [
        "1 /a 3 2.0 KiB - - ok",
        "1 /b 1 10 B 1.0 KiB 2.0 KiB ok",
        "2 /c 0 0 B - - KAFKA_STORAGE_ERROR",
    ]
    assert [row.split()[:4] for row in done.rows[6:]] == [
        ["delays", "0", "1", "/a"],
        ["flights", "1", "1", "/a"],
        ["flights", "1", "1", "/b"],
    ]
    # Nothing of these partitions, and no table then.
    assert len(barnabas("log-dirs", "describe", "delays", "--broker", "2").rows) == 2


def test_for_programs(three: FakeCluster, barnabas: Barnabas) -> None:
    first, second, third = barnabas("log-dirs", "describe", "flights:1", "--json").document["brokers"]
    assert first == {
        "id": 1,
        "log_directories": [
            {
                "path": "/a",
                "error": None,
                "size_bytes": 2054,
                "usable_bytes": None,
                "total_bytes": None,
                "replicas": [
                    {"topic": "flights", "partition": 1, "size_bytes": 2048, "offset_lag": 0, "is_future": False}
                ],
            },
            {
                "path": "/b",
                "error": None,
                "size_bytes": 10,
                "usable_bytes": 1024,
                "total_bytes": 2048,
                "replicas": [
                    {"topic": "flights", "partition": 1, "size_bytes": 10, "offset_lag": 7, "is_future": True}
                ],
            },
        ],
    }
    assert [each["error"] for each in second["log_directories"]] == ["KAFKA_STORAGE_ERROR"]
    assert third == {"id": 3, "log_directories": None}


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["nowhere"], 4, "there is no topic nowhere"),
        (["flights:9"], 4, "topic flights has no partition 9"),
        (["flights:x"], 2, "names no partitions"),
        (["--broker", "9"], 4, "there is no broker 9; the cluster has 1, 2, 3"),
    ],
)
def test_what_is_not_there(
    three: FakeCluster, barnabas: Barnabas, arguments: list[str], status: int, error: str
) -> None:
    done = barnabas("log-dirs", "describe", *arguments)
    assert (done.status, done.output) == (status, "")
    assert error in " ".join(done.errors.split())
