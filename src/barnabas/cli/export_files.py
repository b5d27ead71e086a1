"""The directory of an exported topic: record batches as brokers keep them, and a file that says what they are.

    DIRECTORY/export.json
    DIRECTORY/flights-0/00000000000000000000.log ...
    DIRECTORY/flights-0/partition.metadata
    DIRECTORY/replication-offset-checkpoint, cleaner-offset-checkpoint

That is a log directory, so `barnabas audit` and `barnabas log dump` read it, and Kafka's tools do. The checkpoints say
where each partition ends, and that what is missing in between was missing already.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.output import printable
from barnabas.kernel.host import Host, OffloadKind
from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.checkpoints import write_offsets
from barnabas.log.directories.directory_files import write_partition_metadata
from barnabas.log.directories.names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_SUFFIX,
    parse_segment_file,
    partition_directory_name,
    segment_file_name,
)
from barnabas.log.inspection.batch_inspection import BatchFacts, Damage, inspect_batches
from barnabas.log.inspection.replica_reading import SegmentFile
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.records import ConsumerRecord
    from barnabas.wire.compression_types import Compression

EXPORT: Final = "export.json"
_VERSION: Final = 1
_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_BATCH_BYTES: Final = 256 * 1024
_SEGMENT_BYTES: Final = 1024 * 1024 * 1024
_OFFSET_DELTA_MAX: Final = (1 << 31) - 1
FILES: Final = RealFiles()


@dataclass(slots=True)
class ExportedPartition:
    """What is there of a partition: offsets from `first_offset` on, ahead of `end_offset`."""

    first_offset: int
    end_offset: int
    """Where the export ends; the last records before it may be missing, as all may that a cleaner has removed."""
    records: int = 0
    next_offset: int = 0
    """Behind the last record; `first_offset` where there is none."""
    gaps: int = 0
    """Places where offsets are missing, also ahead of the first record and behind the last."""


@dataclass(slots=True)
class Export:
    """`export.json`."""

    topic: str
    topic_id: str | None
    cluster_id: str | None
    partition_count: int
    """Of the topic, of which not all may be here."""
    configs: Mapping[str, str]
    isolation: str
    is_complete: bool = False
    partitions: dict[int, ExportedPartition] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Replaces the file as a whole, durably. Raises OSError."""
        document = {"version": _VERSION, **asdict(self)}
        document["partitions"] = {str(number): asdict(each) for number, each in sorted(self.partitions.items())}
        beside = directory / f".{EXPORT}.new"
        with beside.open("w") as opened:
            json.dump(document, opened)
            opened.flush()
            os.fsync(opened.fileno())
        beside.replace(directory / EXPORT)
        FILES.fsync_directory(str(directory))

    def write_checkpoints(self, directory: Path) -> None:
        """What makes a log directory of it: partitions without records have no files, and no place there. Raises
        OSError.
        """
        ends = {
            TopicPartition(self.topic, number): each.next_offset
            for number, each in self.partitions.items()
            if each.records
        }
        write_offsets(FILES, f"{directory}/{HIGH_WATERMARK_CHECKPOINT}", ends)
        gone = {each: end for each, end in ends.items() if self.partitions[each.partition].gaps}
        write_offsets(FILES, f"{directory}/{CLEANER_CHECKPOINT}", gone)


