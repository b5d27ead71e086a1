"""What coordinators need of other rooms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import AllocateProducerIdsResponse, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from barnabas.wire.topics import TopicPartition

Buffer = bytes | bytearray | memoryview


class InternalLog(Protocol):
    """The partitions of internal topics that this broker leads.

    `leader_epoch` is the epoch in which a shard was elected. Later epochs will do while this broker leads in them too;
    a partition that it leads no more, or not yet, refuses the call.
    """

    def start_append(
        self,
        partition: TopicPartition,
        leader_epoch: int,
        batch: bytearray,
        *,
        timeout_ms: float,
        on_done: Callable[[ErrorCode], None],
    ) -> int:
        """Appends one batch of magic 2, with acks of all, and returns its base offset.

        Raises `KafkaError` where nothing is appended, and does not call `on_done` then. Otherwise the batch is in the
        log for as long as this broker leads, and `on_done(code)` is called exactly once, perhaps before this returns:
        NONE when every replica in sync has the batch, otherwise the error of a Produce, REQUEST_TIMED_OUT after
        `timeout_ms`; KAFKA_STORAGE_ERROR where the write failed, after which this broker leads no more.
        """
        ...

    def when_committed(
        self, partition: TopicPartition, leader_epoch: int, offset: int, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """For what is in the log already: calls `on_done(NONE)` once, perhaps before this returns, when every replica
        in sync has the record at `offset`; with another code when this broker leads no more. Raises `KafkaError` where
        it does not lead now.
        """
        ...

    def append_unacknowledged(self, partition: TopicPartition, leader_epoch: int, batch: bytearray) -> int:
        """Appends without waiting for replicas, and returns the base offset; raises `KafkaError` where nothing is
        appended.
        """
        ...

    def offsets(self, partition: TopicPartition, leader_epoch: int) -> tuple[int, int]:
        """Start and end of the log; raises `KafkaError` unless this broker leads the partition."""
        ...

    async def read(self, partition: TopicPartition, leader_epoch: int, offset: int, bytes_max: int) -> Buffer:
        """Whole batches from `offset` on, up to the end of the log, committed or not.

        At least one batch, even if it is larger than `bytes_max`; empty only at the end. The first batch may begin
        before `offset`. The memory is the caller's. Raises `KafkaError` as `offsets` does, and KAFKA_STORAGE_ERROR.
        """
        ...


class ProducerIdAllocator(Protocol):
    """The way to the controller, which hands out producer ids in blocks."""

    async def allocate(self) -> AllocateProducerIdsResponse:
        """One request with the present broker epoch. Raises `OSError` or `TimeoutError` where no answer came."""
        ...


class PartitionLeaders(Protocol):
    """The metadata of this broker."""

    def leader(self, partition: TopicPartition) -> int | None:
        """The broker that leads the partition; below 0 where none that lives does, None where there is no such
        partition.
        """
        ...


class MarkerChannel(Protocol):
    """The way to the other brokers, and to this one."""

    async def send(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """One request, in the version that `inter.broker.protocol.version` has. Raises `OSError` or `TimeoutError`
        where no answer came.
        """
        ...
