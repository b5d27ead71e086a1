"""Watches: who is told what when a znode changes.

Two tables, as in ZooKeeper 3.8: data watches (set by reads of data and by exists) and child watches (set by reads of
children). A watch fires once, or lasts when ADD_WATCH set it; a recursive one covers the subtree. Of what ZooKeeper
3.8.4 does, these are kept although they look odd: a one-shot watch set on top of a lasting one of the same watcher
takes its place, CHECK_WATCHES finds a watch of anybody on the path, and an event is withheld from who may not read the
znode (the watch is used up all the same).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from barnabas.coordination.embedded.tree import Change, ZnodeTree
from barnabas.coordination.embedded.turn_budget import PIECE_ELEMENTS, Work
from barnabas.coordination.jute import LONG
from barnabas.coordination.protocol import EventType, WatcherType

_MZXID_AT = 8
_PZXID_AT = 60
_PATHS_PER_PIECE = PIECE_ELEMENTS // 10


class Watcher(Protocol):
    """A connection that gets the events of its watches."""

    def notify(self, event_type: EventType, path: str, acl: bytes | None) -> None:
        """Sends the event, unless `acl` is a list that does not let the watcher read; None is no list."""
        ...


class WatchMode(enum.Enum):
    ONE_SHOT = "one-shot"
    PERSISTENT = "persistent"
    PERSISTENT_RECURSIVE = "persistent recursive"


@dataclass(frozen=True, slots=True)
class WatchSummary:
    """What `wchs` says of one table."""

    watchers: int
    paths: int
    watches: int


class WatchTable:
    """The watches of one kind, by path and by watcher. Dictionaries stand for sets: the order is part of the run."""

    def __init__(self) -> None:
        self.count = 0
        self.path_bytes = 0  # of the paths, about
        self.by_path: dict[str, dict[Watcher, WatchMode]] = {}
        self.by_watcher: dict[Watcher, dict[str, None]] = {}
        self._recursive = 0

    def add(self, path: str, watcher: Watcher, mode: WatchMode = WatchMode.ONE_SHOT) -> None:
        modes = self.by_path.get(path)
        if modes is None:
            modes = self.by_path[path] = {}
            self.path_bytes += len(path)
        old = modes.get(watcher)
        if old is mode:
            return
        if old is None:
            self.count += 1
            self.by_watcher.setdefault(watcher, {})[path] = None
        self._recursive += (mode is WatchMode.PERSISTENT_RECURSIVE) - (old is WatchMode.PERSISTENT_RECURSIVE)
        modes[watcher] = mode

    def remove(self, path: str, watcher: Watcher) -> bool:
        """Removes the watcher's watch on the path; False when it had none."""
        modes = self.by_path.get(path)
        mode = None if modes is None else modes.pop(watcher, None)
        if modes is None or mode is None:
            return False
        self.count -= 1
        self._recursive -= mode is WatchMode.PERSISTENT_RECURSIVE
        if not modes:
            del self.by_path[path]
            self.path_bytes -= len(path)
        paths = self.by_watcher.get(watcher)
        if paths is not None:  # None where the watcher is being forgotten
            paths.pop(path, None)
            if not paths:
                del self.by_watcher[watcher]
        return True

    def remove_watcher(self, watcher: Watcher) -> Work[None]:
        """Forgets the watcher piece by piece; it must take no notice of what it is told from now on."""
        paths = list(self.by_watcher.pop(watcher, ()))
        for start in range(0, len(paths), _PATHS_PER_PIECE):
            for path in paths[start : start + _PATHS_PER_PIECE]:
                self.remove(path, watcher)
            yield PIECE_ELEMENTS

    def trigger(
        self, path: str, event_type: EventType, acl: bytes, suppressed: dict[Watcher, None] | None = None
    ) -> dict[Watcher, None] | None:
        """Tells the watchers of the path, and of the paths above who watch recursively; returns who was meant."""
        if not self.by_path:
            return None
        hit: dict[Watcher, None] = {}
        modes = self.by_path.get(path)
        if modes is not None:
            for watcher, mode in list(modes.items()):
                if mode is WatchMode.PERSISTENT_RECURSIVE:
                    if event_type is not EventType.NODE_CHILDREN_CHANGED:
                        hit[watcher] = None
                    continue
                hit[watcher] = None
                if mode is WatchMode.ONE_SHOT:
                    self.remove(path, watcher)
        if self._recursive and event_type is not EventType.NODE_CHILDREN_CHANGED:
            self._add_recursive(path, hit)
        for watcher in hit:
            if suppressed is None or watcher not in suppressed:
                watcher.notify(event_type, path, acl)
        return hit or None

    def summary(self) -> WatchSummary:
        return WatchSummary(len(self.by_watcher), len(self.by_path), self.count)

    def _add_recursive(self, path: str, hit: dict[Watcher, None]) -> None:
        while path != "/":
            path = path[: path.rfind("/")] or "/"
            for watcher, mode in self.by_path.get(path, {}).items():
                if mode is WatchMode.PERSISTENT_RECURSIVE:
                    hit[watcher] = None


