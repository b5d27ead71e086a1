"""Loading one partition directory: what a crash has left is put right. Everything here belongs off the loop.

After a clean stop the files are taken as they are. After any other end the segments from the recovery point on, and
the last one in any case, are read from end to end: the first damaged batch ends the log. What lies below the recovery
point was synced, with its indexes, and is not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from barnabas.kernel.host import Files
from barnabas.kernel.ids import Uuid
from barnabas.log.directories.checkpoints import CorruptCheckpointError, EpochEntry, read_epochs
from barnabas.log.directories.deletions import remove
from barnabas.log.directories.directory_files import CorruptDirectoryFileError, read_partition_metadata
from barnabas.log.directories.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_segment_file,
)
from barnabas.log.manager.leftovers import remove_leftovers
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.log.partition.loaded_log import LoadedLog
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.producers.batch_headers import marker_in
from barnabas.log.producers.producer_snapshots import (
    ProducerReplay,
    log_ranges,
    new_state,
    remove_snapshots,
    replay_producers,
)
from barnabas.log.producers.producer_state import ProducerState, ProducerStateError
from barnabas.log.segments.batch_scan import scan_batches
from barnabas.log.segments.checked_batches import CheckedBatch, read_batch
from barnabas.log.segments.index_file import CorruptIndexError
from barnabas.log.segments.log_segments import LogSegments
from barnabas.log.segments.segment import Segment
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import CorruptRecordError, RecordsError
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition

ANY_OFFSET: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What is known of a log before it is loaded."""

    partition: TopicPartition
    directory: str
    config: LogConfig
    settings: LogSettings
    recovery_point: int
    """As checkpointed; 0 where it is not."""
    log_start_offset: int
    was_clean: bool
    gaps_end_offset: int
    """Segments that begin there or before need not follow one another: the cleaner may have been there."""
    now_ms: int
    is_tiered: bool = False
    """What is before the first segment may be in remote storage."""


@dataclass(slots=True)
class LoadProgress:
    """What a load in another thread tells the loop."""

    segments_remaining: int = 0
    """Segments that are to be read from end to end yet."""
    batches_read: int = 0
    """Of those segments so far: it grows as long as the load goes on."""


