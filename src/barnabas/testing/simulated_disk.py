"""The disk of a simulated machine: a file system in memory that knows what a loss of power may take away.

What programs see (the page cache) is always the newest state; it survives the death of processes. Beside it every
change that is not yet durable is remembered:

*Data.* Each write and each truncation of a file is one change, with what it overwrote. `fsync` and `fdatasync` of the
file make durable what had changed when they began. Changes older than `writeback_seconds` are durable anyway. When
power fails, each other change by itself survives wholly, survives in part (**torn**: a prefix of its 512-byte sectors,
or any subset of its 4096-byte pages; the rest keeps the old bytes, or is zeros where the file had grown), leaves only
the new size (zeros), or is lost; so later writes may survive where earlier ones do not, with zeros in between.

*Names.* Each creation, rename and removal, and each new or removed directory, is one change, atomic in itself;
`fsync_directory` makes durable those of that directory (a rename between two directories: that of the target). `fsync`
of a file does not make its name durable. When power fails, each other change by itself survives or is lost. A file
whose name is lost is lost; a directory whose own creation is lost takes everything in it along; a removed or replaced
file whose removal is lost is back.

*Order.* That is the disk at its worst, *unordered*. By seed, every second power failure is *ordered*, as a journal
that also orders data would have it: there is one moment before which everything survives and after which nothing does,
the change at that moment being torn.

*Syncs under way.* A sync made off the loop returns later than it began (`simulated_offload`). If power fails between,
it has happened or not, by seed; if not, what the same piece of work did after it has not happened either.

*Failed syncs.* After a sync that failed with EIO, what it should have covered is never made durable by a later sync
that succeeds, as on Linux: the program must treat the file as lost.
"""

from __future__ import annotations

import enum
import errno
import fnmatch
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from barnabas.testing.trace import Occurrence

if TYPE_CHECKING:
    from barnabas.testing.profile import DiskProfile
    from barnabas.testing.simulated_clock import SimulatedClock
    from barnabas.testing.world import World

SECTOR_BYTES = 512
PAGE_BYTES = 4096
CHANGED_FILES_MIN = 1024


class SyncUnderWay:
    """A sync that has begun and not returned; `previous` is the one before it in the same piece of work."""

    __slots__ = ("changes", "finished", "previous", "survives")

    def __init__(self, previous: SyncUnderWay | None) -> None:
        self.previous = previous
        self.changes: list[DataChange | NameChange] = []
        self.finished = False
        self.survives = False

    def decide(self, random: Random) -> None:
        """Power fails: the sync has happened or not."""
        before = self.previous is None or self.previous.finished or self.previous.survives
        self.survives = self.finished or (before and random.random() < 0.5)


class Change:
    """What is not durable yet."""

    __slots__ = ("after", "durable", "made_at", "number", "syncs_fail")

    def __init__(self, number: int, made_at: float, after: SyncUnderWay | None) -> None:
        self.number = number
        self.made_at = made_at
        self.after = after
        self.durable = False
        self.syncs_fail = False

    def impossible(self) -> bool:
        """The work that made the change had not come so far when power failed."""
        return self.after is not None and not self.after.finished and not self.after.survives


class DataChange(Change):
    """One write or truncation. `data` is None for a truncation; `overwritten` is what lay at `offset` before."""

    __slots__ = ("data", "offset", "overwritten", "size_after", "size_before")

    def __init__(
        self,
        number: int,
        made_at: float,
        after: SyncUnderWay | None,
        offset: int,
        data: bytes | None,
        overwritten: bytes,
        sizes: tuple[int, int],
    ) -> None:
        super().__init__(number, made_at, after)
        self.offset = offset
        self.data = data
        self.overwritten = overwritten
        self.size_before, self.size_after = sizes


class Node:
    """A file, or (entries not None) a directory. `opened` counts descriptors, `names` the directory entries."""

    __slots__ = ("changes", "content", "entries", "locked_by", "modified_ms", "names", "number", "opened")

    def __init__(self, number: int, *, is_directory: bool) -> None:
        self.number = number
        self.content = bytearray()
        self.entries: dict[str, Node] | None = {} if is_directory else None
        self.changes: deque[DataChange] = deque()
        self.modified_ms = 0
        self.names = 0
        self.opened = 0
        self.locked_by: object | None = None

    @property
    def is_directory(self) -> bool:
        return self.entries is not None


class Edit:
    """One directory entry before and after a change."""

    __slots__ = ("after", "before", "directory", "name")

    def __init__(self, directory: Node, name: str, before: Node | None, after: Node | None) -> None:
        self.directory = directory
        self.name = name
        self.before = before
        self.after = after


