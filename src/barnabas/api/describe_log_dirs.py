"""DescribeLogDirs, 0 to 4: the log directories, with the logs in them and the room that is left.

A directory that is offline says so, and nothing more. A replica on its way to another directory is there too, as
future, with the records by which it is behind. Nothing is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.host import Files
from barnabas.kernel.steps import Steps, each_within
from barnabas.security.acls import AclOperation
from barnabas.serving.ports import Replicas
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.log.directories.log_directory import LogDirectory
    from barnabas.log.partition.partition_log import PartitionLog

_UNKNOWN_LAG: Final = -1
_NAMED_PER_STEP: Final = 4096


class LogDirectories(Protocol):
    """The directories and logs of the broker; the log manager."""

    @property
    def directories(self) -> Sequence[LogDirectory]: ...
    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]: ...
    @property
    def future_logs(self) -> Mapping[TopicPartition, PartitionLog]: ...


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

    def handle(self, context: RequestContext, request: DescribeLogDirsRequest) -> Steps[DescribeLogDirsResponse]:
        check_cluster(context, AclOperation.DESCRIBE)
        by_directory = yield from self._logs_by_directory(request)
        response = DescribeLogDirsResponse()
        for directory in self._log_directories.directories:
            response.results.append((yield from self._describe(directory, by_directory.get(directory.path, {}))))
        return response

    def error_response(
        self, _context: RequestContext, _request: DescribeLogDirsRequest, error: KafkaError
    ) -> DescribeLogDirsResponse:
        return DescribeLogDirsResponse(error_code=error.code)

    def _logs_by_directory(self, request: DescribeLogDirsRequest) -> Steps[dict[str, dict[str, list[PartitionLog]]]]:
        """The logs that are asked for, by path of the directory and by topic."""
        logs, futures = self._log_directories.logs, self._log_directories.future_logs
        asked: Iterable[PartitionLog]
        if request.topics is None:
            asked = [*logs.values(), *futures.values()]
        else:
            wanted: dict[TopicPartition, PartitionLog] = {}
            on_their_way: dict[TopicPartition, PartitionLog] = {}
            named = (TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions)
            while some := list(islice(named, _NAMED_PER_STEP)):
                wanted.update((each, logs[each]) for each in some if each in logs)
                on_their_way.update((each, futures[each]) for each in some if each in futures)
                if len(some) == _NAMED_PER_STEP:
                    yield
            found_logs = [*wanted.items(), *on_their_way.items()]
            asked = [log for _, log in sorted(found_logs, key=itemgetter(0))]
        found: dict[str, dict[str, list[PartitionLog]]] = {}
        for log in asked:
            found.setdefault(log.log_directory.path, {}).setdefault(log.partition.topic, []).append(log)
        return found

    def _describe(
        self, directory: LogDirectory, topics: Mapping[str, Sequence[PartitionLog]]
    ) -> Steps[DescribeLogDirsResponse.DescribeLogDirsResult]:
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
        result.topics = yield from each_within(
            topics.items(),
            lambda topic: topic[1],
            lambda _, log: self._log(log),
            lambda topic, logs: DescribeLogDirsResponse.DescribeLogDirsTopic(name=topic[0], partitions=logs),
        )
        return result

    def _log(self, log: PartitionLog) -> DescribeLogDirsResponse.DescribeLogDirsPartition:
        partition = self._replicas.find_partition(log.partition)
        current = None if partition is None else partition.log
        if current is None:
            lag = _UNKNOWN_LAG
        elif log.is_future:
            lag = current.log_end_offset - log.log_end_offset
        elif current is log:
            lag = max(log.high_watermark - log.log_end_offset, 0)
        else:
            lag = _UNKNOWN_LAG
        return DescribeLogDirsResponse.DescribeLogDirsPartition(
            partition_index=log.partition.partition,
            partition_size=log.size_bytes,
            offset_lag=lag,
            is_future_key=log.is_future,
        )
