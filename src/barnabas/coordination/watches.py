"""The watchers of one session, sans I/O: who waits for what, and how a new connection takes the watches over."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from barnabas.coordination.errors import ErrorCode
from barnabas.coordination.jute import pack_long, pack_strings
from barnabas.coordination.operations import Exists, GetChildren, GetChildrenNames, WatchableRead, Watcher
from barnabas.coordination.protocol import EventType, WatcherEvent

# Well below the servers' bound on requests, as an ensemble may have it lower than the default.
SET_WATCHES_BYTES_MAX = 128 * 1024


class WatchKind(enum.Enum):
    """ZooKeeper's three one-shot watches; a server knows the first two as one, but takes them over differently."""

    DATA = "data"  # on a znode that is there: its data changes or it is deleted
    EXISTS = "exists"  # on a path where nothing is: it is created
    CHILDREN = "children"  # a child is made or deleted, or the znode itself is deleted


_FIRED_BY: dict[EventType, tuple[WatchKind, ...]] = {
    EventType.NODE_CREATED: (WatchKind.DATA, WatchKind.EXISTS),
    EventType.NODE_DATA_CHANGED: (WatchKind.DATA, WatchKind.EXISTS),
    EventType.NODE_DELETED: (WatchKind.DATA, WatchKind.EXISTS, WatchKind.CHILDREN),
    EventType.NODE_CHILDREN_CHANGED: (WatchKind.CHILDREN,),
    EventType.DATA_WATCH_REMOVED: (WatchKind.DATA, WatchKind.EXISTS),
    EventType.CHILD_WATCH_REMOVED: (WatchKind.CHILDREN,),
}


class Watches:
    """Which watcher waits for which path. A watcher that is added twice for the same is called once."""

    def __init__(self) -> None:
        # Dictionaries, not sets, so that watchers are called in the order in which they were added.
        self._watchers: dict[WatchKind, dict[str, dict[Watcher, None]]] = {kind: {} for kind in WatchKind}

    def __len__(self) -> int:
        """How many paths are watched, counted once for each kind."""
        return sum(len(paths) for paths in self._watchers.values())

    def add(self, read: WatchableRead[Any], code: int) -> None:
        """Notes the watcher of a read that the server answered with `code`, if that left a watch at the server."""
        watcher = read.watcher
        if watcher is None:
            return
        if isinstance(read, Exists) and code == ErrorCode.NO_NODE:
            kind = WatchKind.EXISTS
        elif code != ErrorCode.OK:
            return
        elif isinstance(read, GetChildren | GetChildrenNames):
            kind = WatchKind.CHILDREN
        else:
            kind = WatchKind.DATA
        self._watchers[kind].setdefault(read.path, {})[watcher] = None

    def fire(self, event: WatcherEvent) -> list[Watcher]:
        """Takes out and returns those who waited for the event."""
        called: dict[Watcher, None] = {}
        for kind in _FIRED_BY.get(event.type, ()):
            called.update(self._watchers[kind].pop(event.path, {}))
        return list(called)

    def drain(self) -> list[Watcher]:
        """Takes out and returns all, each once, because the session is over."""
        called: dict[Watcher, None] = {}
        for paths in self._watchers.values():
            for watchers in paths.values():
                called.update(watchers)
            paths.clear()
        return list(called)

    def set_watches(self, last_zxid: int, chroot: str) -> Iterator[bytes]:
        """Bodies of SET_WATCHES requests, which make a new connection take over the watches.

        The server answers at once for what changed after `last_zxid`.
        """
        chunk: dict[WatchKind, list[str]] = {kind: [] for kind in WatchKind}
        size_bytes = 0
        for kind in WatchKind:
            for path in self._watchers[kind]:
                server_path = chroot if path == "/" and chroot else chroot + path
                # Four bytes of UTF-8 at most for a character, and four for the length.
                path_bytes = len(server_path) * 4 + 4
                if size_bytes and size_bytes + path_bytes > SET_WATCHES_BYTES_MAX:
                    yield _pack_set_watches(last_zxid, chunk)
                    chunk = {kind: [] for kind in WatchKind}
                    size_bytes = 0
                chunk[kind].append(server_path)
                size_bytes += path_bytes
        if size_bytes:
            yield _pack_set_watches(last_zxid, chunk)


def _pack_set_watches(last_zxid: int, paths: dict[WatchKind, list[str]]) -> bytes:
    return pack_long(last_zxid) + b"".join(
        [pack_strings(paths[kind]) for kind in (WatchKind.DATA, WatchKind.EXISTS, WatchKind.CHILDREN)]
    )
