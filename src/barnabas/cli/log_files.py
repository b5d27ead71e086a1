"""Where commands find the files of logs: in a directory of a broker, or at a URL of remote storage."""

from __future__ import annotations

from typing import cast

from barnabas.cli.connection import CommandError
from barnabas.kernel.host import Files
from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.names import SegmentFileName, parse_partition_directory, parse_segment_file
from barnabas.tiered.object_names import parse_object_name, parse_prefix
from barnabas.wire.topics import TopicPartition


def files_at(path: str, storage_options: str) -> tuple[Files, str]:
    """The files that a path is of, and what it is called there. Raises CommandError for a URL that cannot be used."""
    local = RealFiles()
    if path.startswith("file://"):
        return local, path.removeprefix("file://")
    if "://" not in path:
        return local, path
    from barnabas.tiered.storage import StorageConfigError
    from barnabas.tiered.stored_files import open_url

    try:
        # It has what looking needs, and nothing that changes anything.
        return cast("Files", open_url(local, path.rstrip("/"), storage_options)), path
    except StorageConfigError as error:
        raise CommandError(str(error)) from None


def segment_file(name: str) -> SegmentFileName | None:
    """What a file of a segment is, in a log directory or in remote storage; None for others."""
    found = parse_object_name(name)
    return parse_segment_file(name) if found is None else SegmentFileName(found[0], found[1].value)


def partition_of(name: str) -> TopicPartition | None:
    """Whose files are in a directory, by its name; None for one that is no partition's."""
    remote, local = parse_prefix(name), parse_partition_directory(name)
    if remote is not None:
        return remote.topic_partition
    return None if local is None else local.partition
