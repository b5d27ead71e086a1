"""The partitions of internal topics as coordinators see them (`coordinators.ports.InternalLog`), on this broker's
replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.coordinators.ports import Buffer
from barnabas.leader.partition import Partition
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.reading import LogReader
from barnabas.serving.acknowledgements import Acknowledgements
from barnabas.serving.ports import Replicas
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.sentinels import ACKS_ALL
from barnabas.wire.topics import TopicPartition

_NO_ACKS: Final = 0
_LATE_MS_MAX: Final = 2**31 - 1
"""For what is waited for without end. Before that the ISR shrinks, or another leads."""


class ReplicatedInternalLog:
    """Appends as a producer with acks of all would, but in the name of a coordinator.

    A shard of epoch 3 goes on while its broker leads in epoch 4 as well: an epoch may begin without a change of leader,
    and a shard is told at once when its broker leads no more. What is refused is an epoch that this broker has not
    heard of, and a partition that it does not lead.
    """

    def __init__(self, partitions: Replicas, acknowledgements: Acknowledgements, reader: LogReader) -> None:
        """`partitions` is the replica manager."""
        self._partitions = partitions
        self._acknowledgements = acknowledgements
        self._reader = reader

    def start_append(
        self,
        partition: TopicPartition,
        leader_epoch: int,
        batch: bytearray,
        *,
        timeout_ms: float,
        on_done: Callable[[ErrorCode], None],
    ) -> int:
        replica, log = self._leader(partition, leader_epoch)
        result = replica.append(
            memoryview(batch), required_acks=ACKS_ALL, produce_version=None, origin=AppendOrigin.COORDINATOR
        )
        self._acknowledgements.when_replicated(
            replica, log, result.last_offset + 1, round(timeout_ms), _Answer(on_done)
        )
        return result.first_offset

    def when_committed(
        self, partition: TopicPartition, leader_epoch: int, offset: int, on_done: Callable[[ErrorCode], None]
    ) -> None:
        replica, log = self._leader(partition, leader_epoch)

        def told(code: ErrorCode) -> None:
            # The high watermark has passed it; that too few are in sync by now does not take it back.
            is_committed = code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            on_done(ErrorCode.NONE if is_committed else code)

        self._acknowledgements.when_replicated(replica, log, offset + 1, _LATE_MS_MAX, _Answer(told))

    def append_unacknowledged(self, partition: TopicPartition, leader_epoch: int, batch: bytearray) -> int:
        replica, _ = self._leader(partition, leader_epoch)
        result = replica.append(
            memoryview(batch), required_acks=_NO_ACKS, produce_version=None, origin=AppendOrigin.COORDINATOR
        )
        return result.first_offset

    def offsets(self, partition: TopicPartition, leader_epoch: int) -> tuple[int, int]:
        _, log = self._leader(partition, leader_epoch)
        return log.log_start_offset, log.append_end_offset

    async def read(self, partition: TopicPartition, leader_epoch: int, offset: int, bytes_max: int) -> Buffer:
        _, log = self._leader(partition, leader_epoch)
        if log.has_unwritten and offset >= log.log_end_offset:
            await log.wait_written()
        plan = log.read(offset, bytes_max, ReadIsolation.LOG_END, has_minimum=True).plan
        if plan is None:
            return b""
        try:
            cached = self._reader.read_cached(plan)
            if cached is not None:
                return cached
            data = await self._reader.read(plan)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be read: {error}") from error
        if plan.is_cut:  # nothing is not the end of the log
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} was truncated while it was read")
        return data

    def _leader(self, partition: TopicPartition, leader_epoch: int) -> tuple[Partition, PartitionLog]:
        replica = self._partitions.get_partition(partition)
        log = replica.leader_log()
        if replica.leader_epoch < leader_epoch:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{partition} is led in epoch {replica.leader_epoch}, and epoch {leader_epoch} is not known yet",
            )
        return replica, log


class _Answer:
    """Tells a coordinator what became of its batch."""

    __slots__ = ("_on_done",)

    def __init__(self, on_done: Callable[[ErrorCode], None]) -> None:
        self._on_done = on_done

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:  # noqa: ARG002 - or its shard resigns
        self._on_done(code)
