"""DescribeLogDirs, 0 to 4: the log directories, with the logs in them and the room that is left.

A directory that is offline says so, and nothing more. Left out: logs that are on their way to another directory, since
there is no AlterReplicaLogDirs yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.api.context import RequestContext
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.kernel.host import Files
from barnabas.replication.ports import Replicas
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

if TYPE_CHECKING:
    from barnabas.log.log_directory import LogDirectory
    from barnabas.log.partition_log import PartitionLog

_UNKNOWN_LAG: Final = -1


class LogDirectories(Protocol):
    """The directories and logs of the broker; the log manager."""

    @property
    def directories(self) -> Sequence[LogDirectory]: ...
    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]: ...


class DescribeLogDirsHandler:
    """Asks the log manager."""

    api_key = ApiKey.DESCRIBE_LOG_DIRS
    versions = (0, 4)

    def __init__(
        self, log_directories: LogDirectories, replicas: Replicas, files: Files, logger: logging.Logger
    ) -> None:
        self._log_directories = log_directories
        self._replicas = replicas
        self._files = files
        self._logger = logger

    def handle(self, _context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        by_directory = self._logs_by_directory(request)
        return DescribeLogDirsResponse(
            results=[
                self._describe(directory, by_directory.get(directory.path, {}))
                for directory in self._log_directories.directories
            ]
        )

    def error_response(
        self, _context: RequestContext, _request: DescribeLogDirsRequest, error: KafkaError
    ) -> DescribeLogDirsResponse:
        return DescribeLogDirsResponse(error_code=error.code)

    def _logs_by_directory(self, request: DescribeLogDirsRequest) -> dict[str, dict[str, list[PartitionLog]]]:
        """The logs that are asked for, by path of the directory and by topic."""
        logs = self._log_directories.logs
        asked: Iterable[PartitionLog | None]
        if request.topics is None:
            asked = logs.values()
        else:
            wanted = {TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions}
            asked = (logs.get(topic_partition) for topic_partition in sorted(wanted))
        found: dict[str, dict[str, list[PartitionLog]]] = {}
        for log in asked:
            if log is not None:
                found.setdefault(log.log_directory.path, {}).setdefault(log.partition.topic, []).append(log)
        return found

    def _describe(
        self, directory: LogDirectory, topics: Mapping[str, Sequence[PartitionLog]]
    ) -> DescribeLogDirsResponse.DescribeLogDirsResult:
        result = DescribeLogDirsResponse.DescribeLogDirsResult(
            error_code=ErrorCode.NONE, log_dir=directory.path, topics=[]
        )
        if directory.is_offline:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return result
        try:
            result.total_bytes = self._files.total_bytes(directory.path)
            result.usable_bytes = self._files.free_bytes(directory.path)
        except OSError as error:
            self._logger.warning("Describing the log directory %s failed: %s", directory.path, error)
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return result
        result.topics = [
            DescribeLogDirsResponse.DescribeLogDirsTopic(name=topic, partitions=[self._log(log) for log in logs])
            for topic, logs in topics.items()
        ]
        return result

    def _log(self, log: PartitionLog) -> DescribeLogDirsResponse.DescribeLogDirsPartition:
        partition = self._replicas.find_partition(log.partition)
        is_in_use = partition is not None and partition.log is log
        return DescribeLogDirsResponse.DescribeLogDirsPartition(
            partition_index=log.partition.partition,
            partition_size=log.size_bytes,
            offset_lag=max(log.high_watermark - log.log_end_offset, 0) if is_in_use else _UNKNOWN_LAG,
            is_future_key=False,
        )
