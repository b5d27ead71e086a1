"""Appending what producers send: many partitions in one request, each with its own outcome, answered when all are done.

A batch counts with acks 0 and 1 when the leader has written it, with acks -1 when the high watermark has passed it too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.cluster.metadata_responses import is_internal
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.kernel.steps import Steps
from barnabas.log.partition.appending import AppendError, AppendResult
from barnabas.serving.ports import Replicas
from barnabas.serving.topic_metrics import BrokerTopicMetrics
from barnabas.wire.byte_work import ByteWork, TakesLongError, run_in_steps
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import RecordError, RecordsError
from barnabas.wire.sentinels import ACKS_ALL
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.write_queue import WriteQueue

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


class ProduceOutcome(NamedTuple):
    """What became of the records of one partition; the fields of a Produce response."""

    code: ErrorCode
    first_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[RecordError, ...] = ()
    message: str | None = None
    """What is wrong with the batch, where there is more to say than the code does."""


Outcomes = dict[TopicPartition, ProduceOutcome]


class RecordAppends:
    """Appends batches of clients to the partitions that this broker leads."""

    def __init__(
        self,
        partitions: Replicas,
        write_queue: WriteQueue,
        purgatory: Purgatory[Any],
        topic_metrics: BrokerTopicMetrics,
        offload: Callable[[ByteWork], Awaitable[Any]],
        logger: logging.Logger,
    ) -> None:
        """`purgatory` is checked by topic partition when a high watermark, an ISR or a leader changes; `offload` does
        work on bytes off the loop."""
        self._partitions = partitions
        self._write_queue = write_queue
        self._purgatory = purgatory
        self._topic_metrics = topic_metrics
        self._offload = offload
        self._long_appends = asyncio.Semaphore(_LONG_APPENDS_MAX)
        self._logger = logger

    def append(
        self,
        batches: Sequence[tuple[TopicPartition, memoryview]],
        *,
        required_acks: int,
        timeout_ms: int,
        produce_version: int,
        internal_topics_allowed: bool,
        on_done: Callable[[Outcomes], object],
    ) -> list[tuple[TopicPartition, memoryview]]:
        """Appends every batch, and calls `on_done` with the outcome of each when all are written and, for acks -1,
        replicated; a batch that is not after `timeout_ms` is REQUEST_TIMED_OUT then.

        Returns those that take too long for one turn, which have no outcome: they are for `append_in_steps`. The
        records of the others are not needed any more.
        """
        take_long: list[tuple[TopicPartition, memoryview]] = []
        outcomes: Outcomes = {}
        appended: dict[TopicPartition, tuple[Partition, int]] = {}
        for topic_partition, records in batches:
            if required_acks not in VALID_ACKS:
                outcomes[topic_partition] = ProduceOutcome(ErrorCode.INVALID_REQUIRED_ACKS)
                continue
            try:
                if is_internal(topic_partition.topic) and not internal_topics_allowed:
                    raise KafkaError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to {topic_partition.topic}"
                    )
                partition = self._partitions.get_partition(topic_partition)
                result = partition.append(
                    records, required_acks=required_acks, produce_version=produce_version, only_at_once=True
                )
            except TakesLongError:
                take_long.append((topic_partition, records))
                continue
            except Exception as error:  # noqa: BLE001 - sorted there
                outcomes[topic_partition] = self.refused(topic_partition, error)
                continue
            outcomes[topic_partition] = self._appended(topic_partition, len(records), result)
            appended[topic_partition] = (partition, result.last_offset + 1)
        _Appending(self, outcomes, appended, required_acks, timeout_ms, on_done).start()
        return take_long

    async def append_in_steps(
        self,
        batches: list[tuple[TopicPartition, bytearray]],
        *,
        required_acks: int,
        timeout_ms: int,
        produce_version: int,
        in_steps: InSteps,
        on_done: Callable[[Outcomes], object],
    ) -> None:
        """`append` for the batches that take long. The caller lets no later request of the same connection begin before
        this returns, and changes nothing of the records.
        """
        outcomes: Outcomes = {}
        appended: dict[TopicPartition, tuple[Partition, int]] = {}
        batches.reverse()
        while batches:
            topic_partition, records = batches.pop()
            size_bytes = len(records)
            try:
                async with self._long_appends:
                    partition, result = await self._append_in_steps(
                        topic_partition, records, required_acks, produce_version, in_steps
                    )
            except Exception as error:  # noqa: BLE001 - sorted there
                outcomes[topic_partition] = self.refused(topic_partition, error)
                continue
            del records
            outcomes[topic_partition] = self._appended(topic_partition, size_bytes, result)
            appended[topic_partition] = (partition, result.last_offset + 1)
        _Appending(self, outcomes, appended, required_acks, timeout_ms, on_done).start()

    async def _append_in_steps(
        self,
        topic_partition: TopicPartition,
        records: bytearray,
        required_acks: int,
        produce_version: int,
        in_steps: InSteps,
    ) -> tuple[Partition, AppendResult]:
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
                return partition, result
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"the log of {topic_partition.topic}-{topic_partition.partition}, or its configs, have changed"
            f" {_VALIDATIONS_MAX} times while a batch for it was checked",
        )

    def _appended(self, topic_partition: TopicPartition, size_bytes: int, result: AppendResult) -> ProduceOutcome:
        metrics = self._topic_metrics.of(topic_partition.topic)
        metrics.produce_requests.count += 1
        metrics.bytes_in.count += size_bytes
        metrics.messages_in.count += result.record_count
        metrics.produce_conversions.count += result.converted_count
        return ProduceOutcome(ErrorCode.NONE, result.first_offset, result.log_append_time_ms, result.log_start_offset)

    def when_written(self, partition: Partition, callback: Callable[[KafkaError | None], object]) -> None:
        """For an appending: calls back when what was appended to the partition's log is written."""
        if partition.log is None:
            callback(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._write_queue.when_written(partition.log, callback)

    def when_replicated(self, operation: DelayedProduce, topic_partitions: Sequence[TopicPartition]) -> None:
        """For an appending: parks the operation until the partitions have moved on."""
        self._purgatory.try_complete_else_watch(operation, topic_partitions)

    def refused(self, topic_partition: TopicPartition, error: Exception) -> ProduceOutcome:
        """Counts, and where it is a failure of this broker logs, that records were not appended; what to answer."""
        metrics = self._topic_metrics.of(topic_partition.topic)
        metrics.produce_requests.count += 1
        if not isinstance(error, KafkaError):
            metrics.produce_failures.count += 1
            self._logger.error("Appending to %s failed", topic_partition, exc_info=error)
            return ProduceOutcome(ErrorCode.UNKNOWN_SERVER_ERROR)
        if error.code in _EXPECTED:
            return ProduceOutcome(error.code)
        metrics.produce_failures.count += 1
        if not isinstance(error, AppendError):
            return ProduceOutcome(error.code)
        return ProduceOutcome(
            error.code,
            log_start_offset=error.log_start_offset,
            record_errors=error.record_errors,
            message=error.detail if error.record_errors else None,
        )


class _Appending:
    """One request on its way: first to the files, then to the replicas."""

    __slots__ = ("_appended", "_appends", "_on_done", "_outcomes", "_required_acks", "_timeout_ms", "_unwritten")

    def __init__(
        self,
        appends: RecordAppends,
        outcomes: Outcomes,
        appended: dict[TopicPartition, tuple[Partition, int]],
        required_acks: int,
        timeout_ms: int,
        on_done: Callable[[Outcomes], object],
    ) -> None:
        self._appends = appends
        self._outcomes = outcomes
        self._appended = appended
        self._required_acks = required_acks
        self._timeout_ms = timeout_ms
        self._on_done = on_done
        self._unwritten = len(appended)

    def start(self) -> None:
        if not self._appended:
            self._on_done(self._outcomes)
            return
        for topic_partition, (partition, _) in list(self._appended.items()):
            self._appends.when_written(partition, self._when_written(topic_partition))

    def _when_written(self, topic_partition: TopicPartition) -> Callable[[KafkaError | None], object]:
        def written(error: KafkaError | None) -> None:
            if error is not None:
                self._outcomes[topic_partition] = ProduceOutcome(error.code)
                del self._appended[topic_partition]
            self._unwritten -= 1
            if not self._unwritten:
                self._all_written()

        return written

    def _all_written(self) -> None:
        if self._required_acks != ACKS_ALL or not self._appended:
            self._on_done(self._outcomes)
            return
        keys = list(self._appended)
        operation = DelayedProduce(self._timeout_ms, self._outcomes, self._appended, self._on_done)
        self._appends.when_replicated(operation, keys)


class DelayedProduce(DelayedOperation):
    """Waits until the high watermarks have passed all that a request appended."""

    def __init__(
        self,
        timeout_ms: int,
        outcomes: Outcomes,
        appended: Mapping[TopicPartition, tuple[Partition, int]],
        on_done: Callable[[Outcomes], object],
    ) -> None:
        super().__init__(timeout_ms)
        self._outcomes = outcomes
        self._waiting = dict(appended)
        self._on_done = on_done

    def try_complete(self) -> bool:
        for topic_partition, (partition, required_offset) in list(self._waiting.items()):
            code = partition.is_replicated(required_offset)
            if code is not None:
                self._settle(topic_partition, code)
        return not self._waiting and self.force_complete()

    def on_complete(self) -> None:
        for topic_partition in list(self._waiting):
            self._settle(topic_partition, ErrorCode.REQUEST_TIMED_OUT)
        self._on_done(self._outcomes)

    def _settle(self, topic_partition: TopicPartition, code: ErrorCode) -> None:
        """The records stay where they are whatever the code; so the response keeps their offsets, as in Kafka."""
        del self._waiting[topic_partition]
        if code:
            self._outcomes[topic_partition] = self._outcomes[topic_partition]._replace(code=code)
