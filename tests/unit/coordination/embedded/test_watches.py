"""Which watchers are told what."""

from __future__ import annotations

import pytest

from barnabas.coordination.embedded.access import OPEN
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.coordination.embedded.watches import Watches, WatchMode
from barnabas.coordination.protocol import EventType, WatcherType

CREATED, DELETED = EventType.NODE_CREATED, EventType.NODE_DELETED
CHANGED, CHILDREN = EventType.NODE_DATA_CHANGED, EventType.NODE_CHILDREN_CHANGED


class Ear:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[EventType, str]] = []

    def notify(self, event_type: EventType, path: str, acl: bytes | None) -> None:
        self.heard.append((event_type, path))

    def take(self) -> list[tuple[EventType, str]]:
        heard, self.heard = self.heard, []
        return heard


class Bench:
    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self.watches = Watches()
        self.ear = Ear()

    def create(self, path: str) -> None:
        self.tree.zxid += 1
        self.tree.create(path, b"", OPEN, self.tree.zxid, 0)
        self._fire()

    def delete(self, path: str) -> None:
        self.tree.zxid += 1
        self.tree.delete(path, self.tree.zxid)
        self._fire()

    def change(self, path: str) -> None:
        self.tree.zxid += 1
        self.tree.set_data(path, b"x", self.tree.zxid, 0)
        self._fire()

    def _fire(self) -> None:
        self.watches.fire(self.tree.changes)
        self.tree.changes.clear()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_shot_watches_fire_once(bench: Bench) -> None:
    bench.watches.data.add("/a", bench.ear)
    bench.create("/a")
    bench.change("/a")
    assert bench.ear.take() == [(CREATED, "/a")]
    bench.watches.data.add("/a", bench.ear)
    bench.watches.children.add("/a", bench.ear)
    bench.change("/a")
    bench.create("/a/b")
    bench.create("/a/c")
    assert bench.ear.take() == [(CHANGED, "/a"), (CHILDREN, "/a")]
    assert bench.watches.count == 0


def test_deletion_is_told_once_to_who_watches_data_and_children(bench: Bench) -> None:
    bench.create("/a")
    bench.watches.data.add("/a", bench.ear)
    bench.watches.children.add("/a", bench.ear)
    other = Ear()
    bench.watches.children.add("/a", other)
    bench.watches.children.add("/", other)
    bench.delete("/a")
    assert bench.ear.take() == [(DELETED, "/a")]
    assert other.take() == [(DELETED, "/a"), (CHILDREN, "/")]
    assert bench.watches.count == 0


def test_persistent_watches_stay(bench: Bench) -> None:
    bench.watches.add("/a", bench.ear, WatchMode.PERSISTENT)
    bench.create("/a")
    bench.change("/a")
    bench.create("/a/b")
    bench.change("/a/b")
    bench.delete("/a/b")
    bench.delete("/a")
    expected = [(CREATED, "/a"), (CHANGED, "/a"), (CHILDREN, "/a"), (CHILDREN, "/a"), (DELETED, "/a")]
    assert bench.ear.take() == expected


def test_recursive_watches_cover_the_subtree_without_child_events(bench: Bench) -> None:
    bench.create("/a")
    bench.watches.add("/a", bench.ear, WatchMode.PERSISTENT_RECURSIVE)
    bench.create("/a/b")
    bench.create("/a/b/c")
    bench.change("/a/b/c")
    bench.create("/ab")
    bench.delete("/a/b/c")
    expected = [(CREATED, "/a/b"), (CREATED, "/a/b/c"), (CHANGED, "/a/b/c"), (DELETED, "/a/b/c")]
    assert bench.ear.take() == expected


def test_recursive_watch_on_the_root_sees_everything(bench: Bench) -> None:
    bench.watches.add("/", bench.ear, WatchMode.PERSISTENT_RECURSIVE)
    bench.create("/a")
    bench.create("/a/b")
    assert bench.ear.take() == [(CREATED, "/a"), (CREATED, "/a/b")]


def test_a_one_shot_watch_replaces_a_lasting_one_as_in_zookeeper_3_8(bench: Bench) -> None:
    bench.watches.add("/a", bench.ear, WatchMode.PERSISTENT)
    bench.watches.data.add("/a", bench.ear)
    bench.create("/a")
    bench.change("/a")
    assert bench.ear.take() == [(CREATED, "/a")]


def test_removal_by_kind(bench: Bench) -> None:
    watches = bench.watches
    watches.add("/a", bench.ear, WatchMode.PERSISTENT)
    assert watches.contains("/a", WatcherType.CHILDREN)
    assert watches.remove("/a", WatcherType.DATA, bench.ear)
    assert not watches.contains("/a", WatcherType.DATA)
    assert watches.contains("/a", WatcherType.ANY)
    assert not watches.remove("/a", WatcherType.DATA, bench.ear)
    assert not watches.remove("/a", WatcherType.ANY, Ear())
    assert watches.remove("/a", WatcherType.ANY, bench.ear)
    assert watches.count == 0


def test_a_watcher_that_leaves_takes_all_its_watches_along(bench: Bench) -> None:
    for number in range(5):
        bench.watches.data.add(f"/{number}", bench.ear)
        bench.watches.add(f"/{number}", bench.ear, WatchMode.PERSISTENT_RECURSIVE)
    for _ in bench.watches.remove_watcher(bench.ear):
        pass
    assert bench.watches.count == 0
    assert bench.watches.data.summary().paths == 0
    bench.create("/0")
    assert bench.ear.take() == []


def test_watches_set_again_fire_for_what_was_missed(bench: Bench) -> None:
    # What has changed last before the connection was lost was seen.
    for path in ("/same", "/changed", "/gone", "/grown", "/same/first"):
        bench.create(path)
    bench.delete("/same/first")
    seen = bench.tree.zxid
    bench.change("/changed")
    bench.delete("/gone")
    bench.create("/grown/child")
    bench.create("/appeared")
    bench.watches.set_again(
        bench.tree,
        bench.ear,
        seen,
        ["/same", "/changed", "/gone"],
        ["/appeared", "/absent"],
        ["/same", "/grown", "/gone"],
        ["/lasting"],
        ["/deep"],
    )
    expected = [
        (CHANGED, "/changed"), (DELETED, "/gone"), (CREATED, "/appeared"), (CHILDREN, "/grown"), (DELETED, "/gone")
    ]  # fmt: skip
    assert bench.ear.take() == expected
    bench.change("/same")
    bench.create("/absent")
    bench.create("/same/child")
    bench.create("/deep")
    bench.create("/deep/er")
    bench.create("/lasting")
    expected = [
        (CHANGED, "/same"), (CREATED, "/absent"), (CHILDREN, "/same"), (CREATED, "/deep"), (CREATED, "/deep/er"),
        (CREATED, "/lasting"),
    ]  # fmt: skip
    assert bench.ear.take() == expected
