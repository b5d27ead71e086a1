"""What a broker does with remote storage, from time to time (`remote.log.manager.task.interval.ms`): of partitions that
it leads, it copies segments and deletes what retention gives up; of those that it follows, it learns how far they are
copied, so that local retention may go on. And it deletes what is left of a partition whose topic is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.client.errors import ClientError
from barnabas.kernel.host import ChildLimitError, Host, HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.steps import Steps
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import in_turns, yield_to_loop
from barnabas.tiered.copied_end import CopiedEnd
from barnabas.tiered.lineage import with_records
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.metadata_topic import MetadataTopic
from barnabas.tiered.object_names import object_names
from barnabas.tiered.remote_metrics import RemoteMetrics
from barnabas.tiered.remote_quotas import RemoteQuota
from barnabas.tiered.remote_reads import RemoteReads, topic_id_partition
from barnabas.tiered.remote_retention import Expired, RetentionView, counted_bytes, expired
from barnabas.tiered.segment_copier import CopyFailedError, SegmentCopier, candidates
from barnabas.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDeleteState,
    RemotePartitionDeletion,
    TopicIdPartition,
)
from barnabas.tiered.settings import TieredSettings
from barnabas.tiered.storage import RemoteStore, open_store
from barnabas.wire.errors import KafkaError
from barnabas.wire.sentinels import EPOCH_DURING_DELETE
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.partition_log import PartitionLog

Result = TypeVar("Result")
_LOOKED_AT_PER_TURN: Final = 1000
_LOOKED_AT_PER_STEP: Final = 200
_AT_ONCE_MAX: Final = 4
"""Partitions that are worked on at a time, each with one child process at most."""
_DELETE_SECONDS_MAX: Final = 60.0
"""For the objects of one segment."""
_PASSING: Final = (
    KafkaError,
    ClientError,
    OSError,
    CopyFailedError,
    ChildLimitError,
    OffloadFullError,
)
"""What may be gone by the next time; time-outs are OSErrors too."""


class RemoteLogManager:
    """That of one broker."""

    def __init__(
        self,
        host: Host,
        timers: Timers,
        broker_id: int,
        settings: TieredSettings,
        topic: MetadataTopic,
        reads: RemoteReads,
        partitions: Callable[[], Iterable[Partition]],
        quota: RemoteQuota,
        metrics: RemoteMetrics,
        logger: logging.Logger,
    ) -> None:
        """`partitions` are those that this broker hosts now, `quota` is that of copies."""
        self._host = host
        self._timers = timers
        self._broker_id = broker_id
        self._settings = settings
        self._topic = topic
        self._reads = reads
        self._partitions = partitions
        self._quota = quota
        self._metrics = metrics
        self._logger = logger
        self._copier = SegmentCopier(host, broker_id, settings, topic, logger)
        self._led: dict[TopicPartition, PartitionLog] = {}
        """What this broker leads, or led when its replica was stopped."""
        self._caught_up: dict[TopicIdPartition, int] = {}
        """The leader epoch as of which everything is known that was published before."""
        self._copied_ends: dict[TopicIdPartition, CopiedEnd] = {}
        self._deletions: dict[TopicIdPartition, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to look for work: for copies aside, which may have to wait for their quota."""
        self._tasks = [
            self._host.loop.create_task(self._run(round_of), name=name)
            for name, round_of in (("remote-copies", self.copy_once), ("remote-retention", self.expire_once))
        ]

    async def stop(self) -> None:
        """Ends at once: what is being copied is copied anew by the next leader."""
        tasks = [*self._deletions.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        self._copier.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._topic.close()

    # What it is told.

    def leadership_changed(self, became_leader: list[Partition], became_follower: list[Partition]) -> None:
        """For the replica manager."""
        for partition in became_leader:
            log = partition.log
            if log is not None:
                self._led[partition.topic_partition] = log
        for partition in became_follower:
            if partition.leader_id >= 0:
                self._led.pop(partition.topic_partition, None)

    def replicas_stopped(self, stopped: list[tuple[TopicPartition, int, bool]]) -> None:
        """For the replica manager. What is in remote storage goes where the topic is deleted, and by who led it."""
        for topic_partition, leader_epoch, is_deleted in stopped:
            if not is_deleted:
                continue
            log = self._led.pop(topic_partition, None)
            if log is not None and log.is_tiered and log.topic_id is not None and leader_epoch == EPOCH_DURING_DELETE:
                self._begin_deletion(topic_id_partition(log))

    # Running.

    async def _run(self, round_of: Callable[[], Awaitable[None]]) -> None:
        """Invariant: nothing but `stop` ends this."""
        while True:
            await self._timers.sleep(self._settings.task_interval_ms)
            try:
                await round_of()
            except HostClosedError:
                pass
            except Exception:
                self._logger.exception("The remote log manager has failed; it goes on after its interval")

    async def copy_once(self) -> None:
        """Looks for what can be copied, once in each partition; several at a time."""
        await self._for_each(self._copy_partition)

    async def expire_once(self) -> None:
        """Deletes what retention gives up, and has local retention go on; once in each partition, several at a time."""
        self._forget_gone()
        await self._for_each(self._look_after)

    async def _for_each(self, look: Callable[[Partition, PartitionLog], Awaitable[None]]) -> None:
        tiered: list[Partition] = []
        for number, partition in enumerate(list(self._partitions()), start=1):
            if partition.log is not None and partition.log.is_tiered and not partition.log.is_closed:
                tiered.append(partition)
            if not number % _LOOKED_AT_PER_TURN:
                await yield_to_loop()
        waiting = iter(tiered)

        async def work() -> None:
            for partition in waiting:
                await self._look_at(partition, look)

        threads = self._settings.copier_threads if self._settings.copier_threads > 0 else self._settings.threads
        await asyncio.gather(*(work() for _ in range(min(threads, _AT_ONCE_MAX, len(tiered)))))

    async def _look_at(self, partition: Partition, look: Callable[[Partition, PartitionLog], Awaitable[None]]) -> None:
        log = partition.log
        if log is None or log.topic_id is None or log.is_closed:
            return
        try:
            await look(partition, log)
        except _PASSING as error:
            self._logger.warning(
                "Remote storage of %s: %s; trying again", partition.topic_partition, str(error) or "time-out"
            )
        except HostClosedError:
            raise
        except Exception:
            self._logger.exception("Remote storage of %s failed", partition.topic_partition)

    def _forget_gone(self) -> None:
        here = {partition.topic_partition for partition in self._partitions()}
        for key in [key for key in self._caught_up if key.topic_partition not in here]:
            del self._caught_up[key]
        for key in [key for key in self._copied_ends if key.topic_partition not in here]:
            del self._copied_ends[key]
        for gone in [gone for gone in self._metrics.sizes if gone not in here]:
            del self._metrics.sizes[gone]

    async def _look_after(self, partition: Partition, log: PartitionLog) -> None:
        is_still_due = _is_led_still(partition, log)
        cache = await self._caught_up_cache(partition, log)
        if cache.deletion is not None and partition.is_leader:
            return  # the topic is being deleted
        await self._note_copied(log, cache)
        if not partition.is_leader:
            self._metrics.sizes.pop(partition.topic_partition, None)
        elif is_still_due():
            await self._expire(partition, log, cache, is_still_due)

    async def _caught_up_cache(self, partition: Partition, log: PartitionLog) -> RemoteLogMetadataCache:
        """What is known of a partition: once in each leader epoch, all that was published before."""
        key, epoch = topic_id_partition(log), partition.leader_epoch
        if self._caught_up.get(key) != epoch:
            cache = await self._topic.catch_up(key)
            if partition.is_leader:
                start_offset = await in_turns(_readable_start(log, cache))
                if partition.leader_epoch == epoch and partition.log is log:
                    # A leader whose checkpoint was lost starts its log where what can be read starts.
                    log.increase_log_start_offset(
                        min(start_offset, log.high_watermark), "the start of what is in remote storage"
                    )
            self._caught_up[key] = epoch
        return self._topic.cache(key)

    async def _note_copied(self, log: PartitionLog, cache: RemoteLogMetadataCache) -> int:
        """Has local retention go on as far as the log is copied."""
        end = self._copied_ends.setdefault(topic_id_partition(log), CopiedEnd())
        end_offset = await in_turns(end.find(log, cache))
        log.copied_to(end_offset)
        return end_offset

    async def _copy_partition(self, partition: Partition, log: PartitionLog) -> None:
        if not partition.is_leader:
            return
        is_still_due = _is_led_still(partition, log)
        cache = await self._caught_up_cache(partition, log)
        if cache.deletion is not None:
            return  # the topic is being deleted
        copied_to = await self._note_copied(log, cache)
        try:
            await self._copy(partition, log, max(copied_to, log.log_start_offset), is_still_due)
        except _PASSING as error:
            # Whether the last record was written is known after everything was read again.
            self._caught_up.pop(topic_id_partition(log), None)
            self._metrics.of(partition.topic).copy_errors.count += 1
            self._logger.warning(
                "Copying of %s was not completed; trying again: %s", partition.topic_partition, str(error) or "time-out"
            )

    async def _copy(
        self, partition: Partition, log: PartitionLog, from_offset: int, is_still_due: Callable[[], bool]
    ) -> None:
        """Invariant: one segment after another, in the order of their offsets, and none behind one that failed: so what
        is in remote storage up to an offset has no hole."""
        meters = self._metrics.of(partition.topic)
        for candidate in candidates(log, from_offset):
            if not is_still_due() or log.log_directory.is_held:
                return
            await self._quota.passable()
            if not is_still_due():
                return
            self._quota.record(candidate.segment.size_bytes)
            meters.copy_requests.count += 1
            copied = await self._copier.copy(log, candidate, is_still_due)
            meters.copy_bytes.count += copied.size_bytes
            self._logger.info(
                "Copied segment %d of %s to remote storage, %d bytes, with id %s",
                *(copied.start_offset, partition.topic_partition, copied.size_bytes, copied.segment_id.id),
            )
            if is_still_due():
                await self._note_copied(log, self._topic.cache(copied.segment_id.partition))

    async def _expire(
        self,
        partition: Partition,
        log: PartitionLog,
        cache: RemoteLogMetadataCache,
        is_still_due: Callable[[], bool],
    ) -> None:
        local_only_bytes = await in_turns(_local_only_bytes(log))
        view = RetentionView(
            lineage=with_records(log.leader_epochs.entries),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            remote_end_offset=log.remote_end_offset,
            local_only_bytes=local_only_bytes,
            retention_bytes=log.config.retention_bytes,
            retention_ms=log.config.retention_ms,
            now_ms=self._host.clock.time_ms(),
        )
        counted = await in_turns(counted_bytes(cache, view))
        self._metrics.sizes[partition.topic_partition] = sum(counted.values())
        found: Expired = await in_turns(expired(cache, view, counted, self._copier.being_copied))
        if not is_still_due():
            return
        if found.log_start_offset is not None and found.log_start_offset > log.log_start_offset:
            # First of all: followers, and whoever leads next, know then that the records are gone.
            log.increase_log_start_offset(
                min(found.log_start_offset, log.high_watermark), "remote segments that retention gives up"
            )
        for segment in found.segments:
            if not is_still_due():
                return
            await self._delete(segment)

    async def _delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Deletes a segment; may be done again where it was interrupted.

        Invariant: DELETE_SEGMENT_STARTED is known, so that nobody reads it, before anything of it goes; and
        DELETE_SEGMENT_FINISHED is said when all of it has gone.
        """
        topic = segment.segment_id.partition.topic_partition.topic
        meters = self._metrics.of(topic)
        meters.delete_requests.count += 1
        try:
            await self._say(segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
            settings = self._settings
            work = self._host.offload(
                OffloadKind.REMOTE,
                _delete_objects,
                self._host.files,
                settings.url,
                settings.options,
                object_names(segment),
            )
            # What hangs keeps its thread, and not the other partitions; the deletion is done again in the next round.
            async with asyncio.timeout(_DELETE_SECONDS_MAX):
                await asyncio.shield(work)
            await self._say(segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        except BaseException:
            meters.delete_errors.count += 1
            raise
        self._reads.forget(segment.segment_id)
        self._logger.info(
            "Deleted remote segment %s of %s, with offsets %d to %d",
            *(segment.segment_id.id, segment.segment_id.partition, segment.start_offset, segment.end_offset),
        )

    async def _say(self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
        await self._topic.publish(
            RemoteLogSegmentUpdate(
                segment.segment_id, self._broker_id, self._host.clock.time_ms(), state, segment.custom_metadata
            )
        )

    # Deleted topics.

    def _begin_deletion(self, partition: TopicIdPartition) -> None:
        if partition not in self._deletions:
            task = self._host.loop.create_task(self._delete_partition(partition), name=f"delete-remote-{partition}")
            self._deletions[partition] = task
            task.add_done_callback(lambda _: self._deletions.pop(partition, None))

    async def _delete_partition(self, partition: TopicIdPartition) -> None:
        while True:
            try:
                cache = await self._topic.catch_up(partition)
                if not cache.segments() and cache.deletion is None:
                    return
                await self._say_deletion(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
                await self._say_deletion(partition, RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
                for segment in cache.segments():
                    await self._delete(segment)
                await self._say_deletion(partition, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
            except HostClosedError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a storage raises; nobody else would delete it
                self._logger.warning("Deleting what is in remote storage of %s: %r; trying again", partition, error)
                await self._timers.sleep(self._settings.task_interval_ms)
            else:
                self._metrics.sizes.pop(partition.topic_partition, None)
                self._logger.info("Deleted what was in remote storage of %s", partition)
                return

    async def _say_deletion(self, partition: TopicIdPartition, state: RemotePartitionDeleteState) -> None:
        known = self._topic.cache(partition).deletion
        if known is None or known < state:
            await self._topic.publish(
                RemotePartitionDeletion(partition, self._broker_id, self._host.clock.time_ms(), state)
            )


def _is_led_still(partition: Partition, log: PartitionLog) -> Callable[[], bool]:
    """Tells whether this broker leads the partition as it does now."""
    leader_epoch = partition.leader_epoch

    def is_still_due() -> bool:
        return (
            partition.is_leader
            and partition.leader_epoch == leader_epoch
            and partition.log is log
            and not log.is_closed
        )

    return is_still_due


def _readable_start(log: PartitionLog, cache: RemoteLogMetadataCache) -> Steps[int]:
    """Where what can be read of the log starts."""
    start_offset = log.local_log_start_offset
    for epoch, _ in log.leader_epochs.entries:
        for number, segment in enumerate(cache.segments_of(epoch), start=1):
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                return min(start_offset, segment.start_offset)
            if not number % _LOOKED_AT_PER_STEP:
                yield
    return start_offset


def _local_only_bytes(log: PartitionLog) -> Steps[int]:
    found, remote_end_offset = 0, log.remote_end_offset
    for number, segment in enumerate(log.segments.from_offset(remote_end_offset), start=1):
        if segment.base_offset >= remote_end_offset:
            found += segment.size_bytes
        if not number % _LOOKED_AT_PER_STEP:
            yield
    return found


def _delete_objects(files: Any, url: str, options: str, names: list[str]) -> None:
    store: RemoteStore = open_store(files, url, options)
    store.delete(names)
