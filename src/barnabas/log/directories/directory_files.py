"""The files of a whole log directory, and the one that ties a partition directory to its topic.

`meta.properties` says whose directory it is, `.kafka_cleanshutdown` that its logs need no recovery, `.lock` keeps
other brokers out, `partition.metadata` has the topic id (KIP-516).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Final

from barnabas.config.properties import PropertiesError, parse
from barnabas.kernel.host import Files
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.log.directories.files import read_file, replace_file, write_new
from barnabas.log.directories.names import (
    CLEAN_SHUTDOWN,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    REPLACEMENT_MARKER,
)
from barnabas.wire.sentinels import NO_EPOCH

_FILE_BYTES_MAX: Final = 64 * 1024
_VERSION: Final = 0


class CorruptDirectoryFileError(Exception):
    """One of the files here cannot be read; says which, why, and what to do."""


class LogDirectoryLockedError(Exception):
    """Another broker uses the log directory."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """`meta.properties`, version 0, as a broker of a ZooKeeper cluster writes it."""

    broker_id: int | None
    """None in a directory that was made before the broker had an id."""
    cluster_id: str | None
    directory_id: Uuid | None = None
    """Kafka 3.7 and later name each directory (KIP-858)."""


def read_meta_properties(files: Files, directory: str) -> MetaProperties | None:
    """What `meta.properties` says; None where there is none, as in a new directory.

    Raises CorruptDirectoryFileError, also for version 1, which belongs to a KRaft cluster.
    """
    path = f"{directory}/{META_PROPERTIES}"
    try:
        found = {entry.key: entry.value for entry in parse(_read(files, path), path)}
    except FileNotFoundError:
        return None
    except PropertiesError as error:
        raise CorruptDirectoryFileError(str(error)) from None
    version = found.get("version")
    if version != str(_VERSION):
        raise CorruptDirectoryFileError(
            f"{path} has version {version}; a directory of a ZooKeeper cluster has version 0: give this broker a"
            " directory of its own"
        )
    try:
        broker_id = int(found["broker.id"]) if "broker.id" in found else None
        directory_id = Uuid.from_text(found["directory.id"]) if "directory.id" in found else None
    except ValueError as error:
        raise CorruptDirectoryFileError(f"{path}: {error}") from None
    return MetaProperties(broker_id, found.get("cluster.id"), directory_id)


def write_meta_properties(files: Files, directory: str, properties: MetaProperties) -> None:
    """Replaces `meta.properties`, durably. Belongs off the loop."""
    lines = [f"version={_VERSION}"]
    if properties.broker_id is not None:
        lines.append(f"broker.id={properties.broker_id}")
    if properties.cluster_id is not None:
        lines.append(f"cluster.id={properties.cluster_id}")
    if properties.directory_id is not None:
        lines.append(f"directory.id={properties.directory_id}")
    replace_file(files, f"{directory}/{META_PROPERTIES}", "".join(f"{line}\n" for line in lines).encode())


def take_clean_shutdown(files: Files, directory: str) -> int | None:
    """Reads and removes the sign of a clean shutdown, before any log is loaded: a crash from now on is unclean again.

    Returns the broker epoch of then, NO_EPOCH where the file has none that can be read (older brokers wrote
    an empty one), and None where the shutdown was not clean. The removal is durable.
    """
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    try:
        data = _read(files, path)
    except FileNotFoundError:
        return None
    except CorruptDirectoryFileError:
        data = b""
    files.unlink(path)
    files.fsync_directory(directory)
    try:
        content = json.loads(data)
    except ValueError:
        return NO_EPOCH
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else NO_EPOCH


def write_clean_shutdown(files: Files, directory: str, broker_epoch: int) -> None:
    """Says that all logs of the directory are flushed and closed; the last thing that a broker writes there."""
    content = f'{{"version":{_VERSION},"brokerEpoch":{broker_epoch}}}'
    write_new(files, f"{directory}/{CLEAN_SHUTDOWN}", content.encode())
    files.fsync_directory(directory)


def lock_directory(files: Files, directory: str) -> int:
    """Keeps other brokers, also Apache Kafka's, out of the directory for as long as the returned descriptor is open.

    Raises LogDirectoryLockedError.
    """
    descriptor = files.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT)
    if not files.lock(descriptor):
        files.close(descriptor)
        raise LogDirectoryLockedError(
            f"{directory} is in use by another broker; stop that one, or give this one log.dirs of its own"
        )
    return descriptor


def read_partition_metadata(files: Files, partition_directory: str) -> Uuid | None:
    """The topic id in `partition.metadata`; None where there is no such file. Raises CorruptDirectoryFileError."""
    path = f"{partition_directory}/{PARTITION_METADATA}"
    try:
        text = _read(files, path).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    if found.get("version") != str(_VERSION):
        raise CorruptDirectoryFileError(f"{path} has version {found.get('version')}; only version 0 is known")
    try:
        topic_id = Uuid.from_text(found.get("topic_id", ""))
    except ValueError as error:
        raise CorruptDirectoryFileError(f"{path}: {error}") from None
    if topic_id == ZERO_UUID:
        raise CorruptDirectoryFileError(f"{path} has the topic id of no topic")
    return topic_id


def write_partition_metadata(files: Files, partition_directory: str, topic_id: Uuid) -> None:
    """Replaces `partition.metadata`, durably; before the first record, so that data is never without its topic."""
    text = f"version: {_VERSION}\ntopic_id: {topic_id}"
    replace_file(files, f"{partition_directory}/{PARTITION_METADATA}", text.encode())


def read_replacement_marker(files: Files, partition_directory: str) -> str | None:
    """The log directory with the partition directory that this one takes the place of; None where it does not."""
    try:
        return _read(files, f"{partition_directory}/{REPLACEMENT_MARKER}").decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def write_replacement_marker(files: Files, partition_directory: str, log_directory: str) -> None:
    """Says durably that the partition directory may take the place of the one in `log_directory`, and is as good."""
    content = log_directory.encode("utf-8", "surrogateescape")
    replace_file(files, f"{partition_directory}/{REPLACEMENT_MARKER}", content)


def remove_replacement_marker(files: Files, partition_directory: str) -> None:
    """Ends what `write_replacement_marker` began, durably; there is no error where it is not there."""
    try:
        files.unlink(f"{partition_directory}/{REPLACEMENT_MARKER}")
    except FileNotFoundError:
        return
    files.fsync_directory(partition_directory)


def _read(files: Files, path: str) -> bytes:
    try:
        return read_file(files, path, _FILE_BYTES_MAX)
    except ValueError as error:
        raise CorruptDirectoryFileError(str(error)) from None