@dataclass(slots=True)
class _Loading:
    """One load on its way."""

    files: Files
    request: LoadRequest
    logger: logging.Logger
    progress: LoadProgress
    segments: list[Segment] = field(default_factory=list)
    snapshot_offsets: list[int] = field(default_factory=list)
    unsynced: list[Segment] = field(default_factory=list)

    @property
    def directory(self) -> str:
        return self.request.directory

    def run(self) -> LoadedLog:
        request = self.request
        names = remove_leftovers(self.files, self.directory, self.logger)
        self._open_segments(names)
        stored = self._read_epochs()
        epochs = LeaderEpochCache(stored)
        if request.was_clean:
            producers = self._load_clean()
        else:
            producers = self._recover(epochs)
        if not self.segments:
            producers = self._begin_anew(epochs, request.log_start_offset)
        elif self.segments[-1].next_offset < request.log_start_offset:
            # What is there was deleted, and the checkpoint of the start survived what came behind it.
            self.logger.warning(
                "%s ends at %d, before its log start offset %d: all of it is deleted",
                self.directory,
                self.segments[-1].next_offset,
                request.log_start_offset,
            )
            self._drop(self.segments)
            producers = self._begin_anew(epochs, request.log_start_offset)
        elif request.is_tiered and self._lacks_auxiliary_state(epochs):
            self.logger.warning("%s has no leader epochs of what is in remote storage: beginning anew", self.directory)
            self._drop(self.segments)
            producers = self._begin_anew(epochs, request.log_start_offset)
        epochs = self._with_epochs_of_head(epochs)
        self.segments[-1].read_age()
        end_offset = self.segments[-1].next_offset
        start_offset = max(request.log_start_offset, self._least_start_offset(epochs))
        epochs.truncate_from_end(end_offset)
        epochs.truncate_from_start(start_offset)
        self._remove_stray_snapshots(end_offset)
        producers.log_start_moved(start_offset)
        for segment in self.segments:
            segment.rest()
        return LoadedLog(
            directory=self.directory,
            topic_id=self._read_topic_id(),
            has_metadata_file=True,
            segments=LogSegments(self.segments),
            leader_epochs=epochs,
            epochs_changed=list(epochs.entries) != stored,
            producers=producers,
            snapshot_offsets=self.snapshot_offsets,
            log_start_offset=start_offset,
            log_end_offset=end_offset,
            recovery_point=end_offset if request.was_clean else min(request.recovery_point, end_offset),
            complete_end_offset=end_offset if request.was_clean and not self.unsynced else -1,
            unsynced_segments=[segment for segment in self.unsynced if segment in self.segments[:-1]],
        )

    def _least_start_offset(self, epochs: LeaderEpochCache) -> int:
        """Where the log starts at the earliest. One that is tiered may start before its first segment, but not before
        its first leader epoch, which moves with the start, and whose checkpoint may be the newer one; nor does it lose
        what is here without an epoch, of a message format before 0.11.
        """
        base_offset = self.segments[0].base_offset
        earliest = epochs.earliest()
        if not self.request.is_tiered:
            return base_offset
        return 0 if earliest is None else min(earliest.start_offset, base_offset)

    def _with_epochs_of_head(self, epochs: LeaderEpochCache) -> LeaderEpochCache:
        """The epochs of a tiered log, with those of records that come before the first of them: the checkpoint was
        lost, or was newer than that of the log's start. Nothing is found in remote storage without its epoch."""
        earliest = epochs.earliest()
        head_end = self.segments[-1].next_offset if earliest is None else earliest.start_offset
        if not self.request.is_tiered or self.segments[0].base_offset >= head_end:
            return epochs
        found = LeaderEpochCache()
        try:
            for segment in self.segments:
                if segment.base_offset >= head_end:
                    break
                for _, batch in scan_batches(self.files, segment.data_descriptor(), 0, segment.size_bytes):
                    if batch.base_offset >= head_end:
                        break
                    if isinstance(batch, RecordBatch) and batch.header.partition_leader_epoch > NO_EPOCH:
                        found.assign(batch.header.partition_leader_epoch, batch.base_offset)
        except CorruptRecordError as error:
            self.logger.warning("%s: the leader epochs of its first records are not known: %s", self.directory, error)
        for entry in epochs.entries:
            found.assign(*entry)
        return found

    def _lacks_auxiliary_state(self, epochs: LeaderEpochCache) -> bool:
        """A follower has begun a log behind what is in remote storage, and a crash came before its epochs were written:
        it is to be begun again."""
        first = self.segments[0]
        has_none = first is self.segments[-1] and first.next_offset == first.base_offset and not epochs.entries
        return has_none and first.base_offset > self.request.log_start_offset

    # Opening.

    def _open_segments(self, names: list[str]) -> None:
        """Makes a segment of each log file; files that belong to none go."""
        parsed = [(name, found) for name in names if (found := parse_segment_file(name)) is not None]
        bases = {found.offset for _, found in parsed if found.suffix == LOG_SUFFIX}
        for name, found in parsed:
            if found.suffix == PRODUCER_SNAPSHOT_SUFFIX:
                self.snapshot_offsets.append(found.offset)
            elif found.offset not in bases and found.suffix in (
                OFFSET_INDEX_SUFFIX,
                TIME_INDEX_SUFFIX,
                TRANSACTION_INDEX_SUFFIX,
            ):
                self.logger.warning("Removing index %s/%s, whose log file is missing", self.directory, name)
                self.files.unlink(f"{self.directory}/{name}")
        config = self.request.config.segment_config
        for base in sorted(bases):
            self.segments.append(Segment(self.files, self.directory, base, config, created_ms=self.request.now_ms))
        self.snapshot_offsets.sort()

    def _read_epochs(self) -> list[EpochEntry]:
        path = f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"
        try:
            return read_epochs(self.files, path)
        except CorruptCheckpointError as error:
            self.logger.warning("Ignoring a leader epoch checkpoint that cannot be read: %s", error)
            return []

    def _read_topic_id(self) -> Uuid | None:
        try:
            return read_partition_metadata(self.files, self.directory)
        except CorruptDirectoryFileError as error:
            # It is written before the first record and replaced as a whole: a file like that has never been ours.
            self.logger.warning("Ignoring a topic id that cannot be read: %s", error)
            return None

    # After a clean stop.

    def _load_clean(self) -> ProducerState:
        for number in range(len(self.segments)):
            self._load_or_recover(number)
        end_offset = self.segments[-1].next_offset if self.segments else self.request.log_start_offset
        if not self.snapshot_offsets:
            # A log that no producer with an id has written to; Kafka concludes the same.
            return new_state(self._replay(self.segments, end_offset))
        return replay_producers(self.files, self._replay(self.segments, end_offset), self.logger)

    def _load_or_recover(self, number: int) -> None:
        """Takes a segment as it is; where an index is missing or cannot be right, builds the indexes from the log."""
        segment = self.segments[number]
        try:
            segment.load()
        except (FileNotFoundError, CorruptIndexError, RecordsError) as error:
            self.logger.warning("Rebuilding the indexes of %s: %s", segment.path, error)
            segment.let_go()
            state = replay_producers(self.files, self._replay(self.segments[:number], segment.base_offset), self.logger)
            cut_bytes = segment.recover(_Replay(self.files, segment, state, None, self.logger, self.progress))
            if cut_bytes:
                self.logger.warning("%s was damaged: %d bytes are lost", segment.path, cut_bytes)
            self.unsynced.append(segment)

    # After any other end.

    def _recover(self, epochs: LeaderEpochCache) -> ProducerState:
        """Invariant: what lies below the recovery point stays; what lies above ends with the first batch that is
        damaged, does not follow the one before, or has an older leader epoch. Nothing behind that place is kept, since
        records there would follow a hole.
        """
        segments = self.segments
        if not segments:
            return new_state(self._replay((), self.request.log_start_offset))
        first = 0
        while first + 1 < len(segments) and segments[first + 1].base_offset <= self.request.recovery_point:
            first += 1
        for number in range(first):
            self._load_or_recover(number)
            if segments[number].next_offset > segments[number + 1].base_offset:
                # It was truncated before the next one was begun, and the loss of power has undone that.
                segments[number].truncate_to(segments[number + 1].base_offset)
                self.unsynced.append(segments[number])
        if self.request.is_tiered:
            first -= self._drop_before_gaps(first)
        start = segments[first].base_offset
        epochs.truncate_from_end(start)
        state = replay_producers(self.files, self._replay(segments[:first], start), self.logger)
        for number in range(first, len(segments)):
            self.progress.segments_remaining = len(segments) - number
            segment = segments[number]
            if number > first and not self._follows(segments[number - 1], segment):
                self.logger.warning(
                    "%s does not go on where the segment before it ends, at %d: it and all after it are dropped",
                    segment.path,
                    segments[number - 1].next_offset,
                )
                self._drop(segments[number:])
                break
            # Batches that the next segment has too were cut off before that one was begun; a loss of power has undone
            # the cut.
            limit = segments[number + 1].base_offset if number + 1 < len(segments) else None
            cut_bytes = segment.recover(_Replay(self.files, segment, state, epochs, self.logger, self.progress), limit)
            self.unsynced.append(segment)
            if cut_bytes and segment.next_offset != limit:
                self.logger.warning(
                    "%s: %d bytes after offset %d were cut off: a crash has torn them, or they never were whole",
                    segment.path,
                    cut_bytes,
                    segment.next_offset - 1,
                )
                self.files.fsync(segment.data_descriptor())  # they must not come back behind what follows
                self._drop(segments[number + 1 :])
                break
        self.progress.segments_remaining = 0
        end_offset = segments[-1].next_offset
        state.end_offset = end_offset
        return state

    def _drop_before_gaps(self, first: int) -> int:
        """Drops what is before a gap below the recovery point, and returns how many segments that are.

        Invariant: the segments of a tiered log follow one another, or records in remote storage would be passed over.
        Nothing but a loss of power leaves a gap there, when it has undone some of the deletions of local retention and
        not others; all of them are in remote storage, or before the start of the log. But for the cleaner, where the
        topic was compacted before it was tiered: nothing is dropped for what it has left.
        """
        segments = self.segments
        count = 0
        for number in range(first):
            if not self._follows(segments[number], segments[number + 1]):
                count = number + 1
        if count:
            self.logger.warning(
                "Dropping %d segments of %s that were deleted: the one behind them is gone", count, self.directory
            )
            self._drop(segments[:count])
        return count

    def _follows(self, earlier: Segment, later: Segment) -> bool:
        """Only the cleaner leaves gaps between segments (a follower begins a segment where its log ends), and it leaves
        them below the checkpoint of the recovery points. Any other one is a hole: a loss of power has taken the end of
        a segment and not the one behind it, and nobody would ever fetch what is missing.

        It is no deletion that a loss of power has undone in part: retention deletes nothing above the recovery point in
        its checkpoint (see `retention`), and a truncation syncs its names before anything follows. Below that point
        nobody asks.
        """
        if later.base_offset == earlier.next_offset:
            return True
        return earlier.next_offset < later.base_offset <= self.request.gaps_end_offset

    def _drop(self, doomed: list[Segment]) -> None:
        """Removes segments that cannot be used."""
        for segment in list(doomed):
            segment.let_go()
            remove(self.files, segment.mark_deleted())
            self.segments.remove(segment)

    def _begin_anew(self, epochs: LeaderEpochCache, offset: int) -> ProducerState:
        epochs.clear()
        segment = Segment(
            self.files, self.directory, offset, self.request.config.segment_config, created_ms=self.request.now_ms
        )
        segment.create()
        self.segments.append(segment)
        return new_state(self._replay((), offset))

    # Producers.

    def _replay(self, segments: Sequence[Segment], end_offset: int) -> ProducerReplay:
        """The state at `end_offset`, of segments that are open."""
        settings = self.request.settings
        return ProducerReplay(
            directory=self.directory,
            snapshot_offsets=self._usable_snapshots(end_offset),
            ranges=log_ranges(segments, self.snapshot_offsets, end_offset),
            log_start_offset=self.request.log_start_offset,
            end_offset=end_offset,
            now_ms=self.request.now_ms,
            expiration_ms=settings.producer_id_expiration_ms,
            transaction_timeout_max_ms=settings.transaction_timeout_max_ms,
        )

    def _usable_snapshots(self, end_offset: int) -> tuple[int, ...]:
        """Those of the log's own offsets. Between an older one and the first segment batches are missing, which its
        producers may have gone on with; and what is behind the end was cut off.
        """
        first = self.segments[0].base_offset if self.segments else 0
        return tuple(offset for offset in self.snapshot_offsets if first <= offset <= end_offset)

    def _remove_stray_snapshots(self, end_offset: int) -> None:
        """Snapshots of what is not in the log any more must not come back, so their removal is made durable."""
        within = self._usable_snapshots(end_offset)
        bases = {segment.base_offset for segment in self.segments}
        kept = [offset for offset in within if offset in bases or offset == within[-1]]
        stray = [offset for offset in self.snapshot_offsets if offset not in kept]
        if stray:
            remove_snapshots(self.files, self.directory, stray)
            self.files.fsync_directory(self.directory)
        self.snapshot_offsets = kept


