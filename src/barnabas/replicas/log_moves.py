"""The replicas of this broker that move between its log directories (KIP-113): what is asked for, begun and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.kernel.turns import yield_to_loop
from barnabas.log.directories.names import DirectoryKind, marked_directory_name
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import logging

    from barnabas.follower.log_copier import LogCopier
    from barnabas.leader.partition import Partition
    from barnabas.log.directories.log_directory import LogDirectory
    from barnabas.log.manager.log_manager import LogManager
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.replicas.high_watermark_checkpoint import HighWatermarkCheckpoints
    from barnabas.wire.topics import TopicPartition

_DIRECTORY_NAME_MAX: Final = 255
_ANY_ID: Final = "0" * 32
_BEGUN_PER_TURN: Final = 20


class LogMoves:
    """Decides which future logs there are, and has them copied.

    Invariant: what is copied has a partition that is hosted here, with a log, and a future log in another directory.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        *,
        get_partition: Callable[[TopicPartition], Partition],
        log_manager: LogManager,
        checkpoints: HighWatermarkCheckpoints,
        logger: logging.Logger,
    ) -> None:
        """`partitions` are those hosted here; `get_partition` raises KafkaError for one that is not."""
        self._partitions = partitions
        self._get_partition = get_partition
        self._log_manager = log_manager
        self._checkpoints = checkpoints
        self._logger = logger
        self._copier: LogCopier | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def use(self, copier: LogCopier) -> None:
        """The copier, which is made with `replaced`."""
        self._copier = copier

    # Asked for.

    async def alter(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        """Moves each partition to a log directory, given by its absolute path; the outcome of each. A partition that is
        not here yet gets its log there when it comes. One that is there, or on its way there, is left as it is; one on
        its way elsewhere goes there no more.
        """
        outcomes: dict[TopicPartition, ErrorCode] = {}
        first: KafkaError | None = None
        for number, (topic_partition, path) in enumerate(wanted.items()):
            if number and not number % _BEGUN_PER_TURN:
                await yield_to_loop()
            try:
                await self._alter(topic_partition, path)
                outcomes[topic_partition] = ErrorCode.NONE
            except KafkaError as error:
                first = first or error
                # Apache Kafka keeps the older error of this API for compatibility.
                is_elsewhere = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
                outcomes[topic_partition] = ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else error.code
        if first is not None:
            refused = [each for each, code in outcomes.items() if code is not ErrorCode.NONE]
            self._logger.warning(
                "Unable to alter log dirs for %d partitions, %s first: %s", len(refused), refused[0], first
            )
        return outcomes

    async def _alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Raises KafkaError, for the first thing in Kafka's order that forbids it."""
        if len(marked_directory_name(topic_partition, DirectoryKind.FUTURE, _ANY_ID).encode()) > _DIRECTORY_NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic's name is too long for a future replica")
        directory = self._directory(path)
        future = self._log_manager.future_logs.get(topic_partition)
        if topic_partition in self._partitions and future is not None and future.log_directory is not directory:
            self._stop_copying((topic_partition,))
            await self._log_manager.delete_future_log(topic_partition)
        elif topic_partition not in self._partitions:
            self._check_not_offline(topic_partition)
        self._log_manager.prefer_directory(topic_partition, directory)
        partition = self._get_partition(topic_partition)
        log = partition.log
        if log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic_partition} has no log here yet")
        if log.log_directory is directory or topic_partition in self._log_manager.future_logs:
            return
        if log.local_log_start_offset > log.log_start_offset:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{topic_partition} cannot be moved: some of it is in remote storage only. Remove its directory while"
                " the broker is stopped, and it is fetched from the leader",
            )
        self._log_manager.create_future_log(log, directory)
        self._copy(topic_partition)

    def _directory(self, path: str) -> LogDirectory:
        directory = self._log_manager.find_directory(path)
        if directory is not None:
            return directory
        if any(each.path == path for each in self._log_manager.offline_directories):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline")
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")

    def _check_not_offline(self, topic_partition: TopicPartition) -> None:
        try:
            self._get_partition(topic_partition)
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                raise

    # Told by the controller, and by disks.

    def begin(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Goes on with what an earlier life, or the time before a StopReplica, has left of these."""
        futures = self._log_manager.future_logs
        if not futures:
            return
        for topic_partition in topic_partitions:
            future, partition = futures.get(topic_partition), self._partitions.get(topic_partition)
            log = None if partition is None else partition.log
            if future is None or log is None or (self._copier is not None and topic_partition in self._copier):
                continue
            if future.topic_id is not None and log.topic_id not in (None, future.topic_id):
                self._logger.warning("%r is deleted: it is that of a former topic of this name", future)
                task = asyncio.get_running_loop().create_task(self._delete(topic_partition))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
            else:
                self._copy(topic_partition)

    def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These are not hosted here any more, or not to be moved now; what is copied stays."""
        self._stop_copying(topic_partitions)

    def directory_failed(self) -> None:
        """Some future logs, or the logs that they are copies of, are not there any more."""
        if self._copier is not None:
            futures = self._log_manager.future_logs
            gone = [each for each in self._copier.copied if each not in futures or each not in self._partitions]
            self._stop_copying(gone)

    def replaced(self, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """The future log is the current one now; in this turn the partition takes it too."""
        self._checkpoints.forget(topic_partition)
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.log is not None:
            partition.replace_log(log)

    async def close(self) -> None:
        """Ends all copying; the next start goes on with it."""
        if self._copier is not None:
            await self._copier.close()
        while self._ending:
            await asyncio.wait(set(self._ending))

    async def _delete(self, topic_partition: TopicPartition) -> None:
        try:
            await self._log_manager.delete_future_log(topic_partition)
        except KafkaError as error:
            self._logger.warning("Deleting the future log of %s failed: %s", topic_partition, error)

    def _copy(self, topic_partition: TopicPartition) -> None:
        if self._copier is not None:
            self._copier.add(topic_partition)

    def _stop_copying(self, topic_partitions: Iterable[TopicPartition]) -> None:
        if self._copier is not None:
            self._copier.remove(topic_partitions)
