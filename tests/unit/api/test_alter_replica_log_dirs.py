"""AlterReplicaLogDirs and what DescribeLogDirs tells meanwhile, with real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_host import real_host
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
)
from tests.unit.api.data_broker import DataBroker, data_broker

Run = Callable[[Coroutine[Any, Any, Any]], Any]
UNLIMITED = 2**63 - 1


def to(path: str, topic: str, *partitions: int) -> AlterReplicaLogDirsRequest.AlterReplicaLogDir:
    asked = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))
    return AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=[asked])


def codes(response: AlterReplicaLogDirsResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.topic_name, each.partition_index): each.error_code
        for topic in response.results
        for each in topic.partitions
    }


async def described(broker: DataBroker, *, by_name: bool) -> dict[str, list[tuple[int, bool, int]]]:
    """By log directory: each partition, whether it is a future one, and how far it is behind."""
    asked = DescribeLogDirsRequest.DescribableLogDirTopic(topic="flights", partitions=[0])
    response = await broker.connect().call(DescribeLogDirsRequest(topics=[asked] if by_name else None), 4)
    return {
        result.log_dir: [
            (each.partition_index, each.is_future_key, each.offset_lag)
            for topic in result.topics
            for each in topic.partitions
        ]
        for result in response.results
    }


@pytest.mark.parametrize("version", range(3))
def test_moves_a_replica_and_tells_how_far_it_is(run: Run, tmp_path: Path, version: int) -> None:
    async def main() -> None:
        one, two = (str(tmp_path / name) for name in ("one", "two"))
        async with real_host("test", asyncio.get_running_loop()) as host, data_broker(host, one, two) as broker:
            partition = broker.lead("flights")
            assert partition.log is not None
            source = partition.log.log_directory.path
            target = two if source == one else one
            for _ in range(3):
                await broker.produce("flights", b"x")
            broker.replicas.limit_log_moves(0)
            caller = broker.connect()
            response = await caller.call(AlterReplicaLogDirsRequest(dirs=[to(target, "flights", 0)]), version)
            assert codes(response) == {("flights", 0): ErrorCode.NONE}
            for by_name in (False, True):
                assert await described(broker, by_name=by_name) == {source: [(0, False, 0)], target: [(0, True, 3)]}
            broker.replicas.limit_log_moves(UNLIMITED)
            for _ in range(3_000):
                if partition.log.log_directory.path == target:
                    break
                await asyncio.sleep(0.01)
            assert await described(broker, by_name=False) == {source: [], target: [(0, False, 0)]}
            await broker.produce("flights", b"x")
            assert partition.log_end_offset == 4

    run(main())


def test_answers_each_partition_and_takes_the_last_directory_that_one_is_named_for(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        paths = [str(tmp_path / name) for name in ("one", "two", "three")]
        async with real_host("test", asyncio.get_running_loop()) as host, data_broker(host, *paths) as broker:
            partition = broker.lead("flights")
            assert partition.log is not None
            broker.replicas.limit_log_moves(0)
            source = partition.log.log_directory.path
            second, third = (path for path in paths if path != source)
            request = AlterReplicaLogDirsRequest(
                dirs=[
                    to(second, "flights", 0, 7),
                    to("/elsewhere", "trains", 1),
                    to(second, "t" * 230, 0),
                    to(third, "flights", 0),
                ]
            )
            assert codes(await broker.connect().call(request, 2)) == {
                ("flights", 0): ErrorCode.NONE,
                ("flights", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("trains", 1): ErrorCode.LOG_DIR_NOT_FOUND,
                ("t" * 230, 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
            }
            assert (await described(broker, by_name=False))[third] == [(0, True, 0)]

    run(main())
