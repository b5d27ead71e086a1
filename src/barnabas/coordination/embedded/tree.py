"""The tree of znodes, sans I/O: what transactions do to it and what reads see, nothing of sessions, watches or disks.

A znode is a tuple of its data, its packed stat, its encoded access control list and its children; it is replaced, never
changed, so that keeping the old tuples of what changes keeps the whole state of one moment (snapshots), and undoing is
putting the old tuple back (a failed multi). Children are None, the name of an only child, or a dictionary of names in
order of creation; that dictionary alone is changed in place, and snapshots do not look at it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from barnabas.coordination.embedded.access import OPEN, READ_ONLY, SHARED_LIST_BYTES_MAX
from barnabas.coordination.embedded.quotas import QUOTA_ROOT, QuotaLedger
from barnabas.coordination.embedded.stats import (
    built_in_stat,
    new_stat,
    owner_of,
    with_acl_changed,
    with_child_created,
    with_child_deleted,
    with_data,
    with_length,
)
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.protocol import EventType

Children = str | dict[str, None] | None
Znode = tuple[bytes | None, bytes, bytes, Children]
# What a transaction changed, for watches: the event's type, the path, the list that guards it, and for creations and
# deletions the parent's path and the list that guards the parent.
Change = tuple[EventType, str, bytes, str, bytes]
Undo = Callable[[], None]

ROOT = "/"
CONFIGURATION_PATH = "/zookeeper/config"
SPECIAL_PATHS = frozenset({ROOT, "/zookeeper", QUOTA_ROOT, CONFIGURATION_PATH})
_SHARED_LISTS_MAX = 10_000


class ZnodeTree:
    """All znodes, and the number of the last transaction.

    The mutators take valid arguments: they raise nothing but `NoNodeError` for a parent or znode that is not there,
    which says that the log does not fit the tree. Each appends what it changed to `changes` and, when `journal` is a
    list, how to undo it.
    """

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, Znode] = {
            ROOT: (b"", built_in_stat(1), OPEN, "zookeeper"),
            "/zookeeper": (b"", built_in_stat(2), OPEN, {"quota": None, "config": None}),
            QUOTA_ROOT: (b"", built_in_stat(0), OPEN, None),
            CONFIGURATION_PATH: (b"", built_in_stat(0, aversion=-1), READ_ONLY, None),
        }
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.containers: dict[str, None] = {}
        self.ttls_ms: dict[str, int] = {}
        self.data_bytes = sum(map(len, self.nodes))
        self.changes: list[Change] = []
        self.journal: list[Undo] | None = None
        # While a snapshot is written: what was at each path that has changed since it began; None for nothing.
        self.preserved: dict[str, Znode | None] | None = None
        self._quotas = QuotaLedger()
        self._shared_lists: dict[bytes, bytes] = {OPEN: OPEN, READ_ONLY: READ_ONLY}

    def find(self, path: str) -> Znode | None:
        """The znode at the path, or None; an empty path is the root's, as in ZooKeeper."""
        return self.nodes.get(path or ROOT)

    def get(self, path: str) -> Znode:
        """The znode at the path; an empty path is the root's, as in ZooKeeper. Raises `NoNodeError`."""
        node = self.nodes.get(path or ROOT)
        if node is None:
            raise NoNodeError(path)
        return node

    @property
    def count(self) -> int:
        """Znodes as ZooKeeper counts them, the root twice."""
        return len(self.nodes) + 1

    @property
    def ephemeral_count(self) -> int:
        return sum(map(len, self.ephemerals.values()))

    def descendant_count(self, path: str, count_max: int) -> int | None:
        """Znodes below the path, None for more than so many; below the empty one ZooKeeper counts the root too."""
        if path in {ROOT, ""}:
            return len(self.nodes) - (path == ROOT)
        count = 0
        pending = [path]
        while pending:
            here = pending.pop()
            node = self.nodes[here]
            count += len(node[3]) if isinstance(node[3], dict) else node[3] is not None
            if count > count_max:
                return None
            pending.extend(f"{here}/{name}" for name in child_names(node))
        return count

    def create(
        self,
        path: str,
        data: bytes | None,
        acl: bytes,
        zxid: int,
        time_ms: int,
        *,
        owner: int = 0,
        container: bool = False,
        ttl_ms: int = 0,
    ) -> bytes:
        """Adds a znode and returns its stat. `owner` is a session id for an ephemeral one; `ttl_ms` is 0 for none."""
        cut = path.rfind("/")
        parent_path = path[:cut] or ROOT
        name = sys.intern(path[cut + 1 :])
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(parent_path)
        acl = self._share(acl)
        stat = new_stat(zxid, time_ms, owner, len(data or b""))
        parent_data, parent_stat, parent_acl, siblings = parent
        if siblings is None:
            siblings = name
        elif isinstance(siblings, str):
            siblings = {siblings: None, name: None}
        else:
            siblings[name] = None
        if self.preserved is not None:
            self.preserved.setdefault(parent_path, parent)
            self.preserved.setdefault(path, None)
        self.nodes[parent_path] = (parent_data, with_child_created(parent_stat, zxid), parent_acl, siblings)
        self.nodes[path] = (data, stat, acl, None)
        self.data_bytes += len(path) + len(data or b"")
        if owner:
            self.ephemerals.setdefault(owner, {})[path] = None
        elif container:
            self.containers[path] = None
        elif ttl_ms:
            self.ttls_ms[path] = ttl_ms
        if self.journal is not None:
            self.journal.append(lambda: self._undo_create(path, parent_path, parent, name, owner))
        if self._quotas.concerns(path):
            self._after_quota_change(path, name, created=True)
        if self._quotas.limited:
            self._charge(path, len(data or b""), 1)
        self.changes.append((EventType.NODE_CREATED, path, acl, parent_path, parent_acl))
        return stat

    def delete(self, path: str, zxid: int) -> None:
        """Removes a znode without children."""
        cut = path.rfind("/")
        parent_path = path[:cut] or ROOT
        name = path[cut + 1 :]
        node = self.nodes.pop(path, None)
        if node is None:
            raise NoNodeError(path)
        parent = self.nodes[parent_path]
        if self.preserved is not None:
            self.preserved.setdefault(path, node)
            self.preserved.setdefault(parent_path, parent)
        data, stat, acl, _ = node
        parent_data, parent_stat, parent_acl, siblings = parent
        if isinstance(siblings, dict):
            del siblings[name]
            left: Children = siblings or None
        else:
            left = None
        self.nodes[parent_path] = (parent_data, with_child_deleted(parent_stat, zxid), parent_acl, left)
        self.data_bytes -= len(path) + len(data or b"")
        owner = owner_of(stat)
        container = False
        ttl_ms = 0
        if owner:
            self._disown(owner, path)
        else:
            container = path in self.containers
            if container:
                del self.containers[path]
            ttl_ms = self.ttls_ms.pop(path, 0)
        if self.journal is not None:
            self.journal.append(
                lambda: self._undo_delete(path, node, parent_path, parent, name, owner, container, ttl_ms)
            )
        if self._quotas.concerns(path):
            self._after_quota_change(path, name, created=False)
        if self._quotas.limited:
            self._charge(path, -len(data or b""), -1)
        self.changes.append((EventType.NODE_DELETED, path, acl, parent_path, parent_acl))

    def set_data(self, path: str, data: bytes | None, zxid: int, time_ms: int) -> bytes:
        """Replaces the data and returns the new stat."""
        node = self.get(path)
        path = path or ROOT
        if self.preserved is not None:
            self.preserved.setdefault(path, node)
        old_data, old_stat, acl, children = node
        length = len(data or b"")
        difference = length - len(old_data or b"")
        stat = with_data(old_stat, zxid, time_ms, length)
        self.nodes[path] = (data, stat, acl, children)
        self.data_bytes += difference
        if self.journal is not None:
            self.journal.append(lambda: self._undo_set(path, node, difference))
        if self._quotas.limited:
            self._charge(path, difference, 0)
        self.changes.append((EventType.NODE_DATA_CHANGED, path, acl, "", b""))
        return stat

    def set_acl(self, path: str, acl: bytes) -> bytes:
        """Replaces the access control list and returns the new stat."""
        node = self.get(path)
        data, old_stat, _, children = node
        if self.preserved is not None:
            self.preserved.setdefault(path or ROOT, node)
        stat = with_acl_changed(old_stat)
        self.nodes[path or ROOT] = (data, stat, self._share(acl), children)
        if self.journal is not None:
            self.journal.append(lambda: self._undo_set(path or ROOT, node, 0))
        return stat

    def close_session(self, session_id: int, zxid: int) -> None:
        """Deletes the session's ephemeral znodes, in the order in which they were created."""
        for path in list(self.ephemerals.get(session_id, ())):
            self.delete(path, zxid)

    def restore(self, path: str, node: Znode, *, container: bool = False, ttl_ms: int = 0) -> None:
        """Puts a znode of a snapshot back; parents come before their children, and `node` has no children yet."""
        data, stat, acl, _ = node
        known = self.nodes.get(path)
        children = None if known is None else known[3]
        self.nodes[path] = (data, stat, self._share(acl), children)
        self.data_bytes += len(data or b"")
        if known is not None:
            self.data_bytes -= len(known[0] or b"")
            return
        self.data_bytes += len(path)
        cut = path.rfind("/")
        parent_path = path[:cut] or ROOT
        name = sys.intern(path[cut + 1 :])
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(parent_path)
        siblings = parent[3]
        if isinstance(siblings, dict):
            siblings[name] = None
        else:
            self.nodes[parent_path] = (*parent[:3], name if siblings is None else {siblings: None, name: None})
        owner = owner_of(stat)
        if owner:
            self.ephemerals.setdefault(owner, {})[path] = None
        elif container:
            self.containers[path] = None
        elif ttl_ms:
            self.ttls_ms[path] = ttl_ms
        if self._quotas.concerns(path):
            self._quotas.note(path, name, created=True)

    def _share(self, acl: bytes) -> bytes:
        """One object for equal lists, so that 100,000 guarded znodes hold one list."""
        if len(acl) > SHARED_LIST_BYTES_MAX:
            return acl
        shared = self._shared_lists.get(acl)
        if shared is None:
            if len(self._shared_lists) >= _SHARED_LISTS_MAX:
                self._shared_lists = {OPEN: OPEN, READ_ONLY: READ_ONLY}
            shared = self._shared_lists[acl] = acl
        return shared

    def _walk(self, path: str) -> Iterator[tuple[str, Znode]]:
        """The znode and all below it."""
        pending = [path]
        while pending:
            here = pending.pop()
            node = self.nodes[here]
            yield here, node
            pending.extend(f"{here}/{name}" for name in child_names(node))

    def _disown(self, owner: int, path: str) -> None:
        owned = self.ephemerals[owner]
        del owned[path]
        if not owned:
            del self.ephemerals[owner]

    def _undo_create(self, path: str, parent_path: str, parent: Znode, name: str, owner: int) -> None:
        data = self.nodes.pop(path)[0]
        siblings = parent[3]
        if isinstance(siblings, dict):
            del siblings[name]
        self.nodes[parent_path] = parent
        self.data_bytes -= len(path) + len(data or b"")
        if owner:
            self._disown(owner, path)
        self.containers.pop(path, None)
        self.ttls_ms.pop(path, None)
        if self._quotas.concerns(path):
            self._quotas.note(path, name, created=False)

    def _undo_delete(
        self,
        path: str,
        node: Znode,
        parent_path: str,
        parent: Znode,
        name: str,
        owner: int,
        container: bool,
        ttl_ms: int,
    ) -> None:
        self.nodes[path] = node
        siblings = parent[3]
        if isinstance(siblings, dict):
            siblings[name] = None
        self.nodes[parent_path] = parent
        self.data_bytes += len(path) + len(node[0] or b"")
        if owner:
            self.ephemerals.setdefault(owner, {})[path] = None
        if container:
            self.containers[path] = None
        if ttl_ms:
            self.ttls_ms[path] = ttl_ms
        if self._quotas.concerns(path):
            self._quotas.note(path, name, created=True)

    def _undo_set(self, path: str, node: Znode, difference: int) -> None:
        self.nodes[path] = node
        self.data_bytes -= difference

    def _after_quota_change(self, path: str, name: str, *, created: bool) -> None:
        """A limit starts or stops the counting of its subtree; statistics start from a count of what is there."""
        subtree = self._quotas.note(path, name, created=created)
        if subtree is None or subtree not in self.nodes:
            return
        znodes = 0
        total_bytes = 0
        for _, node in self._walk(subtree):
            znodes += 1
            total_bytes += len(node[0] or b"")
        self._write_statistics(path, self._quotas.statistics(znodes, total_bytes))

    def _charge(self, path: str, byte_difference: int, count_difference: int) -> None:
        """Counts a change in the statistics of the quota that the path is under. Quotas are not enforced."""
        statistics_path = self._quotas.statistics_path_for(path)
        node = None if statistics_path is None else self.nodes.get(statistics_path)
        if statistics_path is None or node is None:
            return
        self._write_statistics(statistics_path, self._quotas.charged(node[0] or b"", byte_difference, count_difference))

    def _write_statistics(self, path: str, data: bytes) -> None:
        node = self.nodes[path]
        if self.preserved is not None:
            self.preserved.setdefault(path, node)
        old_data, stat, acl, children = node
        self.nodes[path] = (data, with_length(stat, len(data)), acl, children)
        difference = len(data) - len(old_data or b"")
        self.data_bytes += difference
        if self.journal is not None:
            self.journal.append(lambda: self._undo_set(path, node, difference))


def child_names(node: Znode) -> list[str]:
    """The names of a znode's children, in order of creation."""
    children = node[3]
    if children is None:
        return []
    return [children] if isinstance(children, str) else list(children)
