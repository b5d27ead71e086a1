"""Appending what producers send to the partitions that this broker leads, each batch with its own outcome.

A batch counts with acks 0 and 1 when the leader has written it, with acks -1 when the high watermark has passed it too:
`acknowledgements` tells when that is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from barnabas.kernel.steps import Steps
from barnabas.log.partition.appending import AppendedBatch, AppendedTogether, AppendError, AppendResult
from barnabas.serving.ports import Replicas
from barnabas.serving.topic_metrics import BrokerTopicMetrics, TopicMetrics
from barnabas.wire.byte_work import ByteWork, TakesLongError, run_in_steps
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import RecordError, RecordsError
from barnabas.wire.sentinels import ACKS_ALL
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.partition_log import PartitionLog

_LONG_APPENDS_MAX: Final = 4
"""Batches that are checked in steps at a time. One that is compressed may become 128 MiB; all others wait."""
_VALIDATIONS_MAX: Final = 5
InSteps = Callable[[Steps[Any]], Awaitable[Any]]
"""Does steps one in a turn, and gives their result."""
VALID_ACKS: Final = frozenset((ACKS_ALL, 0, 1))
# What a client has done wrong, or what happens when leaders move, is no failure of this broker.
_EXPECTED: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    )
)


@final
class ProduceOutcome(NamedTuple):
    """What became of the records of one partition; the fields of a Produce response."""

    code: ErrorCode
    first_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[RecordError, ...] = ()
    message: str | None = None
    """What is wrong with the batch, where there is more to say than the code does."""

    @classmethod
    def of(cls, result: AppendedBatch, code: ErrorCode) -> ProduceOutcome:
        """For records that are in the log, whatever the code: so their offsets are told, as in Kafka."""
        first_offset, _, _, log_append_time_ms, log_start_offset, *_ = result
        return cls(code, first_offset, log_append_time_ms, log_start_offset)


Outcomes = dict[TopicPartition, ProduceOutcome]


Appended = tuple["Partition", "PartitionLog", Sequence[Any], bool]
"""What became of batches for one partition, in their order: AppendedBatch, or ProduceOutcome for each that was refused;
and whether there is one of these. A plain tuple, as one is made for every request that comes alone."""


class AppendTarget(NamedTuple):
    """A partition that this broker has, to be appended to for as long as the metadata do not change."""

    topic_partition: TopicPartition
    partition: Partition
    metrics: TopicMetrics


class RecordAppends:
    """Appends batches of clients to the partitions that this broker leads."""

    def __init__(
        self,
        partitions: Replicas,
        topic_metrics: BrokerTopicMetrics,
        offload: Callable[[ByteWork], Awaitable[Any]],
        logger: logging.Logger,
    ) -> None:
        """`offload` does work on bytes off the loop."""
        self._partitions = partitions
        self._topic_metrics = topic_metrics
        self._offload = offload
        self._long_appends = asyncio.Semaphore(_LONG_APPENDS_MAX)
        self._logger = logger

    def target(self, topic_partition: TopicPartition) -> AppendTarget:
        """Raises KafkaError for a partition that is not here."""
        partition = self._partitions.get_partition(topic_partition)
        return AppendTarget(topic_partition, partition, self._topic_metrics.of(topic_partition.topic))

    def append(
        self,
        target: AppendTarget,
        batches: Sequence[bytearray | memoryview],
        required_acks: int,
        produce_version: int,
        writes_at_once: bool,
        only_at_once: bool,
    ) -> Appended | ProduceOutcome:
        """Appends the batches, which are not needed any more then; an outcome if that is the one of all of them.

        `writes_at_once` says that no others will join them in this tick. With `only_at_once` a single batch that takes
        too long for a turn raises TakesLongError, and nothing has changed: it is for `append_in_steps`.
        """
        topic_partition, partition, metrics = target
        log = partition.log
        try:
            if log is None:  # the replica has gone; another may have come in its place
                partition = self._partitions.get_partition(topic_partition)
                log = partition.leader_log()
            if len(batches) == 1:
                result = partition.append(
                    batches[0],
                    required_acks=required_acks,
                    produce_version=produce_version,
                    writes_at_once=writes_at_once,
                    only_at_once=only_at_once,
                )
                metrics.produce_requests.count += 1
                metrics.messages_in.count += result[5]
                metrics.bytes_in.count += len(batches[0])  # as they were sent, whatever is stored of them
                metrics.produce_conversions.count += result[8]
                return partition, log, (result,), False
            together = partition.append_all(
                batches,
                required_acks=required_acks,
                produce_version=produce_version,
                writes_at_once=writes_at_once,
            )
        except TakesLongError:
            raise
        except Exception as error:  # noqa: BLE001 - sorted there
            return self.refused(topic_partition, error, len(batches))
        return self._sorted(topic_partition, partition, log, together)

    def _sorted(
        self,
        topic_partition: TopicPartition,
        partition: Partition,
        log: PartitionLog,
        together: AppendedTogether,
    ) -> Appended:
        """Counts what was appended, and what was not."""
        outcomes, errors = together.outcomes, together.error_count
        self._count(
            topic_partition,
            len(outcomes) - errors,
            together.record_count,
            together.sent_bytes,
            together.converted_count,
        )
        if not errors:
            return partition, log, outcomes, False
        found = [
            self.refused(topic_partition, outcome) if isinstance(outcome, AppendError) else outcome
            for outcome in outcomes
        ]
        return partition, log, found, True

    async def append_in_steps(
        self,
        topic_partition: TopicPartition,
        records: bytearray,
        required_acks: int,
        produce_version: int,
        in_steps: InSteps,
    ) -> Appended | ProduceOutcome:
        """`append` for a batch that takes long. The caller lets no later request of the same connection begin before
        this returns, and changes nothing of the records.
        """
        try:
            async with self._long_appends:
                partition, log, result = await self._append_in_steps(
                    topic_partition, records, required_acks, produce_version, in_steps
                )
        except Exception as error:  # noqa: BLE001 - sorted there
            return self.refused(topic_partition, error)
        self._count(topic_partition, 1, result.record_count, len(records), result.converted_count)
        return partition, log, (result,), False

    async def _append_in_steps(
        self,
        topic_partition: TopicPartition,
        records: bytearray,
        required_acks: int,
        produce_version: int,
        in_steps: InSteps,
    ) -> tuple[Partition, PartitionLog, AppendResult]:
        for _ in range(_VALIDATIONS_MAX):
            partition = self._partitions.get_partition(topic_partition)
            log, validation = partition.validation(
                records, required_acks=required_acks, produce_version=produce_version
            )
            try:
                batch = await run_in_steps(validation.steps, in_steps, self._offload)
            except RecordsError as error:
                raise AppendError.of_records(error, log.log_start_offset) from error
            # Anything may have happened: the replica may have gone, and another have come in its place.
            partition = self._partitions.get_partition(topic_partition)
            result = partition.append_after(log, validation, batch, required_acks=required_acks)
            if result is not None:
                return partition, log, result
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"the log of {topic_partition.topic}-{topic_partition.partition}, or its configs, have changed"
            f" {_VALIDATIONS_MAX} times while a batch for it was checked",
        )

    def _count(
        self, topic_partition: TopicPartition, batches: int, records: int, size_bytes: int, converted: int
    ) -> None:
        """Counts what was appended."""
        metrics = self._topic_metrics.of(topic_partition.topic)
        metrics.produce_requests.count += batches
        metrics.bytes_in.count += size_bytes
        metrics.messages_in.count += records
        metrics.produce_conversions.count += converted

    def refused(self, topic_partition: TopicPartition, error: Exception, batches: int = 1) -> ProduceOutcome:
        """Counts, and where it is a failure of this broker logs, that batches were not appended; what to answer."""
        metrics = self._topic_metrics.of(topic_partition.topic)
        metrics.produce_requests.count += batches
        if not isinstance(error, KafkaError):
            metrics.produce_failures.count += batches
            self._logger.error("Appending to %s failed", topic_partition, exc_info=error)
            return ProduceOutcome(ErrorCode.UNKNOWN_SERVER_ERROR)
        if error.code in _EXPECTED:
            return ProduceOutcome(error.code)
        metrics.produce_failures.count += batches
        if not isinstance(error, AppendError):
            return ProduceOutcome(error.code)
        return ProduceOutcome(
            error.code,
            log_start_offset=error.log_start_offset,
            record_errors=error.record_errors,
            message=error.detail if error.record_errors else None,
        )
