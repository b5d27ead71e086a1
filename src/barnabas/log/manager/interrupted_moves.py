"""What a crash has left of replicas that were on their way to another log directory of the broker (KIP-113).

A future log is a copy that may be behind, and loses nothing when it goes. That changes with the marker, which is made
durable when the copy is complete, and before either directory gets its new name: from then on a directory with a marker
takes the place of the one that the marker points at.

| of the two names, durable is | found                               | what is done                              |
|------------------------------|-------------------------------------|-------------------------------------------|
| none                         | current, and future with a marker   | the move goes on from the beginning of it |
| that of the new directory    | two current, one with a marker      | the other one is given up                 |
| that of the old directory    | a future with a marker alone        | it becomes the current one                |
| both                         | current, perhaps with a marker      | nothing                                   |

A future log without a marker that stands alone may lack anything, and is left alone; so is one whose marker points at a
log directory that is offline, where the current log may be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from barnabas.kernel.host import Files
from barnabas.log.directories.directory_files import (
    CorruptDirectoryFileError,
    read_replacement_marker,
    remove_replacement_marker,
)
from barnabas.log.directories.names import (
    DirectoryKind,
    marked_directory_name,
    parse_partition_directory,
    partition_directory_name,
)
from barnabas.wire.topics import TopicPartition

_Place = tuple[str, str]
"""A log directory, and the name of a partition directory in it."""


@dataclass(slots=True)
class SettledMoves:
    """What is to be loaded, and what has failed."""

    names: dict[str, list[str]]
    """The partition directories, by log directory, as they are called now; futures without a current one are not among
    them."""
    failures: dict[str, OSError] = field(default_factory=dict)
    """By log directory."""


@dataclass(slots=True)
class _Replica:
    current: list[_Place] = field(default_factory=list)
    future: list[_Place] = field(default_factory=list)


def settle_moves(
    files: Files, found: Mapping[str, list[str]], new_id: Callable[[], str], logger: logging.Logger
) -> SettledMoves:
    """Puts right what the table above says, durably. `found` has the names in each log directory that is online, and
    `new_id` makes the 32 digits that mark a directory. Belongs off the loop.
    """
    reconciler = _MoveReconciler(
        files, SettledMoves({path: list(names) for path, names in found.items()}), new_id, logger
    )
    replicas: dict[TopicPartition, _Replica] = {}
    for path, names in found.items():
        for name in names:
            parsed = parse_partition_directory(name)
            if parsed is None:
                continue
            if parsed.kind is DirectoryKind.CURRENT:
                replicas.setdefault(parsed.partition, _Replica()).current.append((path, name))
            elif parsed.kind is DirectoryKind.FUTURE:
                replicas.setdefault(parsed.partition, _Replica()).future.append((path, name))
    for partition, replica in replicas.items():
        if replica.future or len(replica.current) > 1:
            reconciler.settle(partition, replica)
    return reconciler.settled


@dataclass(slots=True)
class _MoveReconciler:
    files: Files
    settled: SettledMoves
    new_id: Callable[[], str]
    logger: logging.Logger

    def settle(self, partition: TopicPartition, replica: _Replica) -> None:
        if len(replica.current) == 2:
            self._choose(partition, *replica.current)
        marked = [(place, marker) for place in replica.future if (marker := self._marker(place)) is not None]
        kept: _Place | None = None
        if replica.current:
            taken = {path for path, _ in replica.current}
            kept = next((place for place in replica.future if place[0] not in taken), None)
            for place, _ in marked:
                self._in(place[0], remove_replacement_marker, self.files, _path(place))
        elif len(marked) == 1 and marked[0][1] in self.settled.names:
            kept = self._promote(partition, marked[0][0])
        else:
            for place in replica.future:
                self.logger.warning("%s is left alone: there is no replica that it is a copy of", _path(place))
                self.settled.names[place[0]].remove(place[1])
            return
        for place in replica.future:
            if place != kept and place[1] in self.settled.names[place[0]]:
                self._give_up(partition, place)

    def _choose(self, partition: TopicPartition, one: _Place, other: _Place) -> None:
        """Of two replicas, the one that takes the other's place; both stay where there is no telling."""
        for new, old in ((one, other), (other, one)):
            if self._marker(new) == old[0] and self._marker(old) != new[0]:
                self.logger.warning("%s has taken the place of %s, which is given up", _path(new), _path(old))
                if self._give_up(partition, old):
                    self._in(new[0], remove_replacement_marker, self.files, _path(new))
                return

    def _promote(self, partition: TopicPartition, place: _Place) -> _Place:
        """Has a future replica take the place that is free."""
        path, name = place
        new = partition_directory_name(partition)
        self.logger.warning(
            "%s is complete, and the replica that it replaces has gone: it is %s now", _path(place), new
        )

        def rename() -> None:
            self.files.rename(_path(place), f"{path}/{new}")
            self.files.fsync_directory(path)
            remove_replacement_marker(self.files, f"{path}/{new}")

        if self._in(path, rename):
            names = self.settled.names[path]
            names[names.index(name)] = new
        return path, new

    def _give_up(self, partition: TopicPartition, place: _Place) -> bool:
        path, name = place
        new = marked_directory_name(partition, DirectoryKind.DELETE, self.new_id())

        def rename() -> None:
            self.files.rename(_path(place), f"{path}/{new}")
            self.files.fsync_directory(path)

        if not self._in(path, rename):
            return False
        names = self.settled.names[path]
        names[names.index(name)] = new
        return True

    def _marker(self, place: _Place) -> str | None:
        found: list[str | None] = [None]

        def read() -> None:
            try:
                found[0] = read_replacement_marker(self.files, _path(place))
            except CorruptDirectoryFileError as error:
                self.logger.warning("Ignoring a marker that cannot be read: %s", error)

        self._in(place[0], read)
        return found[0]

    def _in(self, path: str, do: Callable[..., object], *arguments: object) -> bool:
        """Does something in a log directory; False where that fails, or something there has failed before."""
        if path in self.settled.failures:
            return False
        try:
            do(*arguments)
        except OSError as error:
            self.settled.failures[path] = error
            return False
        return True


def _path(place: _Place) -> str:
    return f"{place[0]}/{place[1]}"
