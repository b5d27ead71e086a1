"""Copies segments of logs that this broker leads into remote storage, each by a child process of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.kernel.host import ChildProcess, Host
from barnabas.kernel.ids import Uuid
from barnabas.log.directories.checkpoints import format_epochs
from barnabas.tiered.copying import ENTRY, CopyWork
from barnabas.tiered.lineage import epochs_before, epochs_between
from barnabas.tiered.metadata_topic import MetadataTopic
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.remote_reads import topic_id_partition
from barnabas.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
)
from barnabas.tiered.settings import TieredSettings
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.log.segments.segment import Segment

_KILL_SIGNAL: Final = 9
_COPY_SECONDS: Final = 300
_FORMER_SNAPSHOTS_MAX: Final = 4
_REPLAYED_MAX: Final = 100
"""With no more segments than that, all may be read again for a snapshot."""
_COPY_BYTES_PER_SECOND: Final = 256 * 1024
"""How long a copy may take: a storage that hangs must not keep the other partitions waiting for ever."""


class CopyFailedError(Exception):
    """A segment was not copied; the text says why."""


class Candidate(NamedTuple):
    """A segment that may be copied."""

    segment: Segment
    end_offset: int
    """Where the next one begins."""


def candidates(log: PartitionLog, from_offset: int) -> Iterator[Candidate]:
    """The segments that go on at `from_offset` or later, oldest first.

    Invariant: all of each lies below the last stable offset, so that nothing in remote storage is ever cut off, and no
    consumer of committed records has to wait for what is read there; and the active segment is never among them.
    """
    for segment, following in pairwise(log.segments.from_offset(from_offset)):
        if following.base_offset > log.last_stable_offset:
            return
        if following.base_offset > from_offset:
            yield Candidate(segment, following.base_offset)


class SegmentCopier:
    """That of one broker."""

    def __init__(
        self, host: Host, broker_id: int, settings: TieredSettings, topic: MetadataTopic, logger: logging.Logger
    ) -> None:
        self._host = host
        self._broker_id = broker_id
        self._settings = settings
        self._topic = topic
        self._logger = logger
        self._children: set[ChildProcess] = set()
        self.being_copied: set[RemoteLogSegmentId] = set()
        """What must not be taken for the rest of a copy that was interrupted."""

    def cancel(self) -> None:
        """Ends the children; what they have written is deleted by the next leader."""
        for child in self._children:
            child.signal(_KILL_SIGNAL)

    async def copy(
        self, log: PartitionLog, candidate: Candidate, is_still_due: Callable[[], bool]
    ) -> RemoteLogSegmentMetadata:
        """Copies a segment; when this returns, everybody who reads the metadata finds it.

        Invariant: COPY_SEGMENT_FINISHED is said after every object is durable, by a broker that leads still. Raises
        CopyFailedError, OSError, ChildLimitError, and as `MetadataTopic.publish`; whatever was written of it is
        deleted later, by its id.
        """
        metadata = self._metadata(log, candidate)
        segment_id = metadata.segment_id
        self.being_copied.add(segment_id)
        try:
            await self._topic.publish(metadata)
            # The child finds files by their names; what completes a segment may be on its way to them.
            await log.log_directory.settle()
            work = self._work(log, candidate, metadata)
            child = await self._host.spawn(ENTRY, work.encode())
            self._children.add(child)
            seconds = _COPY_SECONDS + metadata.size_bytes / _COPY_BYTES_PER_SECOND
            try:
                async with asyncio.timeout(seconds):
                    status = await child.wait()
            except TimeoutError:
                child.signal(_KILL_SIGNAL)
                raise CopyFailedError(f"the child process was ended after {seconds:.0f} seconds") from None
            finally:
                self._children.discard(child)
            if status:
                raise CopyFailedError(f"the child process ended with status {status}, and has said why")
            if not is_still_due():
                raise CopyFailedError("another broker leads the partition")
            await self._topic.publish(
                RemoteLogSegmentUpdate(
                    segment_id,
                    self._broker_id,
                    self._host.clock.time_ms(),
                    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                )
            )
            found = self._topic.cache(segment_id.partition).segment(segment_id)
            if found is None or found.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                raise CopyFailedError("another broker has given up the copy")
            return found
        finally:
            self.being_copied.discard(segment_id)

    def _metadata(self, log: PartitionLog, candidate: Candidate) -> RemoteLogSegmentMetadata:
        segment, end_offset = candidate
        epochs = epochs_between(log.leader_epochs, segment.base_offset, end_offset)
        if log.leader_epochs.epoch_for_offset(max(segment.base_offset, log.log_start_offset)) == NO_EPOCH:
            # Nobody would find it; and it would be copied again and again.
            raise CopyFailedError(f"no leader epoch is known of the first records of {segment.path}")
        largest_ms = segment.max_timestamp.timestamp_ms
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(topic_id_partition(log), Uuid.generate(self._host.entropy)),
            start_offset=segment.base_offset,
            end_offset=end_offset - 1,
            # Without any timestamps, its age counts from now on: nothing is deleted for having none.
            max_timestamp_ms=largest_ms if largest_ms >= 0 else self._host.clock.time_ms(),
            broker_id=self._broker_id,
            event_timestamp_ms=self._host.clock.time_ms(),
            size_bytes=segment.size_bytes,
            leader_epochs=epochs,
        )

    def _work(self, log: PartitionLog, candidate: Candidate, metadata: RemoteLogSegmentMetadata) -> CopyWork:
        segment, end_offset = candidate
        settings = self._settings

        def name(kind: ObjectKind) -> str:
            return object_name(metadata, kind)

        formers = log.last_producer_snapshots(segment.base_offset, _FORMER_SNAPSHOTS_MAX)
        first_offset = log.segments.first.base_offset
        is_short = len(log.segments) <= _REPLAYED_MAX
        replayed = log.segments.from_offset(first_offset if is_short or not formers else formers[-1])
        return CopyWork(
            url=settings.url,
            options=settings.options,
            log_path=segment.path,
            log_bytes=segment.size_bytes,
            log_name=name(ObjectKind.LOG),
            others=(
                (segment.offset_index.path, name(ObjectKind.OFFSET_INDEX), True),
                (segment.time_index.path, name(ObjectKind.TIME_INDEX), True),
                (segment.transaction_index.path, name(ObjectKind.TRANSACTION_INDEX), False),
            ),
            epochs_name=name(ObjectKind.LEADER_EPOCHS),
            epochs=format_epochs(epochs_before(log.leader_epochs, end_offset)).decode(),
            snapshot_path=log.producer_snapshot_path(end_offset),
            former_snapshots=tuple((log.producer_snapshot_path(offset), offset) for offset in formers),
            replayed=tuple(
                (each.path, each.size_bytes)
                for each in takewhile(lambda each: each.base_offset <= segment.base_offset, replayed)
            ),
            is_all_replayed=replayed[0].base_offset == first_offset,
            snapshot_name=name(ObjectKind.PRODUCER_SNAPSHOT),
            expiration_ms=settings.producer_id_expiration_ms,
            transaction_timeout_max_ms=settings.transaction_timeout_max_ms,
            now_ms=self._host.clock.time_ms(),
        )
