"""What `barnabas audit` looks at: the partitions that lie at the places it was given, and all replicas of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.export_files import EXPORT
from barnabas.cli.log_files import files_at, partition_of, segment_file
from barnabas.cli.output import printable
from barnabas.kernel.host import Files
from barnabas.log.directories.checkpoints import CorruptCheckpointError, read_offsets
from barnabas.log.directories.directory_files import (
    CorruptDirectoryFileError,
    read_meta_properties,
    read_partition_metadata,
)
from barnabas.log.directories.names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_SUFFIX,
    DirectoryKind,
    parse_partition_directory,
)
from barnabas.log.inspection.replica_reading import Replica, SegmentFile
from barnabas.tiered.object_names import parse_object_name, parse_prefix
from barnabas.wire.topics import TopicPartition

PLACES_MAX: Final = 1_000
"""Log directories and URLs of one audit."""


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """A replica by its files' names: what another process, or another machine, can find again."""

    label: str
    place: str
    """As the user named it."""
    name: str
    """Of the partition's directory there."""
    storage_options: str
    segments: tuple[SegmentFile, ...]
    high_watermark: int | None
    cleaned_to: int
    size_bytes: int

    def opened(self) -> Replica:
        """With the files it is read from. Raises CommandError."""
        files, _ = files_at(self.place, self.storage_options)
        return Replica(self.label, files, self.segments, self.high_watermark, self.cleaned_to)


@dataclass(frozen=True, slots=True)
class Audited:
    """A partition of a topic, with all replicas that were found of it."""

    partition: TopicPartition
    topic_id: str | None
    replicas: tuple[ReplicaPlace, ...]

    @property
    def size_bytes(self) -> int:
        return sum(replica.size_bytes for replica in self.replicas)


@dataclass(slots=True)
class Found:
    """All that lies at the places."""

    partitions: list[Audited] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Small files that make no sense: a line for each."""


_Replicas = dict[tuple[TopicPartition, str | None, str], list[ReplicaPlace]]
"""By partition, topic id, and the place of an export."""


@dataclass(slots=True)
class _Directory:
    """A log directory, or remote storage: what is true of all its partitions."""

    files: Files
    place: str
    path: str
    label: str
    cluster_id: str | None
    is_remote: bool
    is_export: bool
    """What `topic export` has written: the records of a broker in batches of its own, compared with nobody's."""
    watermarks: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, int]


def look_again(audited: Audited) -> Audited:
    """What lies there now: brokers may have been at work since. Raises OSError, and CommandError."""
    replicas = []
    for each in audited.replicas:
        unreadable = Found()  # they were told the first time
        directory, _ = _directory(each.place, each.storage_options, unreadable)
        replica, _ = _replica(directory, each.name, audited.partition, each.storage_options, unreadable)
        if replica is not None:
            replicas.append(replica)
    return replace(audited, replicas=tuple(replicas))


def find_audited(places: Sequence[str], topics: Iterable[str], storage_options: str) -> Found:
    """Raises OSError, and CommandError for a place that is none, for brokers of two clusters, and where nothing is."""
    found = Found()
    wanted = frozenset(topics)
    replicas: _Replicas = {}
    clusters: dict[str, str] = {}
    for place in dict.fromkeys(places):
        directory, names = _directory(place, storage_options, found)
        if directory.cluster_id is not None:
            clusters.setdefault(directory.cluster_id, place)
        if len(clusters) > 1:
            (one, first), (other, second), *_ = clusters.items()
            raise CommandError(f"{first} is of cluster {one}, and {second} of cluster {other}: audit one at a time")
        for name in names:
            partition = partition_of(name)
            if partition is None or (wanted and partition.topic not in wanted):
                continue
            replica, topic_id = _replica(directory, name, partition, storage_options, found)
            if replica is not None:
                apart = place if directory.is_export else ""
                replicas.setdefault((partition, topic_id, apart), []).append(replica)
    if not replicas and not found.unreadable:
        what = "no partition" if not wanted else f"no partition of {', '.join(sorted(map(printable, wanted)))}"
        raise CommandError(
            f"there is {what} in {', '.join(map(printable, places))}: name what log.dirs of the brokers names",
            ExitStatus.MISSING,
        )
    found.partitions = [
        Audited(partition, topic_id, tuple(some))
        for (partition, topic_id, _), some in sorted(_joined(replicas).items())
    ]
    return found


