"""How the log of a partition becomes durable: what is written and synced, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from barnabas.kernel.host import OffloadKind
from barnabas.kernel.ids import Uuid
from barnabas.log.directories.directory_files import write_partition_metadata
from barnabas.log.directories.names import LEADER_EPOCH_CHECKPOINT
from barnabas.log.partition.background_work import BackgroundWork
from barnabas.log.partition.flushing import FlushWork, perform_flush
from barnabas.log.partition.loaded_log import LoadedLog
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.partition.write_queue import Written
from barnabas.log.segments.segment import Segment
from barnabas.wire.errors import KafkaError


class LogFlusher:
    """Writes and syncs one log; what the write queue knows of it."""

    __slots__ = (
        "_complete_end_offset",
        "_held_by",
        "_is_new_directory",
        "_last_flush",
        "_metadata_is_written",
        "_names_changed",
        "_services",
        "_state",
        "_unsynced",
        "_work",
        "last_flush_ms",
        "written",
    )

    def __init__(self, services: LogServices, state: LogState, work: BackgroundWork, loaded: LoadedLog) -> None:
        self.written = Written()
        self.last_flush_ms = services.time_ms()
        self._services = services
        self._state = state
        self._work = work
        self._unsynced = list(loaded.unsynced_segments)
        self._names_changed = loaded.is_new
        self._is_new_directory = loaded.is_new
        self._metadata_is_written = loaded.has_metadata_file
        self._complete_end_offset = loaded.complete_end_offset
        self._last_flush: asyncio.Task[None] | None = None
        self._held_by: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return repr(self._state)

    # What has changed.

    def topic_id_assigned(self) -> None:
        """`partition.metadata` is to be written before the next append counts."""
        self._metadata_is_written = False

    def hold_until(self, done: asyncio.Future[None]) -> None:
        """Nothing that is appended from now on counts as written before `done` is, which never fails."""
        self._held_by = done
        self._metadata_is_written = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing but records is left to be made durable."""
        return self._metadata_is_written and not (self._names_changed or self._is_new_directory)

    def segment_created(self) -> None:
        """The directory has got new names."""
        self._names_changed = True

    def segment_completed(self, segment: Segment) -> None:
        """A segment takes no more appends, and is to be synced with its indexes."""
        self._unsynced.append(segment)

    def segments_given_up(self, removed: Sequence[Segment]) -> None:
        """Nothing of these need be durable any more but that they have gone."""
        self._names_changed = True
        self._unsynced = [segment for segment in self._unsynced if segment not in removed]

    # Writing.

    def queue(self) -> None:
        """Sees to it that what was appended gets written, and counts as written no sooner than it may."""
        state = self._state
        state.log_directory.has_appends = True
        # As `must_sync` has it, which costs as much as the rest when it is asked for every append.
        if (
            state.segments.active.pending
            or not self._metadata_is_written
            or state.log_end_offset - state.recovery_point >= state.config.flush_messages
        ):
            self._services.write_queue.add(self)

    def write_pending(self) -> KafkaError | None:
        """For the write queue: brings what was appended to the file."""
        state = self._state
        if state.refusal is not None and (state.is_offline or state.is_closed):
            return state.refused()
        try:
            state.segments.active.write_pending()
        except OSError as error:
            return state.storage_failed(error)
        return None

    @property
    def must_sync(self) -> bool:
        """Whether something must be durable before appends are acknowledged: the records where `flush.messages` has
        come, the topic's id before the first record, and the directory's name where the log has just taken the place of
        another.
        """
        state = self._state
        return (
            not self._metadata_is_written or state.log_end_offset - state.recovery_point >= state.config.flush_messages
        )

    def start_sync(self) -> asyncio.Future[KafkaError | None]:
        """For the write queue: begins what `must_sync` asks for."""
        return self._work.start(self._sync())

    async def _sync(self) -> KafkaError | None:
        state = self._state
        try:
            if self._held_by is not None:
                await asyncio.shield(self._held_by)
                self._held_by = None
            if not self._metadata_is_written:
                await self._write_metadata()
            if state.log_end_offset - state.recovery_point >= state.config.flush_messages:
                await self.flush()
        except KafkaError as error:
            return error
        return None

    async def _write_metadata(self) -> None:
        topic_id: Uuid | None = self._state.topic_id
        if topic_id is None:
            self._metadata_is_written = True
            return
        try:
            # In order: two at a time would take each other's temporary file away.
            await self._services.offload(
                *(OffloadKind.SYNC, write_partition_metadata, self._services.host.files),
                *(self._state.directory, topic_id),
                directory=self._state.log_directory,
                order=self._state.directory,
            )
        except OSError as error:
            raise self._state.storage_failed(error) from error
        self._metadata_is_written = True

    # Syncing.

    async def flush(self, up_to: int | None = None) -> None:
        """Makes durable what lies below `up_to` (all of it where that is None), and moves the recovery point there.

        Invariants: the recovery point moves only after this sync and those that were begun before it, and not past a
        truncation that came meanwhile or is about to; the epochs that begin below it are in their checkpoint before it
        moves, since a recovery reads only what is above.
        Raises KafkaError when the disk fails: a sync that failed is never tried again, the directory is given up.
        """
        state, services = self._state, self._services
        state.check_online()
        end_offset = state.log_end_offset if up_to is None else min(up_to, state.log_end_offset)
        if end_offset <= state.recovery_point and not self._unsynced and not state.epochs_changed:
            return
        truncations = state.truncations
        try:
            work, pinned = self._prepare_flush(end_offset)
        except OSError as error:
            raise state.storage_failed(error) from error
        started = services.host.loop.time()
        flush = self._last_flush = self._work.start(self._flush_after(self._last_flush, work, pinned))
        try:
            await asyncio.shield(flush)
        except OSError as error:
            raise state.storage_failed(error) from error
        if state.is_offline:  # the one before has failed
            state.check_online()
        services.flush_timing.update(round((services.host.loop.time() - started) * 1000))
        self.last_flush_ms = services.time_ms()
        if truncations == state.truncations and not state.coming_truncations and end_offset > state.recovery_point:
            state.recovery_point = end_offset

    async def flush_quietly(self, up_to: int) -> None:
        """`flush` for what nobody waits for: a failure is logged."""
        try:
            await self.flush(up_to)
        except KafkaError as error:
            self._services.logger.warning("%r: flush up to %d failed: %s", self, up_to, error)

    def _prepare_flush(self, end_offset: int) -> tuple[FlushWork, list[Segment]]:
        state = self._state
        sealed, self._unsynced = self._unsynced, []
        descriptors: list[int] = []
        for segment in sealed:
            descriptors += segment.prepare_sync().descriptors
        pinned = list(sealed)
        active = state.segments.active
        if end_offset > active.base_offset:
            descriptors.append(active.data_descriptor())
            pinned.append(active)
        directories: list[str] = []
        if self._names_changed:
            directories.append(state.directory)
            self._names_changed = False
        if self._is_new_directory:
            directories.append(state.log_directory.path)
            self._is_new_directory = False
        epochs = None
        if state.epochs_changed:
            epochs = state.leader_epochs.entries
            state.epochs_changed = False
        for segment in pinned:
            segment.pin()
        path = f"{state.directory}/{LEADER_EPOCH_CHECKPOINT}"
        return FlushWork(tuple(descriptors), tuple(directories), path, epochs), pinned

    async def _flush_after(self, earlier: asyncio.Task[None] | None, work: FlushWork, pinned: list[Segment]) -> None:
        """Ends after the flush before it, which has taken what this one did not find any more, and which may have had
        to wait longer for a place off the loop.
        """
        await self._perform_flush(work, pinned)
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])

    async def _perform_flush(self, work: FlushWork, pinned: list[Segment]) -> None:
        services, state = self._services, self._state
        try:
            await services.offload(
                *(OffloadKind.SYNC, perform_flush, services.host.files, work),
                directory=state.log_directory,
                order=state.directory,
            )
        finally:
            for segment in pinned:
                segment.unpin()

    async def sync_what_is_left(self) -> None:
        """After a truncation: makes the end of the active segment and the removal of others durable, and then the
        epochs that are left. Raises OSError.
        """
        state = self._state
        active = state.segments.active
        work = FlushWork((active.data_descriptor(),), (state.directory,), "", None)
        active.pin()
        await self._perform_flush(work, [active])
        if state.epochs_changed:
            epochs = state.leader_epochs.entries
            state.epochs_changed = False
            work = FlushWork((), (), f"{state.directory}/{LEADER_EPOCH_CHECKPOINT}", epochs)
            await self._perform_flush(work, [])

    async def forget_stored_epochs(self) -> None:
        """Empties the checkpoint of the epochs; the next flush writes them again. Nobody appends meanwhile. Raises
        OSError."""
        state = self._state
        work = FlushWork((), (), f"{state.directory}/{LEADER_EPOCH_CHECKPOINT}", ())
        try:
            await self._perform_flush(work, [])
        finally:
            state.epochs_changed = True

    async def prepare(self) -> None:
        """Writes the topic's id where that is still due, and makes names durable, of a log without records too. Raises
        KafkaError."""
        state = self._state
        if not self._metadata_is_written:
            await self._write_metadata()
        if self._names_changed or self._is_new_directory:
            directories = (state.directory, state.log_directory.path)
            self._names_changed = self._is_new_directory = False
            try:
                await self._perform_flush(FlushWork((), directories, "", None), [])
            except OSError as error:
                raise state.storage_failed(error) from error

    async def complete(self) -> None:
        """For a clean stop: syncs everything, the indexes of the active segment too, since it is loaded as it is.

        Raises OSError and KafkaError.
        """
        if not self._metadata_is_written:
            await self._write_metadata()
        if self._state.log_end_offset != self._complete_end_offset:
            self._unsynced.append(self._state.segments.active)
        await self.flush()