class NameChange(Change):
    """One creation, rename or removal; `durable_with` is the directory whose sync makes it durable."""

    __slots__ = ("durable_with", "edits")

    def __init__(
        self, number: int, made_at: float, after: SyncUnderWay | None, durable_with: Node, edits: tuple[Edit, ...]
    ) -> None:
        super().__init__(number, made_at, after)
        self.durable_with = durable_with
        self.edits = edits


@dataclass(slots=True)
class FaultRule:
    """An error that file operations raise. `operations` are names of `Files` methods (fdatasync counts as fsync,
    writev and pwrite as write, preadv and pread as read), `pattern` is matched by `fnmatch` with the whole path (`*`
    matches slashes too), `times` is how often it still strikes (None: always).
    """

    operations: frozenset[str]
    pattern: str = "*"
    error_number: int = errno.EIO
    probability: float = 1.0
    times: int | None = None

    def strikes(self, operation: str, path: str, random: Random) -> bool:
        """True when this call fails."""
        if operation not in self.operations or self.times == 0 or not fnmatch.fnmatchcase(path, self.pattern):
            return False
        if self.probability < 1.0 and random.random() >= self.probability:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Fate(enum.Enum):
    """What a power failure does to one change."""

    KEPT = "kept"
    TORN = "torn"
    LOST = "lost"


