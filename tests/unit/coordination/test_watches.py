"""The watchers of one session: which answer leaves which watch, what fires it, what the next connection takes over."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.coordination.errors import ErrorCode
from barnabas.coordination.jute import Reader
from barnabas.coordination.operations import Exists, GetChildren, GetChildrenNames, GetData, WatchableRead
from barnabas.coordination.protocol import EventType, KeeperState, WatcherEvent
from barnabas.coordination.watches import Watches

PATH = "/znode"
ZXID = 9
READS = (GetData, Exists, GetChildren, GetChildrenNames)
DATA, EXISTS, CHILDREN = range(3)

LEFT = {
    (GetData, ErrorCode.OK): DATA,
    (Exists, ErrorCode.OK): DATA,
    (Exists, ErrorCode.NO_NODE): EXISTS,
    (GetChildren, ErrorCode.OK): CHILDREN,
    (GetChildrenNames, ErrorCode.OK): CHILDREN,
}
"""The place in a SET_WATCHES of the watch that an answer left at the server; every other answer leaves none."""
FIRES = {
    DATA: {EventType.NODE_CREATED, EventType.NODE_DATA_CHANGED, EventType.NODE_DELETED, EventType.DATA_WATCH_REMOVED},
    EXISTS: {EventType.NODE_CREATED, EventType.NODE_DATA_CHANGED, EventType.NODE_DELETED, EventType.DATA_WATCH_REMOVED},
    CHILDREN: {EventType.NODE_CHILDREN_CHANGED, EventType.NODE_DELETED, EventType.CHILD_WATCH_REMOVED},
}


def watcher(_event: WatcherEvent) -> None:
    raise AssertionError("it is not called here")


def taken_over(watches: Watches) -> list[list[str]]:
    """The paths that the next connection takes over, by place."""
    found: list[list[str]] = [[], [], []]
    for body in watches.set_watches(ZXID, ""):
        reader = Reader(body)
        assert reader.long() == ZXID
        for place in found:
            place += reader.strings()
        reader.finish()
    return found


@pytest.mark.parametrize("code", [ErrorCode.OK, ErrorCode.NO_NODE, ErrorCode.NO_AUTH, ErrorCode.CONNECTION_LOSS])
@pytest.mark.parametrize("read", READS)
def test_an_answer_leaves_the_watch_that_the_server_has(read: type[WatchableRead[Any]], code: ErrorCode) -> None:
    watches = Watches()
    watches.add(read(PATH, watcher), code)
    watches.add(read("/other"), code)
    expected: list[list[str]] = [[], [], []]
    place = LEFT.get((read, code))
    if place is not None:
        expected[place] = [PATH]
    assert taken_over(watches) == expected
    assert len(watches) == (place is not None)


@pytest.mark.parametrize("event_type", [each for each in EventType if each is not EventType.NONE])
@pytest.mark.parametrize(("read", "code"), LEFT)
def test_an_event_takes_out_the_watch_that_it_fires_and_no_other(
    read: type[WatchableRead[Any]], code: ErrorCode, event_type: EventType
) -> None:
    watches = Watches()
    watches.add(read(PATH, watcher), code)
    assert watches.fire(WatcherEvent(event_type, KeeperState.SYNC_CONNECTED, "/other")) == []
    fires = event_type in FIRES[LEFT[read, code]]
    assert watches.fire(WatcherEvent(event_type, KeeperState.SYNC_CONNECTED, PATH)) == [watcher] * fires
    assert len(watches) == (not fires)
    assert [path for place in taken_over(watches) for path in place] == [PATH] * (not fires)


def test_a_watcher_of_several_kinds_is_called_once_for_an_event_and_at_the_end() -> None:
    watches = Watches()
    for _ in range(2):
        for read in (GetData, GetChildren):
            watches.add(read(PATH, watcher), ErrorCode.OK)
        assert watches.fire(WatcherEvent(EventType.NODE_DELETED, KeeperState.SYNC_CONNECTED, PATH)) == [watcher]
    watches.add(GetData(PATH, watcher), ErrorCode.OK)
    watches.add(Exists("/missing", watcher), ErrorCode.NO_NODE)
    assert watches.drain() == [watcher]
    assert len(watches) == 0