class Watches:
    """Both tables, and what transactions and requests mean for them."""

    def __init__(self) -> None:
        self.data = WatchTable()
        self.children = WatchTable()

    @property
    def count(self) -> int:
        return self.data.count + self.children.count

    @property
    def path_bytes(self) -> int:
        """What the watched paths take, about."""
        return self.data.path_bytes + self.children.path_bytes

    def fire(self, changes: Iterable[Change]) -> None:
        """Tells of the changes of a transaction, in order."""
        data = self.data
        children = self.children
        if not data.by_path and not children.by_path:
            return
        for event_type, path, acl, parent_path, parent_acl in changes:
            told = data.trigger(path, event_type, acl)
            if event_type is EventType.NODE_DATA_CHANGED:
                continue
            if event_type is EventType.NODE_DELETED:
                children.trigger(path, event_type, acl, told)
            children.trigger(parent_path, EventType.NODE_CHILDREN_CHANGED, parent_acl)

    def add(self, path: str, watcher: Watcher, mode: WatchMode) -> None:
        """A lasting watch."""
        self.data.add(path, watcher, mode)
        self.children.add(path, watcher, mode)

    def contains(self, path: str, kind: WatcherType) -> bool:
        """Whether anybody watches the path in this way."""
        return any(path in table.by_path for table in self._tables(kind))

    def remove(self, path: str, kind: WatcherType, watcher: Watcher) -> bool:
        """Removes the watcher's watches of the kind; False when it had none."""
        removed = [table.remove(path, watcher) for table in self._tables(kind)]
        return any(removed)

    def remove_watcher(self, watcher: Watcher) -> Work[None]:
        """Forgets a connection piece by piece; it must take no notice of what it is told from now on."""
        yield from self.data.remove_watcher(watcher)
        yield from self.children.remove_watcher(watcher)

    def set_again(
        self,
        tree: ZnodeTree,
        watcher: Watcher,
        relative_zxid: int,
        data_paths: Iterable[str],
        exist_paths: Iterable[str],
        child_paths: Iterable[str],
        persistent_paths: Iterable[str] = (),
        recursive_paths: Iterable[str] = (),
    ) -> None:
        """SET_WATCHES after a reconnection: what changed since `relative_zxid` fires now, the rest is watched again."""
        find = tree.find
        for path in data_paths:
            node = find(path)
            if node is None:
                watcher.notify(EventType.NODE_DELETED, path, None)
            elif LONG.unpack_from(node[1], _MZXID_AT)[0] > relative_zxid:
                watcher.notify(EventType.NODE_DATA_CHANGED, path, None)
            else:
                self.data.add(path, watcher)
        for path in exist_paths:
            if find(path) is not None:
                watcher.notify(EventType.NODE_CREATED, path, None)
            else:
                self.data.add(path, watcher)
        for path in child_paths:
            node = find(path)
            if node is None:
                watcher.notify(EventType.NODE_DELETED, path, None)
            elif LONG.unpack_from(node[1], _PZXID_AT)[0] > relative_zxid:
                watcher.notify(EventType.NODE_CHILDREN_CHANGED, path, None)
            else:
                self.children.add(path, watcher)
        for path in persistent_paths:
            self.add(path, watcher, WatchMode.PERSISTENT)
        for path in recursive_paths:
            self.add(path, watcher, WatchMode.PERSISTENT_RECURSIVE)

    def _tables(self, kind: WatcherType) -> tuple[WatchTable, ...]:
        if kind is WatcherType.DATA:
            return (self.data,)
        if kind is WatcherType.CHILDREN:
            return (self.children,)
        return (self.data, self.children)
