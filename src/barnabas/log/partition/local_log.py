"""A partition's log as files: segments that roll and are given up, and the snapshots of producers beside them.

Apache Kafka calls it LocalLog. What the records in it mean, to producers, followers and consumers, is the matter of
`partition_log`.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any

from barnabas.log.partition.background_work import BackgroundWork
from barnabas.log.partition.loaded_log import LoadedLog
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.producers.producer_snapshots import (
    ProducerReplay,
    log_ranges,
    remove_foreign,
    remove_snapshots,
    replay_producers,
    write_snapshot,
)
from barnabas.log.producers.producer_state import ProducerState
from barnabas.log.segments.segment import Segment


class LocalLog:
    """The files of one log."""

    __slots__ = ("_files", "_flusher", "_is_new", "_loop_files", "_services", "_snapshots", "_state", "_work")

    def __init__(
        self, services: LogServices, state: LogState, work: BackgroundWork, flusher: LogFlusher, loaded: LoadedLog
    ) -> None:
        self._services = services
        self._files = services.host.files  # off the loop
        self._loop_files = state.log_directory.loop_files
        self._state = state
        self._work = work
        self._flusher = flusher
        self._is_new = loaded.is_new
        self._snapshots = set(loaded.snapshot_offsets)
        state.segments.active.jitter_ms = self._jitter_ms()

    # Segments.

    def segment_for(
        self, append_bytes: int, first_offset: int, last_offset: int, max_timestamp_ms: int, now_ms: int
    ) -> Segment:
        """The segment that an append belongs into, a new one where that is due. Raises OSError."""
        segment = self._state.segments.active
        if segment.should_roll(append_bytes, last_offset, max_timestamp_ms, now_ms):
            return self.roll(first_offset)
        return segment

    def roll(self, base_offset: int) -> Segment:
        """Begins a new segment; the one before it is synced in the background, and the producers' state is kept.

        Raises OSError.
        """
        state = self._state
        segments = state.segments
        completed = segments.active
        if completed.base_offset == base_offset and not completed.size_bytes:
            return completed
        completed.become_inactive()
        segment = self.new_segment(base_offset)
        segments.add(segment)
        self._flusher.segment_completed(completed)
        self._take_snapshot(base_offset)
        self._work.start(self._flusher.flush_quietly(base_offset))
        if self._is_new and state.config.is_compacted:
            # From now on a recovery may ask whether its segments follow one another.
            self._is_new = False
            self._work.start(self._checkpoint_recovery_points())
        self._services.logger.debug("%r: rolled new log segment at offset %d", state, base_offset)
        return segment

    async def _checkpoint_recovery_points(self) -> None:
        await self._services.checkpoint_recovery_points(self._state.log_directory)

    def new_segment(self, base_offset: int) -> Segment:
        """Makes the files of a segment, which is not in the list yet. Raises OSError."""
        state = self._state
        segment = Segment(
            self._loop_files,
            state.directory,
            base_offset,
            state.segment_config,
            created_ms=self._services.time_ms(),
            jitter_ms=self._jitter_ms(),
        )
        segment.create()
        self._flusher.segment_created()
        return segment

    def _jitter_ms(self) -> int:
        """How much earlier by time a segment rolls: logs made, or found, together shall not roll together."""
        config = self._state.config
        jitter_max_ms = min(config.segment_jitter_ms, config.segment_ms)
        return self._services.host.random.randrange(jitter_max_ms) if jitter_max_ms > 0 else 0

    async def flush_complete(self, end_offset: int) -> None:
        """Makes durable what lies below `end_offset`, in segments that take no more appends: where it is in the active
        one, another is begun first, whose name is durable too when this returns. Raises KafkaError when the disk fails.
        """
        state = self._state
        state.check_online()
        if end_offset > state.segments.active.base_offset:
            try:
                self.roll(state.log_end_offset)
            except OSError as error:
                raise state.storage_failed(error) from error
            # Before the loop turns: this sync takes the new name, and not the one of `roll`, which nobody waits for.
            await self._flusher.flush(state.log_end_offset)
        elif end_offset > state.recovery_point:
            await self._flusher.flush(end_offset)

    def give_up(self, removed: list[Segment], *, has_successor: bool = False) -> None:
        """Renames the files of segments that left the list, and lets them be deleted later; with `has_successor` the
        first of them is replaced by one that goes on with its snapshot. Raises OSError."""
        state = self._state
        paths: list[str] = []
        offsets = []
        for segment in removed:
            paths += segment.mark_deleted()
            segment.let_go()
            offsets.append(segment.base_offset)
        self._flusher.segments_given_up(removed)
        self._services.deletions.delete_files(paths, state.config.file_delete_delay_ms, state.log_directory.fail)
        snapshots = [offset for offset in offsets[has_successor:] if offset in self._snapshots]
        self._snapshots.difference_update(snapshots)
        if snapshots:
            self._work.start(self._work.offload_disk(remove_snapshots, self._files, state.directory, snapshots))

    # Snapshots of producers.

    def _take_snapshot(self, offset: int) -> asyncio.Task[None]:
        """Writes the producers' state off the loop. A loss of it costs time at the next recovery and nothing else."""
        state = self._state
        state.producers.end_offset = offset
        self._snapshots.add(offset)
        entries = state.producers.snapshot()
        return self._work.start(self._work.offload_disk(write_snapshot, self._files, state.directory, offset, entries))

    def last_snapshots(self, offset: int, count: int) -> list[int]:
        """The largest offsets of which there should be a snapshot, up to `offset`."""
        first = self._state.segments.first.base_offset
        return heapq.nlargest(count, (each for each in self._snapshots if first <= each <= offset))

    async def keep_snapshot(self, offset: int) -> None:
        """Writes the producers' state, of which nothing in the log tells. Raises OSError."""
        await self._take_snapshot(offset)

    async def complete_snapshots(self) -> None:
        """For a clean stop: keeps the producers' state at the log's end. Raises OSError."""
        state = self._state
        has_producers = bool(self._snapshots) or state.producers.changed_end_offset > 0
        # What is known of producers while a truncation has not succeeded is not that of this log.
        if has_producers and state.log_end_offset not in self._snapshots and not state.is_truncating:
            self._take_snapshot(state.log_end_offset)
            await asyncio.gather(*self._work.tasks())

    def forget_snapshots_behind(self, offset: int) -> list[int]:
        """Takes later snapshots for none of this log's any more; returns their offsets, for `remove_snapshots`."""
        stale = sorted(each for each in self._snapshots if each > offset)
        self._snapshots.difference_update(stale)
        return stale

    async def remove_snapshots(self, offsets: list[int]) -> None:
        """Removes their files. Raises OSError."""
        await self._work.offload_disk(remove_snapshots, self._files, self._state.directory, offsets)

    async def replayed_producers(self, end_offset: int) -> ProducerState:
        """The producers' state, built from snapshots and log. Raises OSError and RecordsError."""
        state = self._state
        segments = list(state.segments)
        replay = ProducerReplay(
            directory=state.directory,
            snapshot_offsets=tuple(sorted(self._snapshots)),
            ranges=log_ranges(segments, self._snapshots, end_offset),
            log_start_offset=state.log_start_offset,
            end_offset=end_offset,
            now_ms=self._services.time_ms(),
            expiration_ms=state.producers.expiration_ms,
            transaction_timeout_max_ms=state.producers.transaction_timeout_max_ms,
        )
        for segment in segments:
            segment.pin()
        try:
            return await self._work.offload_disk(replay_producers, self._files, replay, self._services.logger)
        finally:
            for segment in segments:
                segment.unpin()

    # Ending.

    def close(self) -> None:
        """Completes the files and lets go of the descriptors."""
        for segment in self._state.segments:
            segment.close()

    def let_go(self) -> None:
        """Closes the descriptors and writes nothing."""
        for segment in self._state.segments:
            segment.let_go()

    def move(self, directory: str) -> None:
        """Renames the directory, and knows everything in it by the new name. Raises OSError."""
        before = self._state.directory
        self._loop_files.rename(before, directory)
        self._state.directory = directory
        for segment in self._state.segments:
            segment.move(directory)
        self._services.deletions.directory_moved(before, directory)

    async def remove_foreign(self, ended: asyncio.Future[Any]) -> None:
        """Removes what is not this log's when `ended` is, the last work of one in a directory of the same name."""
        await asyncio.wait([ended])
        await self._work.offload_disk(remove_foreign, self._files, self._state.directory, frozenset(self._snapshots))
        self._state.epochs_changed = True
