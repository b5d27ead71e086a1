"""Deleting the records below an offset: done by the leader, and answered when every replica that is alive has done so.

Followers learn the leader's log start offset from its Fetch responses, and tell theirs with the next request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple

from barnabas.cluster.metadata_responses import is_internal
from barnabas.kernel.metrics import Meter, MetricName, MetricsRegistry
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.serving.ports import Replicas
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_OFFSET
from barnabas.wire.topics import TopicPartition

_HIGH_WATERMARK: Final = -1


class DeleteOutcome(NamedTuple):
    """What became of one partition."""

    code: ErrorCode
    low_watermark: int = NO_OFFSET
    """The least log start offset of the replicas."""


Outcomes = dict[TopicPartition, DeleteOutcome]


class RecordDeletions:
    """The DeleteRecords requests of a broker."""

    def __init__(
        self, partitions: Replicas, purgatory: Purgatory[Any], metrics: MetricsRegistry, logger: logging.Logger
    ) -> None:
        """`purgatory` is checked by topic partition when a low watermark or a leader changes."""
        self._partitions = partitions
        self._purgatory = purgatory
        self._logger = logger
        self._expires = metrics.meter(MetricName("kafka.server", "DelayedDeleteRecordsMetrics", "ExpiresPerSec"))

    def delete(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int, on_done: Callable[[Outcomes], object]
    ) -> None:
        """Deletes what is below each offset (-1: below the high watermark), and calls `on_done` when all replicas have,
        or after `timeout_ms`; a partition that is not through then is REQUEST_TIMED_OUT.
        """
        outcomes: Outcomes = {}
        waiting: dict[TopicPartition, int] = {}
        for topic_partition, offset in offsets.items():
            try:
                low_watermark, required = self._delete_here(topic_partition, offset)
            except KafkaError as error:
                outcomes[topic_partition] = DeleteOutcome(error.code)
                continue
            except Exception:
                self._logger.exception("Deleting records of %s failed", topic_partition)
                outcomes[topic_partition] = DeleteOutcome(ErrorCode.UNKNOWN_SERVER_ERROR)
                continue
            outcomes[topic_partition] = DeleteOutcome(ErrorCode.NONE, low_watermark)
            if low_watermark < required:
                waiting[topic_partition] = required
        if not waiting:
            on_done(outcomes)
            return
        operation = _DelayedDeleteRecords(self._partitions, outcomes, waiting, timeout_ms, on_done, self._expires)
        self._purgatory.try_complete_else_watch(operation, list(waiting))

    def _delete_here(self, topic_partition: TopicPartition, offset: int) -> tuple[int, int]:
        """Returns the low watermark, and the offset that it has to reach."""
        if is_internal(topic_partition.topic):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"records of {topic_partition.topic} cannot be deleted by clients"
            )
        partition = self._partitions.get_partition(topic_partition)
        required = partition.leader_log().high_watermark if offset == _HIGH_WATERMARK else offset
        if required < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is no offset up to which records can be deleted")
        return partition.delete_records(required), required


class _DelayedDeleteRecords(DelayedOperation):
    """Waits until low watermarks have reached what was asked for."""

    def __init__(
        self,
        partitions: Replicas,
        outcomes: Outcomes,
        waiting: dict[TopicPartition, int],
        timeout_ms: int,
        on_done: Callable[[Outcomes], object],
        expires: Meter,
    ) -> None:
        super().__init__(timeout_ms)
        self._partitions = partitions
        self._outcomes = outcomes
        self._waiting = waiting
        self._on_done = on_done
        self._expires = expires

    def try_complete(self) -> bool:
        for topic_partition in list(self._waiting):
            self._look_at(topic_partition)
        return not self._waiting and self.force_complete()

    def try_complete_for(self, key: Hashable) -> bool:
        # Only the one that has changed: a look at all of them for each would be quadratic.
        if key in self._waiting:
            self._look_at(key)
        return not self._waiting and self.force_complete()

    def on_complete(self) -> None:
        for topic_partition in self._waiting:
            self._outcomes[topic_partition] = self._outcomes[topic_partition]._replace(code=ErrorCode.REQUEST_TIMED_OUT)
        self._on_done(self._outcomes)

    def on_expiration(self) -> None:
        self._expires.count += len(self._waiting)

    def _look_at(self, topic_partition: TopicPartition) -> None:
        try:
            low_watermark = self._partitions.get_partition(topic_partition).low_watermark
        except KafkaError as error:
            self._outcomes[topic_partition] = DeleteOutcome(error.code)
            del self._waiting[topic_partition]
            return
        if low_watermark >= self._waiting[topic_partition]:
            self._outcomes[topic_partition] = DeleteOutcome(ErrorCode.NONE, low_watermark)
            del self._waiting[topic_partition]
