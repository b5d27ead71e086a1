"""Internal topics in memory: what shards append to and load from, with replicas that can be held up, and can fail."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable
from typing import Any

from barnabas.wire.batch_formats import batch_at, read_records
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_batch import HEADER, set_checksum
from barnabas.wire.records import Record, walk_batches
from barnabas.wire.topics import TopicPartition


class MemoryLog:
    """Port `InternalLog`. Every append is committed at once, unless `holds_back`."""

    def __init__(self) -> None:
        self.batches: dict[TopicPartition, list[bytes]] = {}
        self.end_offsets: dict[TopicPartition, int] = {}
        self.leaders: dict[TopicPartition, int] = {}
        """The epoch in which this broker leads; partitions without one are led by others."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        """Up to where what this log was given is committed."""
        self.holds_back = False
        self.held: list[Callable[[ErrorCode], None]] = []
        self.late: list[tuple[int, Callable[[ErrorCode], None]]] = []
        """Who waits, by offset, for what has timed out, or was found."""
        self.refusal: ErrorCode | None = None
        """What appends are answered with, without being made; a lack of replicas concerns only those that wait."""
        self.batch_bytes_max: int | None = None
        """Larger batches are refused as MESSAGE_TOO_LARGE."""
        self.reads = 0
        self.reading = asyncio.Event()
        self.reading.set()
        self.read_errors: list[Exception] = []

    def delete(self, partition: TopicPartition) -> None:
        """Its topic is deleted."""
        for of_partition in (self.batches, self.end_offsets, self.leaders):
            of_partition.pop(partition, None)

    def start_append(
        self,
        partition: TopicPartition,
        leader_epoch: int,
        batch: bytearray,
        *,
        timeout_ms: float,
        on_done: Callable[[ErrorCode], None],
    ) -> int:
        del timeout_ms
        base_offset = self._append(partition, leader_epoch, batch)
        if self.holds_back:
            self.held.append(on_done)
        else:
            self._commit(partition)
            on_done(ErrorCode.NONE)
        return base_offset

    def when_committed(
        self, partition: TopicPartition, leader_epoch: int, offset: int, on_done: Callable[[ErrorCode], None]
    ) -> None:
        self._check(partition, leader_epoch)
        if offset < self.high_watermarks.get(partition, 0):
            on_done(ErrorCode.NONE)
        else:
            self.late.append((offset, on_done))

    def append_unacknowledged(self, partition: TopicPartition, leader_epoch: int, batch: bytearray) -> int:
        if self.refusal is ErrorCode.NOT_ENOUGH_REPLICAS:
            self._check(partition, leader_epoch)
            return self.write(partition, batch)
        return self._append(partition, leader_epoch, batch)

    def offsets(self, partition: TopicPartition, leader_epoch: int) -> tuple[int, int]:
        self._check(partition, leader_epoch)
        return 0, self.end_offsets.get(partition, 0)

    async def read(self, partition: TopicPartition, leader_epoch: int, offset: int, bytes_max: int) -> bytes:
        self.reads += 1
        await self.reading.wait()
        if self.read_errors:
            raise self.read_errors.pop(0)
        self._check(partition, leader_epoch)
        batches = self.batches.get(partition, [])
        first = max(bisect.bisect_right(batches, offset, key=base_offset) - 1, 0)
        chunk = bytearray()
        for batch in batches[first:]:
            if chunk and len(chunk) + len(batch) > bytes_max:
                break
            chunk += batch
        return bytes(chunk) if offset < self.end_offsets.get(partition, 0) else b""

    def release(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Tells the outcome of what was held back, in order."""
        if code in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._commit(*self.batches)
        held, self.held = self.held, []
        for tell in held:
            tell(code)

    def release_late(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Tells those of whom `release` has said REQUEST_TIMED_OUT, and those who wait for more then."""
        if code is ErrorCode.NONE:
            self._commit(*self.batches)
        while self.late:
            self.late.pop(0)[1](code)

    def write(self, partition: TopicPartition, batch: bytearray) -> int:
        """Appends a batch as it is, under the next offsets."""
        base_offset = self.end_offsets.get(partition, 0)
        header = HEADER.unpack_from(batch)
        HEADER.pack_into(batch, 0, base_offset, *header[1:])
        set_checksum(batch)
        self.batches.setdefault(partition, []).append(bytes(batch))
        self.end_offsets[partition] = batch_at(batch, walk_batches(batch).spans[0]).last_offset + 1
        return base_offset

    def records(self, partition: TopicPartition) -> list[Record]:
        return list(read_records(b"".join(self.batches.get(partition, []))))

    def _append(self, partition: TopicPartition, leader_epoch: int, batch: bytearray) -> int:
        self._check(partition, leader_epoch)
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        if self.batch_bytes_max is not None and len(batch) > self.batch_bytes_max:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        return self.write(partition, batch)

    def _commit(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self.high_watermarks[partition] = self.end_offsets.get(partition, 0)

    def _check(self, partition: TopicPartition, leader_epoch: int) -> None:
        if partition not in self.leaders or self.leaders[partition] < leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def base_offset(batch: bytes) -> int:
    return batch_at(batch, walk_batches(batch).spans[0]).base_offset


def nothing(*_arguments: Any) -> None:
    """A callback that nobody looks at."""