def read_export(directory: Path) -> Export | None:
    """None where there is none. Raises CommandError for a file that makes no sense, and OSError."""
    path = directory / EXPORT
    try:
        with path.open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = json.loads(data) if len(data) <= _FILE_BYTES_MAX else {}
        return _parsed(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CommandError(f"{path} is not what `barnabas topic export` writes") from None


def _parsed(document: Any) -> Export:
    """Raises ValueError, KeyError, TypeError and AttributeError."""
    if document.pop("version") != _VERSION:
        raise ValueError("another version")
    partitions = {int(number): ExportedPartition(**each) for number, each in document.pop("partitions").items()}
    found = Export(**document, partitions=partitions)
    for number, each in partitions.items():
        is_range = 0 <= each.first_offset <= each.next_offset <= each.end_offset < 1 << 63
        if not (is_range and 0 <= number < found.partition_count and each.records >= 0 <= each.gaps):
            raise ValueError("out of range")
    texts = [found.topic, found.isolation, *found.configs, *found.configs.values()]
    if not all(isinstance(each, str) for each in texts) or "/" in found.topic or found.is_complete not in (True, False):
        raise ValueError("no texts")
    return found


def segments_of(directory: Path, partition: TopicPartition) -> list[SegmentFile]:
    """The log files of a partition, in order. Raises OSError."""
    path = directory / partition_directory_name(partition)
    found = []
    for name in os.listdir(path) if path.is_dir() else ():
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.suffix == LOG_SUFFIX and not parsed.state_suffix:
            found.append(SegmentFile(str(path / name), parsed.offset))
    return sorted(found, key=lambda each: each.base_offset)


class PartitionWriter:
    """Appends records of one partition, by their offsets; what a killed one has left is gone on with."""

    def __init__(
        self, directory: Path, partition: TopicPartition, exported: ExportedPartition, compression: Compression
    ) -> None:
        self._directory = directory / partition_directory_name(partition)
        self._partition = partition
        self.exported = exported
        self._compression = compression
        self._builder: RecordBatchBuilder | None = None
        self._first_in_batch = 0
        self._descriptor: int | None = None
        self._base_offset = 0
        self._size_bytes = 0
        self.written_bytes = 0
        self._is_wanted = True
        """Until what is there was counted, or nobody waits for that any more."""
        self._torn: tuple[str, int] | None = None
        """The last file, and from where on it is damaged."""

    async def recover(self, host: Host, directory: Path) -> None:
        """Counts what is there, up to the first damage: off the loop, since all is read. Raises OSError, and
        CommandError for damage ahead of the last file.
        """
        try:
            await host.offload(OffloadKind.DISK, self._recover, directory)
        finally:
            self._is_wanted = False

    def _recover(self, directory: Path) -> None:
        self.exported.records = self.exported.gaps = 0
        self.exported.next_offset = self.exported.first_offset
        segments = segments_of(directory, self._partition)
        for segment in segments:
            for facts in self._sound_batches(segment, is_last=segment is segments[-1]):
                self._count_batch(facts)
            self._size_bytes = os.path.getsize(segment.path) if self._torn is None else self._torn[1]
            self._base_offset = segment.base_offset
            self.written_bytes += self._size_bytes

    @property
    def damage(self) -> str:
        """What `recover` has found damaged, for people; "" for nothing."""
        return "" if self._torn is None else f"{self._torn[0]} is damaged at byte {self._torn[1]}, and stays as it is: "

    def cut_off_damage(self) -> None:
        """Gives up what `recover` has found damaged, and all behind it: once it is sure that brokers still have that,
        since nobody else may. Raises OSError.
        """
        if self._torn is not None:
            path, position = self._torn
            os.truncate(path, position)
            self._torn = None

    def _sound_batches(self, segment: SegmentFile, *, is_last: bool) -> Iterator[BatchFacts]:
        descriptor = FILES.open(segment.path, os.O_RDONLY)
        try:
            position = 0
            for found in inspect_batches(FILES, descriptor):
                if not self._is_wanted:
                    raise CommandError("nobody waits for this any more")
                if isinstance(found, Damage) or found.fault is not None:
                    if not is_last:
                        raise CommandError(f"{segment.path} is damaged at byte {position}: export to another directory")
                    self._torn = segment.path, position
                    return
                yield found
                position = found.end_position
        finally:
            FILES.close(descriptor)

    def _count_batch(self, facts: BatchFacts) -> None:
        """One of ours has its own first and last offset; what is missing within is one gap for each that it lacks."""
        exported = self.exported
        count = facts.record_count or 0
        exported.records += count
        exported.gaps += facts.base_offset > exported.next_offset
        exported.gaps += facts.last_offset - facts.base_offset + 1 > count
        exported.next_offset = facts.last_offset + 1

    def add(self, record: ConsumerRecord) -> None:
        """Takes the next record; what is complete is written. Raises OSError."""
        builder = self._builder
        if builder is not None and (
            builder.size_bytes >= _BATCH_BYTES or record.offset - self._first_in_batch > _OFFSET_DELTA_MAX
        ):
            self.flush()
            builder = None
        if builder is None:
            self._first_in_batch = record.offset
            builder = self._builder = RecordBatchBuilder(
                base_offset=record.offset,
                compression=self._compression,
                partition_leader_epoch=max(record.leader_epoch, NO_EPOCH),
            )
        builder.append(record.timestamp_ms, record.key, record.value, record.headers, offset=record.offset)

    def flush(self) -> None:
        """Writes the records that wait as a batch. Raises OSError; then nothing of them counts."""
        builder, self._builder = self._builder, None
        if builder is None:
            return
        data = bytes(builder.build())
        first = self._first_in_batch
        is_full = self._size_bytes + len(data) > _SEGMENT_BYTES
        is_full |= builder.last_offset - self._base_offset > _OFFSET_DELTA_MAX
        if self._descriptor is None or is_full:
            self._open(first, is_new=is_full)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]  # type: ignore[arg-type]
        self._size_bytes += len(data)
        self.written_bytes += len(data)
        exported = self.exported
        exported.records += builder.record_count
        exported.gaps += first > exported.next_offset
        exported.gaps += builder.last_offset - first + 1 > builder.record_count
        exported.next_offset = builder.last_offset + 1

    def _open(self, offset: int, *, is_new: bool) -> None:
        """The last file, or another one that begins with this offset."""
        self.close()
        if is_new or not self._size_bytes:
            self._base_offset = offset
            self._size_bytes = 0
        self._directory.mkdir(exist_ok=True)
        path = self._directory / segment_file_name(self._base_offset, LOG_SUFFIX)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def close(self) -> None:
        """Brings what was written to the disk. Raises OSError."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def finish(self, topic_id: str | None) -> None:
        """Writes all, and whose it is. Raises OSError."""
        self.flush()
        self.close()
        exported = self.exported
        exported.gaps += exported.next_offset < exported.end_offset
        self._directory.mkdir(exist_ok=True)
        if topic_id is not None:
            write_partition_metadata(FILES, str(self._directory), Uuid.from_text(topic_id))
        FILES.fsync_directory(str(self._directory))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else writes into the directory, which is made. Raises CommandError, and OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = FILES.open(str(directory / LOCK), os.O_RDWR | os.O_CREAT)
    try:
        if not FILES.lock(descriptor):
            raise CommandError(f"another command writes into {directory}")
        yield
    finally:
        FILES.close(descriptor)


def begin_directory(directory: Path, wanted: Export) -> Export:
    """Begins in an empty directory, or finds what a former run has left there of the same export, to be gone on with.

    Raises CommandError, and OSError.
    """
    found = read_export(directory)
    if found is None:
        if any(each.name not in (LOCK, f".{EXPORT}.new") for each in directory.iterdir()):
            raise CommandError(f"{directory} is not empty, and no export: name another directory")
        wanted.write(directory)
        return wanted
    if found.is_complete:
        raise CommandError(f"{directory} has a complete export of {printable(found.topic)}: name another directory")
    for what in ("cluster_id", "topic", "topic_id", "isolation"):
        mine, theirs = getattr(wanted, what), getattr(found, what)
        if mine != theirs:
            raise CommandError(
                f"{directory} has an export of another {what.replace('_', ' ')}: {theirs}, and not {mine}"
            )
    if set(found.partitions) != set(wanted.partitions):
        raise CommandError(f"{directory} has an export of other partitions of {printable(found.topic)}")
    return found


def require_export(directory: Path) -> Export:
    """What is to be imported. Raises CommandError where it is none, or not complete, and OSError."""
    found = read_export(directory)
    if found is None:
        raise CommandError(f"{directory} is no export: it has no {EXPORT}", ExitStatus.MISSING)
    if not found.is_complete:
        raise CommandError(f"{directory} is not complete: run the same `barnabas topic export` again, and it goes on")
    return found