def _joined(replicas: _Replicas) -> dict[tuple[TopicPartition, str, str], list[ReplicaPlace]]:
    """Directories that do not tell a topic id belong to those that do, where there is only one such id."""
    ids: dict[TopicPartition, set[str]] = {}
    for partition, topic_id, _ in replicas:
        if topic_id is not None:
            ids.setdefault(partition, set()).add(topic_id)
    joined: dict[tuple[TopicPartition, str, str], list[ReplicaPlace]] = {}
    for (partition, topic_id, apart), some in replicas.items():
        known = ids.get(partition, set())
        only = next(iter(known)) if len(known) == 1 else ""
        joined.setdefault((partition, topic_id or only, apart), []).extend(some)
    return joined


def _directory(place: str, storage_options: str, found: Found) -> tuple[_Directory, list[str]]:
    """A place, and the names of what is in it; of a partition's directory, the one around it and that name."""
    files, path = files_at(place, storage_options)
    is_remote = "://" in place and not place.startswith("file://")
    path = path.rstrip("/") if is_remote else os.path.abspath(path)
    if not files.status(path).is_directory:
        raise CommandError(f"{place} is no directory; `barnabas log dump` shows single files")
    parent, name = os.path.split(path)
    names = files.list_directory(path)
    if partition_of(name) is not None and any(segment_file(each) is not None for each in names):
        path, names = parent, [name]
    directory = _Directory(files, place, path, place, None, is_remote, files.exists(f"{path}/{EXPORT}"), {}, {})
    if is_remote:
        return directory, names
    try:
        properties = read_meta_properties(files, path)
        if properties is not None:
            directory.cluster_id = properties.cluster_id
            if properties.broker_id is not None:
                directory.label = f"broker {properties.broker_id} ({place})"
        directory.watermarks = read_offsets(files, f"{path}/{HIGH_WATERMARK_CHECKPOINT}")
        directory.cleaned = read_offsets(files, f"{path}/{CLEANER_CHECKPOINT}")
    except (CorruptCheckpointError, CorruptDirectoryFileError) as error:
        found.unreadable.append(str(error))
    return directory, names


def _replica(
    directory: _Directory, name: str, partition: TopicPartition, storage_options: str, found: Found
) -> tuple[ReplicaPlace | None, str | None]:
    """What is in a partition's directory, and the topic's id where it tells one; None for what is no replica."""
    files, path = directory.files, f"{directory.path}/{name}"
    remote, local = parse_prefix(name), parse_partition_directory(name)
    segments: list[SegmentFile] = []
    size_bytes = 0
    is_cleaned_now = False
    try:
        for each in files.list_directory(path):
            parsed = segment_file(each)
            is_cleaned_now |= parsed is not None and bool(parsed.state_suffix)
            if parsed is not None and parsed.suffix == LOG_SUFFIX and not parsed.state_suffix:
                segments.append(SegmentFile(f"{path}/{each}", parsed.offset))
                size_bytes += files.status(f"{path}/{each}").size_bytes
        own_id = None if directory.is_remote else read_partition_metadata(files, path)
    except (FileNotFoundError, NotADirectoryError):
        return None, None  # deleted meanwhile, or no directory
    except CorruptDirectoryFileError as error:
        found.unreadable.append(str(error))
        own_id = None
    # A topic's name may end as if it had an id behind it.
    has_copies = any(parse_object_name(os.path.basename(each.path)) is not None for each in segments)
    is_copy = remote is not None and (directory.is_remote or has_copies)
    if not is_copy and (local is None or local.kind is not DirectoryKind.CURRENT):
        return None, None
    topic_id = remote.topic_id if is_copy and remote is not None else own_id
    segments.sort(key=lambda each: (each.base_offset, each.path))
    cleaned_to = 0 if is_copy else directory.cleaned.get(partition, 0)
    if is_cleaned_now and segments:
        # The checkpoint is written when a log is cleaned as a whole; its last segment never is.
        cleaned_to = max(cleaned_to, segments[-1].base_offset)
    place = ReplicaPlace(
        f"copies in {directory.place}" if is_copy else directory.label,
        directory.place,
        name,
        storage_options,
        tuple(segments),
        None if is_copy else directory.watermarks.get(partition, 0),
        cleaned_to,
        size_bytes,
    )
    return place, None if topic_id is None else str(topic_id)
