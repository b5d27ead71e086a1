"""The owner of the log directories: reads, compares and writes `meta.properties` of all of them.

A directory of another broker or of another cluster is refused before anything is written into it. A directory whose
file system fails is left out here and goes on to the log manager as offline; the others serve.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from barnabas.kernel.host import Files, Host, OffloadKind
from barnabas.kernel.system_errors import reason
from barnabas.log.directories.directory_files import (
    CorruptDirectoryFileError,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from barnabas.log.directories.names import parse_partition_directory
from barnabas.server.errors import MetaPropertiesError

Value = TypeVar("Value", int, str)

_EMPTY: Final = MetaProperties(None, None)


@dataclass(frozen=True, slots=True)
class LogDirectories:
    """The log directories by path: what those that work say, None where they say nothing yet, and why others fail."""

    usable: Mapping[str, MetaProperties | None]
    failed: Mapping[str, OSError]
    are_empty: bool = False
    """Whether all of them work, none was ever used by a broker, and none has a partition in it."""

    def stored_broker_id(self) -> int | None:
        """The broker id that the directories were used with. Raises MetaPropertiesError when they disagree."""
        return self._agreed(lambda properties: properties.broker_id, "broker.id")

    def stored_cluster_id(self) -> str | None:
        """The cluster that the directories were used in. Raises MetaPropertiesError when they disagree."""
        return self._agreed(lambda properties: properties.cluster_id, "cluster.id")

    def check(self, cluster_id: str, configured_broker_id: int) -> None:
        """Raises MetaPropertiesError unless they may serve this cluster, as the configured broker (-1: any)."""
        stored_cluster = self.stored_cluster_id()
        if stored_cluster is not None and stored_cluster != cluster_id:
            raise MetaPropertiesError(
                f"The log directories {self._names()} belong to the cluster {stored_cluster}, but zookeeper.connect"
                f" leads to the cluster {cluster_id}: correct it, or give this broker log.dirs of its own"
            )
        stored_broker = self.stored_broker_id()
        if stored_broker is not None and configured_broker_id >= 0 and stored_broker != configured_broker_id:
            raise MetaPropertiesError(
                f"The log directories {self._names()} belong to broker {stored_broker}, but broker.id is"
                f" {configured_broker_id}: correct broker.id, or give this broker log.dirs of its own"
            )

    def _agreed(self, read: Callable[[MetaProperties], Value | None], key: str) -> Value | None:
        found: dict[Value, str] = {}
        for path, properties in self.usable.items():
            value = None if properties is None else read(properties)
            if value is not None:
                found.setdefault(value, path)
        if len(found) > 1:
            places = ", ".join(f"{value} in {path}" for value, path in found.items())
            raise MetaPropertiesError(
                f"The log directories disagree on {key} ({places}): log.dirs must name directories of one broker"
            )
        return next(iter(found), None)

    def _names(self) -> str:
        return ", ".join(path for path, properties in self.usable.items() if properties is not None)


async def read_log_directories(host: Host, paths: tuple[str, ...]) -> LogDirectories:
    """Makes the directories that are missing and reads what they say, off the loop.

    Raises MetaPropertiesError when none works, or one has a `meta.properties` that cannot be read.
    """
    return await host.offload(OffloadKind.DISK, _read, host.files, paths)


async def write_log_directories(
    host: Host, directories: LogDirectories, broker_id: int, cluster_id: str
) -> LogDirectories:
    """Writes the broker's identity into every working directory, durably, off the loop; keeps a directory's own id."""
    return await host.offload(OffloadKind.SYNC, _write, host.files, directories, broker_id, cluster_id)


def _read(files: Files, paths: tuple[str, ...]) -> LogDirectories:
    usable: dict[str, MetaProperties | None] = {}
    failed: dict[str, OSError] = {}
    are_empty = True
    for path in paths:
        try:
            files.make_directories(path)
            usable[path] = read_meta_properties(files, path)
            if usable[path] is not None or any(map(parse_partition_directory, files.list_directory(path))):
                are_empty = False
        except OSError as error:
            failed[path] = error
        except CorruptDirectoryFileError as error:
            raise MetaPropertiesError(str(error)) from None
    return _checked(LogDirectories(usable, failed, are_empty and not failed))


def _write(files: Files, directories: LogDirectories, broker_id: int, cluster_id: str) -> LogDirectories:
    usable: dict[str, MetaProperties | None] = {}
    failed = dict(directories.failed)
    for path, properties in directories.usable.items():
        wanted = dataclasses.replace(properties or _EMPTY, broker_id=broker_id, cluster_id=cluster_id)
        try:
            if properties != wanted:
                write_meta_properties(files, path, wanted)
            usable[path] = wanted
        except OSError as error:
            failed[path] = error
    return _checked(LogDirectories(usable, failed))


def _checked(directories: LogDirectories) -> LogDirectories:
    if not directories.usable:
        reasons = "; ".join(f"{path}: {reason(error)}" for path, error in directories.failed.items())
        raise MetaPropertiesError(f"None of the log directories can be used ({reasons})")
    return directories
