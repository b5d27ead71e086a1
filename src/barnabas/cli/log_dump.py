"""Goes through the files of a log directory for `barnabas log dump`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.log_files import partition_of, segment_file
from barnabas.cli.log_report import BatchTotals, LogReport
from barnabas.kernel.host import Files
from barnabas.log.directories.checkpoints import CorruptCheckpointError, parse_epochs, parse_offsets
from barnabas.log.directories.directory_files import (
    CorruptDirectoryFileError,
    read_meta_properties,
    read_partition_metadata,
)
from barnabas.log.directories.files import read_file
from barnabas.log.directories.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    SegmentFileName,
    parse_segment_file,
)
from barnabas.log.inspection.batch_inspection import BatchFacts, Damage, inspect_batches, read_batch
from barnabas.log.inspection.index_inspection import (
    IndexEntry,
    Mismatch,
    Reserved,
    inspect_offset_index,
    inspect_time_index,
    inspect_transaction_index,
    verify_offset_index,
    verify_time_index,
    verify_transaction_index,
)
from barnabas.log.producers.producer_snapshot import CorruptSnapshotError, parse_snapshot
from barnabas.tiered.object_names import ObjectKind, parse_prefix
from barnabas.wire.control_records import ControlRecordType, read_control_record_type
from barnabas.wire.record_errors import RecordsError

SMALL_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""The largest checkpoint or snapshot that is read."""