class SimulatedDisk:
    """The file system of one machine, below descriptors and paths (`simulated_files`).

    Settings that scenarios change: `capacity_bytes` (full: ENOSPC), `slowness` (multiplies every duration),
    `slow_paths` (the same for files whose path begins so). Faults: `FaultRule`s in `fault_rules`; `cut_power_at` fails
    the power in the middle of the change or sync with that number, counted by `operations`.
    """

    cut_power: Callable[[], None]

    def __init__(self, world: World, name: str, profile: DiskProfile, clock: SimulatedClock) -> None:
        self.world = world
        self.profile = profile
        self.clock = clock
        self.random = world.random(f"disk/{name}")
        self.label = world.trace.label(f"{name} disk")
        self.root = Node(0, is_directory=True)
        self.capacity_bytes = profile.capacity_bytes
        self.used_bytes = 0
        self.slowness = 1.0
        self.slow_paths: dict[str, float] = {}
        self.operations = 0
        """Changes and syncs so far, each counting one."""
        self.cut_power_at: int | None = None
        self.fault_rules: list[FaultRule] = []
        self._numbers = 0
        self._changed: dict[Node, None] = {}
        self._names: deque[NameChange] = deque()
        self._syncs: list[SyncUnderWay] = []
        self._swept_at = CHANGED_FILES_MIN

    def slowness_of(self, path: str) -> float:
        """How much longer than usual what is done there takes."""
        slowness = self.slowness
        for start, factor in self.slow_paths.items():
            if path.startswith(start):
                slowness *= factor
        return slowness

    def find(self, path: str) -> Node | None:
        """The file or directory of that name; None where there is none."""
        node = self.root
        for name in filter(None, path.split("/")):
            found = (node.entries or {}).get(name)
            if found is None:
                return None
            node = found
        return node

    def scribble(self, path: str, content: bytes) -> bool:
        """Somebody replaces a file's content, durably, behind its owner's back; False without such a file."""
        node = self.find(path)
        if node is None or node.is_directory:
            return False
        self.used_bytes += len(content) - len(node.content)
        node.content[:] = content
        node.changes.clear()
        self._changed.pop(node, None)
        return True

    # Changes.

    def make_node(self, *, is_directory: bool) -> Node:
        """A new file or directory without a name."""
        self._numbers += 1
        node = Node(self._numbers, is_directory=is_directory)
        node.modified_ms = self.clock.time_ms()
        return node

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def write(self, node: Node, data: bytes, offset: int, after: SyncUnderWay | None) -> None:
        """Puts the bytes there; space has been checked."""
        content = node.content
        before = len(content)
        end = offset + len(data)
        overwritten = bytes(content[offset : min(end, before)])
        self._remember(
            node, DataChange(self._next(), self.world.now, after, offset, data, overwritten, (before, max(before, end)))
        )
        if offset > before:
            content.extend(bytes(offset - before))
        content[offset:end] = data
        self.used_bytes += len(content) - before

    def truncate(self, node: Node, size_bytes: int, after: SyncUnderWay | None) -> None:
        """Cuts the file off, or extends it with zeros."""
        content = node.content
        before = len(content)
        if size_bytes != before:
            self._remember(
                node,
                DataChange(
                    self._next(),
                    self.world.now,
                    after,
                    size_bytes,
                    None,
                    bytes(content[size_bytes:]),
                    (before, size_bytes),
                ),
            )
            if size_bytes < before:
                del content[size_bytes:]
            else:
                content.extend(bytes(size_bytes - before))
            self.used_bytes += size_bytes - before

    def _remember(self, node: Node, change: DataChange) -> None:
        node.modified_ms = self.clock.time_ms()
        node.changes.append(change)
        self._changed[node] = None
        self._forget_durable(node.changes)

    def change_names(self, durable_with: Node, edits: Iterable[Edit], after: SyncUnderWay | None) -> None:
        """Changes directory entries, all at once."""
        change = NameChange(self._next(), self.world.now, after, durable_with, tuple(edits))
        for edit in change.edits:
            self._set_entry(edit.directory, edit.name, edit.after)
        self._names.append(change)
        self._forget_durable(self._names)
        if len(self._changed) > self._swept_at:
            self._forget_removed()

    def _forget_removed(self) -> None:
        """Removed files whose removal is durable can never come back."""
        kept = {edit.before for change in self._names for edit in change.edits}
        for node in list(self._changed):
            if not node.changes or not (node.names or node.opened or node in kept):
                del self._changed[node]
        self._swept_at = 2 * len(self._changed) + CHANGED_FILES_MIN

    def _set_entry(self, directory: Node, name: str, node: Node | None) -> None:
        entries = directory.entries
        if entries is None:
            raise RuntimeError("a file has no entries")
        old = entries.pop(name, None)
        if old is not None:
            old.names -= 1
            self.release(old)
        if node is not None:
            node.names += 1
            entries[name] = node
        directory.modified_ms = self.clock.time_ms()

    def release(self, node: Node) -> None:
        """Frees the space of a file that has neither name nor descriptor."""
        if not node.names and not node.opened and not node.is_directory:
            self.used_bytes -= len(node.content)

    # Durability.

    def sync(self, node: Node, under_way: SyncUnderWay | None) -> None:
        """Makes the data of a file durable, or, for a directory, its entries; with `under_way`, only when that is
        finished.
        """
        changes: Iterable[DataChange | NameChange]
        if node.is_directory:
            changes = [change for change in self._names if change.durable_with is node]
        else:
            changes = list(node.changes)
        if under_way is not None:
            under_way.changes.extend(change for change in changes if not change.syncs_fail)
        else:
            for change in changes:
                change.durable = change.durable or not change.syncs_fail
            self._forget_durable(self._names if node.is_directory else node.changes)
            if not node.changes:
                self._changed.pop(node, None)

    def sync_failed(self, node: Node) -> None:
        """A sync of the file failed: what it should have covered is beyond saving."""
        for change in node.changes:
            change.syncs_fail = not change.durable

    def begin_sync(self, previous: SyncUnderWay | None) -> SyncUnderWay:
        """A sync that will return later."""
        under_way = SyncUnderWay(previous)
        self._syncs.append(under_way)
        return under_way

    def finish_sync(self, under_way: SyncUnderWay) -> None:
        """The sync has returned: what it covers is durable."""
        under_way.finished = True
        self._syncs.remove(under_way)
        for change in under_way.changes:
            change.durable = True
        under_way.changes.clear()
        under_way.previous = None

    def _forget_durable(self, changes: deque[DataChange] | deque[NameChange]) -> None:
        old = self.world.now - self.profile.writeback_seconds
        while changes and (changes[0].durable or (changes[0].made_at < old and not changes[0].syncs_fail)):
            changes.popleft()

    # Loss of power.

    def lose_power(self) -> None:
        """Takes back, by seed, what is not durable. No process has a file open any more."""
        random = self.random
        for under_way in self._syncs:
            under_way.decide(random)
            for change in under_way.changes:
                change.durable = change.durable or under_way.survives
        ordered = random.random() < 0.5
        numbers = [change.number for node in self._changed for change in node.changes] + [
            change.number for change in self._names
        ]
        last = random.choice([0, *numbers]) if ordered else None
        survived = self._lose_names(last)
        for node in self._changed:
            survived += self._lose_data(node, last)
        self._changed.clear()
        self._syncs.clear()
        self._count_again()
        self.world.trace.add(self.world.now, Occurrence.SURVIVAL, self.label, survived)

    def _fate(self, change: Change, last: int | None) -> Fate:
        if change.durable:
            return Fate.KEPT
        if change.impossible():
            return Fate.LOST
        if not change.syncs_fail and change.made_at < self.world.now - self.profile.writeback_seconds:
            return Fate.KEPT
        if last is not None and not change.syncs_fail:
            if change.number == last:
                return Fate.TORN
            return Fate.KEPT if change.number < last else Fate.LOST
        return self.random.choice((Fate.KEPT, Fate.TORN, Fate.LOST))

    def _lose_names(self, last: int | None) -> int:
        changes = list(self._names)
        self._names.clear()
        for change in reversed(changes):
            for edit in reversed(change.edits):
                self._set_entry(edit.directory, edit.name, edit.before)
        survived = 0
        for change in changes:
            if self._fate(change, last) is not Fate.LOST:
                survived += 1
                if len(change.edits) == 2:
                    self._take_elsewhere(change, changes)
                for edit in change.edits:
                    self._redo(edit)
        return survived

    def _take_elsewhere(self, rename: NameChange, changes: list[NameChange]) -> None:
        """A file has one name: where the rename before this one is lost, this one takes the file from where it is."""
        source = rename.edits[0]
        node = source.before
        if node is not None and node.names and _present(source) is not node:
            for change in changes:
                for edit in change.edits:
                    if _present(edit) is node:
                        self._set_entry(edit.directory, edit.name, None)

    def _redo(self, edit: Edit) -> None:
        if edit.after is not None:
            self._set_entry(edit.directory, edit.name, edit.after)
        elif _present(edit) is edit.before:
            self._set_entry(edit.directory, edit.name, None)

    def _lose_data(self, node: Node, last: int | None) -> int:
        changes = list(node.changes)
        node.changes.clear()
        content = node.content
        for change in reversed(changes):
            del content[min(change.size_before, change.size_after) :]
            if change.data is None:
                content.extend(change.overwritten)
                del content[change.size_before :]
            else:
                content[change.offset : change.offset + len(change.overwritten)] = change.overwritten
        survived = 0
        for change in changes:
            decided = self._fate(change, last)
            survived += decided is not Fate.LOST
            if decided is Fate.KEPT:
                self._redo_data(content, change)
            elif decided is Fate.TORN:
                self._tear(content, change)
        return survived

    @staticmethod
    def _redo_data(content: bytearray, change: DataChange) -> None:
        if change.data is None:
            del content[change.size_after :]
            content.extend(bytes(change.size_after - len(content)))
        else:
            content.extend(bytes(max(0, change.offset - len(content))))
            content[change.offset : change.offset + len(change.data)] = change.data

    def _tear(self, content: bytearray, change: DataChange) -> None:
        """Part of a write survives: a prefix of sectors, any pages, or only the size; a truncation is whole or
        nothing.
        """
        data = change.data
        if data is None:
            if self.random.random() < 0.5:
                self._redo_data(content, change)
            return
        unit = self.random.choice((SECTOR_BYTES, PAGE_BYTES))
        pieces = _pieces(change.offset, len(data), unit)
        if unit == SECTOR_BYTES:
            pieces = pieces[: self.random.randrange(len(pieces))]
        else:
            pieces = [piece for piece in pieces if self.random.random() < 0.5]
        for start, end in pieces:
            content.extend(bytes(max(0, start - len(content))))
            content[start:end] = data[start - change.offset : end - change.offset]
        if self.random.random() < 0.5:
            content.extend(bytes(max(0, change.size_after - len(content))))

    def _count_again(self) -> None:
        self.used_bytes = 0
        seen: dict[Node, None] = {}
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen[node] = None
            node.opened = 0
            node.locked_by = None
            if node.entries is None:
                self.used_bytes += len(node.content)
            else:
                waiting.extend(node.entries.values())


def _present(edit: Edit) -> Node | None:
    return (edit.directory.entries or {}).get(edit.name)


def _pieces(offset: int, count: int, unit: int) -> list[tuple[int, int]]:
    """The range [offset, offset + count) cut at multiples of `unit` of the file."""
    pieces = []
    start = offset
    while start < offset + count:
        end = min(offset + count, (start // unit + 1) * unit)
        pieces.append((start, end))
        start = end
    return pieces


def share(disks: Sequence[SimulatedDisk], name: str) -> None:
    """Gives all machines one directory below their roots, as of a mounted file system. What a machine has changed there
    and not synced goes with its power, as on its own disk."""
    directory = disks[0].make_node(is_directory=True)
    for disk in disks:
        if disk.root.entries is None:
            raise RuntimeError("a root is a directory")
        disk.root.entries[name] = directory
        directory.names += 1