class _Replay:
    """Takes epochs and producers from the batches that a recovery finds whole."""

    def __init__(
        self,
        files: Files,
        segment: Segment,
        state: ProducerState,
        epochs: LeaderEpochCache | None,
        logger: logging.Logger,
        progress: LoadProgress,
    ) -> None:
        self._files = files
        self._progress = progress
        self._segment = segment
        self._state = state
        self._epochs = epochs
        self._logger = logger
        # What was assigned last: saying it again, as most batches do, would change nothing.
        self._epoch = NO_EPOCH
        self._epoch_from = 0

    def __call__(self, checked: CheckedBatch, descriptor: int) -> None:
        """Raises CorruptRecordError for an epoch that goes back: the batch was cut off once, and has come back."""
        self._progress.batches_read += 1
        header = checked.header
        if header is None:
            return  # older messages know neither producers nor epochs
        epoch = header.partition_leader_epoch
        if epoch != self._epoch or header.base_offset < self._epoch_from:
            self._take_epoch(epoch, header.base_offset)
        if not header.has_producer_id:
            return  # the state's end is set when all is read
        marker = marker_in(read_batch(self._files, descriptor, checked)) if header.is_control else None
        try:
            aborted = self._state.replay(header, marker)
        except ProducerStateError as error:
            self._logger.warning("%s: %s", self._segment.path, error)
            return
        if aborted is not None:
            self._segment.transaction_index.append(aborted)

    def _take_epoch(self, epoch: int, base_offset: int) -> None:
        if self._epochs is None or epoch < 0:
            return
        if epoch < self._epochs.latest_epoch:
            raise CorruptRecordError(
                f"leader epoch {epoch} at offset {base_offset} comes after {self._epochs.latest_epoch}"
            )
        self._epochs.assign(epoch, base_offset)
        self._epoch, self._epoch_from = epoch, base_offset


def load_log(files: Files, request: LoadRequest, logger: logging.Logger, progress: LoadProgress) -> LoadedLog:
    """Loads a log, and recovers it where that is due. Raises OSError."""
    return _Loading(files, request, logger, progress).run()