class LogDumper:
    """Goes through files and directories."""

    def __init__(self, files: Files, report: LogReport, *, shows_records: bool, verifies: bool) -> None:
        self._files = files
        self._report = report
        self._shows_records = shows_records
        self._verifies = verifies

    def dump(self, path: str) -> None:
        """A file or a directory that the user named. Raises OSError, and CommandError where it is neither."""
        path = path.rstrip("/") if "://" in path else os.path.normpath(path)
        if not self._files.status(path).is_directory:
            self._dump_file(path)
        elif partition_of(os.path.basename(os.path.abspath(path))) is not None:
            self._dump_partition(path)
        else:
            self._dump_log_directory(path)

    def _dump_partition(self, path: str) -> None:
        names = self._files.list_directory(path)
        own = [name for name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT) if name in names]
        segment_files = [name for name in names if segment_file(name) is not None]
        for name in (*own, *sorted(segment_files, key=self._place_in_directory)):
            # What a running broker deletes meanwhile is gone, and nothing is wrong.
            with suppress(FileNotFoundError):
                self._dump_file(f"{path}/{name}")

    def _dump_log_directory(self, path: str) -> None:
        names = self._files.list_directory(path)
        own = [name for name in names if name in self._SMALL_FILES]
        partitions = [name for name in names if partition_of(name) is not None and self._is_directory(f"{path}/{name}")]
        if not own and not partitions:
            raise CommandError(
                f"{path} is neither a log directory nor a partition directory such as flights-0, and has none of their"
                " files",
                ExitStatus.MISSING,
            )
        for name in own:
            self._dump_file(f"{path}/{name}")
        self._report.partitions([self._partition_facts(f"{path}/{name}", name) for name in partitions])

    def _is_directory(self, path: str) -> bool:
        """False also for what a running broker has deleted meanwhile."""
        try:
            return self._files.status(path).is_directory
        except FileNotFoundError:
            return False

    def _partition_facts(self, path: str, name: str) -> dict[str, Any]:
        segments = size_bytes = 0
        remote = parse_prefix(name)
        topic_id = None if remote is None else remote.topic_id
        with suppress(FileNotFoundError, CorruptDirectoryFileError):
            for each in self._files.list_directory(path):
                if each.endswith(LOG_SUFFIX):
                    size_bytes += self._files.status(f"{path}/{each}").size_bytes
                    segments += 1
            # A topic's name may end as if it had an id behind it.
            topic_id = read_partition_metadata(self._files, path) or topic_id
        return {
            "directory": name,
            "segments": segments,
            "size_bytes": size_bytes,
            "topic_id": None if topic_id is None else str(topic_id),
        }

    def _dump_file(self, path: str) -> None:
        name = os.path.basename(path)
        parsed = segment_file(name)
        if parsed is not None and parsed.suffix in self._SEGMENT_FILES:
            self._SEGMENT_FILES[parsed.suffix](self, path, parsed)
        elif name in self._SMALL_FILES:
            kind, show = self._SMALL_FILES[name]
            self._report.file(path, kind, self._files.status(path).size_bytes)
            show(self, path)
        else:
            raise CommandError(
                f"{path} is not named like a file of a log directory: segment files are 20 digits and .log, .index, "
                ".timeindex, .txnindex or .snapshot; in remote storage the id of a copy is between, and"
                " .leader-epoch-checkpoint is one of them"
            )

    def _place_in_directory(self, name: str) -> tuple[int, str, int, str]:
        """By segment, or by copy of one, and there in the order of what is shown."""
        parsed = segment_file(name)
        if parsed is None:
            raise ValueError(f"{name} belongs to no segment")
        suffixes = list(self._SEGMENT_FILES)
        place = suffixes.index(parsed.suffix) if parsed.suffix in suffixes else len(suffixes)
        return parsed.offset, name.removesuffix(parsed.suffix + parsed.state_suffix), place, name

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        descriptor = self._files.open(path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            self._files.close(descriptor)

    # Files of a segment.

    def _show_log(self, path: str, name: SegmentFileName) -> None:
        partition = partition_of(os.path.basename(os.path.dirname(os.path.abspath(path))))
        topic = None if partition is None else partition.topic
        totals = BatchTotals()
        damage: Damage | None = None
        with self._opened(path) as descriptor:
            self._report.file(path, "segment", self._files.size(descriptor), base_offset=name.offset)
            for found in inspect_batches(self._files, descriptor):
                if isinstance(found, Damage):
                    damage = found
                    break
                if not totals.batches:
                    self._report.batch_headings()
                totals.add(found)
                self._report.batch(found)
                if self._shows_records and found.fault is None:
                    self._show_records(descriptor, found, topic)
        self._report.totals(totals)
        if damage is not None:
            self._report.damage(damage)

    def _show_records(self, descriptor: int, facts: BatchFacts, topic: str | None) -> None:
        try:
            for record in read_batch(self._files, descriptor, facts).records():
                self._report.record(record, topic, is_control=facts.is_control)
        except RecordsError as error:
            self._report.unreadable(facts.position, str(error))

    def _show_offset_index(self, path: str, name: SegmentFileName) -> None:
        self._show_index(
            path,
            name,
            "offset_index",
            lambda file: inspect_offset_index(self._files, file, name.offset),
            verify_offset_index,
        )

    def _show_time_index(self, path: str, name: SegmentFileName) -> None:
        self._show_index(
            path, name, "time_index", lambda file: inspect_time_index(self._files, file, name.offset), verify_time_index
        )

    def _show_transaction_index(self, path: str, name: SegmentFileName) -> None:
        with self._log_beside(path, name) as log:
            self._show_index(
                path,
                name,
                "transaction_index",
                lambda file: inspect_transaction_index(self._files, file),
                lambda entries, batches: verify_transaction_index(
                    entries, batches, lambda facts: self._marker(log, facts)
                ),
            )

    def _show_index(
        self,
        path: str,
        name: SegmentFileName,
        kind: str,
        inspect: Callable[[int], Iterator[Any]],
        verify: Callable[[Any, Iterable[BatchFacts]], Iterator[Mismatch]],
    ) -> None:
        """The entries, and then, where that is wanted, what of them does not fit the log."""
        with self._opened(path) as descriptor:
            self._report.file(path, kind, self._files.size(descriptor), base_offset=name.offset)
            count = 0
            for found in inspect(descriptor):
                if isinstance(found, Damage):
                    self._report.damage(found, is_index=True)
                elif isinstance(found, Reserved):
                    self._report.reserved(found)
                else:
                    self._report.index_entry(count, found)
                    count += 1
            if not self._verifies:
                return
            with self._log_beside(path, name) as log:
                if log is None:
                    self._report.unreadable_file("there is no log beside it to check it against")
                    return
                # The index first, up to what is in it now: the log, read after it, may grow.
                mismatches = 0
                for mismatch in verify(_entries_only(inspect(descriptor), count), self._batches_only(log)):
                    self._report.mismatch(mismatch)
                    mismatches += 1
                self._report.verified(count, mismatches)

    @contextmanager
    def _log_beside(self, path: str, name: SegmentFileName) -> Iterator[int | None]:
        """The log that an index belongs to; None where it is not wanted, or not there."""
        log_path = f"{path.removesuffix(name.suffix + name.state_suffix)}{LOG_SUFFIX}{name.state_suffix}"
        if not self._verifies or not self._files.exists(log_path):
            yield None
            return
        with self._opened(log_path) as descriptor:
            yield descriptor

    def _batches_only(self, log: int) -> Iterator[BatchFacts]:
        for found in inspect_batches(self._files, log, checks_crcs=False):
            if not isinstance(found, Damage):
                yield found

    def _marker(self, log: int | None, facts: BatchFacts) -> ControlRecordType | None:
        if log is None:
            return None
        try:
            record = next(read_batch(self._files, log, facts).records(), None)
            return None if record is None else read_control_record_type(record.key)
        except RecordsError:
            return ControlRecordType.UNKNOWN

    def _show_snapshot(self, path: str, name: SegmentFileName) -> None:
        # In remote storage it has the name of the segment at whose end it is.
        is_remote = parse_segment_file(os.path.basename(path)) is None
        place = {"base_offset": name.offset} if is_remote else {"offset": name.offset}
        self._report.file(path, "producer_snapshot", self._files.status(path).size_bytes, **place)
        try:
            for entry in parse_snapshot(self._read(path)):
                self._report.producer(entry)
        except CorruptSnapshotError as error:
            self._report.unreadable_file(f"{error}; a broker that recovers the log uses an older one")

    def _show_copied_epochs(self, path: str, name: SegmentFileName) -> None:
        self._report.file(path, "leader_epochs", self._files.status(path).size_bytes, base_offset=name.offset)
        self._show_leader_epochs(path)

    # Small files.

    def _read(self, path: str) -> bytes:
        try:
            return read_file(self._files, path, SMALL_FILE_BYTES_MAX)
        except ValueError as error:
            raise CommandError(str(error)) from None

    def _show_offsets(self, path: str) -> None:
        try:
            for partition, offset in parse_offsets(self._read(path), path).items():
                self._report.entry(topic=partition.topic, partition=partition.partition, offset=offset)
        except CorruptCheckpointError as error:
            self._report.unreadable_file(str(error))

    def _show_leader_epochs(self, path: str) -> None:
        try:
            for epoch, start_offset in parse_epochs(self._read(path), path):
                self._report.entry(leader_epoch=epoch, start_offset=start_offset)
        except CorruptCheckpointError as error:
            self._report.unreadable_file(str(error))

    def _show_partition_metadata(self, path: str) -> None:
        try:
            self._report.entry(topic_id=str(read_partition_metadata(self._files, os.path.dirname(path) or ".")))
        except CorruptDirectoryFileError as error:
            self._report.unreadable_file(str(error))

    def _show_meta_properties(self, path: str) -> None:
        try:
            properties = read_meta_properties(self._files, os.path.dirname(path) or ".")
        except CorruptDirectoryFileError as error:
            self._report.unreadable_file(str(error))
            return
        if properties is not None:
            self._report.entry(
                broker_id=properties.broker_id,
                cluster_id=properties.cluster_id,
                directory_id=None if properties.directory_id is None else str(properties.directory_id),
            )

    def _show_clean_shutdown(self, path: str) -> None:
        self._report.entry(content=self._read(path).decode("utf-8", "replace"))

    _SEGMENT_FILES: ClassVar[dict[str, Callable[[LogDumper, str, SegmentFileName], None]]] = {
        LOG_SUFFIX: _show_log,
        OFFSET_INDEX_SUFFIX: _show_offset_index,
        TIME_INDEX_SUFFIX: _show_time_index,
        TRANSACTION_INDEX_SUFFIX: _show_transaction_index,
        PRODUCER_SNAPSHOT_SUFFIX: _show_snapshot,
        ObjectKind.LEADER_EPOCHS: _show_copied_epochs,
    }
    """In the order in which a directory is shown."""
    _SMALL_FILES: ClassVar[dict[str, tuple[str, Callable[[LogDumper, str], None]]]] = {
        META_PROPERTIES: ("meta_properties", _show_meta_properties),
        CLEAN_SHUTDOWN: ("clean_shutdown", _show_clean_shutdown),
        RECOVERY_POINT_CHECKPOINT: ("recovery_points", _show_offsets),
        HIGH_WATERMARK_CHECKPOINT: ("high_watermarks", _show_offsets),
        LOG_START_OFFSET_CHECKPOINT: ("log_start_offsets", _show_offsets),
        CLEANER_CHECKPOINT: ("cleaner_offsets", _show_offsets),
        LEADER_EPOCH_CHECKPOINT: ("leader_epochs", _show_leader_epochs),
        PARTITION_METADATA: ("partition_metadata", _show_partition_metadata),
    }


def _entries_only(found: Iterator[IndexEntry | Reserved | Damage], count: int) -> Iterator[IndexEntry]:
    """The first `count` entries."""
    for _, each in zip(range(count), found, strict=False):
        if not isinstance(each, Reserved | Damage):
            yield each
