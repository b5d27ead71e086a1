"""Very many answers, or a very long one, that come at once: a bounded part of them is read in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from barnabas.coordination.connection import TURN_BYTES, Batch, Connection
from barnabas.coordination.errors import ConnectionLossError, MalformedFrameError
from barnabas.coordination.jute import NAMES_PER_STEP, pack_strings
from barnabas.coordination.operations import (
    GetChildren,
    GetChildrenNames,
    MultiGetChildrenNames,
    Operation,
    ZnodeChildren,
)
from barnabas.coordination.protocol import (
    MULTI_END,
    MULTI_HEADER,
    REPLY_HEADER,
    STAT,
    XID_NOTIFICATION,
    ConnectRequest,
    ConnectResponse,
    EventType,
    KeeperState,
    OpCode,
    Stat,
    WatcherEvent,
    frame,
)

STAT_OF_ALL = Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


class Client:
    """A connection in turns that the test makes; `heard` is what came out of it, in order."""

    def __init__(self) -> None:
        self.futures = asyncio.new_event_loop()
        self.create_future = self.futures.create_future
        self.now = 5.0
        self.heard: list[Any] = []
        self.is_reading = True
        self.switched = 0
        self.aborted = False
        self._due: list[Any] = []
        self._next_xid = 0
        self.connection = Connection(
            cast("Any", self), cast("Any", self), ConnectRequest(0, 6_000, 0, b""), chroot="", reply_bytes_max=1 << 30
        )
        self.connection.connection_made(cast("Any", self))
        self.receive(frame(ConnectResponse(6_000, 7, b"p" * 16).pack()))
        self.turn()

    def ask(self, operation: Operation[Any]) -> int:
        """Returns the request's number."""
        self._next_xid += 1
        self.connection.send(operation, b"", Noted(self), 0)
        return self._next_xid

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)

    # As a loop.

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Any) -> None:
        self._due.append(call)

    def turn(self) -> bool:
        """Whether there was anything to do."""
        due, self._due = self._due, []
        for call in due:
            call()
        return bool(due)

    # As a transport.

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading, self.switched = False, self.switched + 1

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading, self.switched = True, self.switched + 1

    # As the owner.

    def established(self, response: ConnectResponse) -> None: ...

    def notified(self, event: WatcherEvent) -> None:
        self.heard.append(event.path)

    def answered(self, count: int, latency_ms: float) -> None: ...

    def progressed(self) -> None: ...

    def lost(self, reason: str) -> None:
        self.heard.append("lost")


class Noted(Batch):
    """One operation, whose outcome the client hears."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.create_future(), 1)
        self._heard = client.heard

    def deliver(self, index: int, outcome: Any) -> None:
        self._heard.append(outcome)
        super().deliver(index, outcome)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.futures.close()


def reply(xid: int, body: bytes) -> bytes:
    return frame(REPLY_HEADER.pack(xid, 1, 0) + body)


def notification(path: str) -> bytes:
    event = WatcherEvent(EventType.NODE_DELETED, KeeperState.SYNC_CONNECTED, path)
    return frame(REPLY_HEADER.pack(XID_NOTIFICATION, -1, 0) + event.pack())


def lists(*found: list[str]) -> bytes:
    head = MULTI_HEADER.pack(OpCode.GET_CHILDREN, False, 0)
    return b"".join([*(head + pack_strings(names) for names in found), MULTI_END])


def names(count: int) -> list[str]:
    return list(map(str, range(count)))


def read_all(client: Client) -> list[int]:
    """How many outcomes and events there were after each turn, to the end."""
    heard = [len(client.heard)]
    while client.turn():
        heard.append(len(client.heard))
    return heard


def test_answers_that_come_at_once_are_read_in_turns_and_in_order(client: Client) -> None:
    found = [names(100)] * 100
    body = lists(*found)
    data = b""
    for number in range(10):
        data += reply(client.ask(MultiGetChildrenNames(("/a",) * 100)), body) + notification(f"/{number}")
    client.turn()
    client.receive(data)
    assert client.switched == 1
    heard = read_all(client)
    most = 2 * (TURN_BYTES // len(body) + 1)
    assert max(after - before for before, after in zip([0, *heard], heard, strict=False)) <= most
    assert [found] * 10 == client.heard[::2]
    assert [f"/{number}" for number in range(10)] == client.heard[1::2]
    assert client.is_reading
    assert client.switched == 2


def test_short_answers_of_a_turn_are_read_together(client: Client) -> None:
    data = b"".join(reply(client.ask(GetChildrenNames("/a")), pack_strings(["b"])) for _ in range(100))
    client.turn()
    client.receive(data)
    assert client.heard == [["b"]] * 100
    assert client.switched == 0


@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        (MultiGetChildrenNames(("/a",) * 90), lists(*[names(1_000)] * 90), [names(1_000)] * 90),
        (MultiGetChildrenNames(("/a", "/b")), lists(names(90_000), ["c"]), [names(90_000), ["c"]]),
        (GetChildrenNames("/a"), pack_strings(names(90_000)), names(90_000)),
        (
            GetChildren("/a"),
            pack_strings(names(90_000)) + STAT.pack(*STAT_OF_ALL),
            ZnodeChildren(names(90_000), STAT_OF_ALL),
        ),
    ],
)
def test_one_long_answer_is_read_in_turns_and_what_comes_behind_it_waits(
    operation: Operation[Any], body: bytes, expected: Any, client: Client
) -> None:
    xids = [client.ask(operation), client.ask(GetChildrenNames("/b"))]
    client.turn()
    data = reply(xids[0], body) + notification("/first") + reply(xids[1], pack_strings(["c"]))
    client.receive(data[:1_000])
    client.receive(data[1_000:])
    # TLS may have had it already.
    client.receive(notification("/second"))
    heard = read_all(client)
    assert heard.index(4) >= 90_000 // NAMES_PER_STEP
    assert client.heard == [expected, "/first", ["c"], "/second"]
    assert client.is_reading


def test_answers_whose_turn_has_not_come_fail_with_the_connection(client: Client) -> None:
    long = client.ask(GetChildrenNames("/a"))
    behind = client.ask(GetChildrenNames("/b"))
    client.turn()
    client.receive(reply(long, pack_strings(names(90_000))) + notification("/c") + reply(behind, pack_strings([])))
    client.turn()
    client.connection.connection_lost(None)
    assert [type(heard) for heard in client.heard[:2]] == [ConnectionLossError] * 2
    assert client.heard[2:] == ["lost"]
    read_all(client)
    client.receive(notification("/c"))
    assert len(client.heard) == 3


def test_a_long_answer_that_breaks_off_ends_the_connection(client: Client) -> None:
    long = client.ask(GetChildrenNames("/a"))
    behind = client.ask(GetChildrenNames("/b"))
    client.turn()
    body = bytearray(pack_strings(names(90_000)))
    body[-6:-4] = b"\x7f\x7f"
    client.receive(reply(long, bytes(body)) + reply(behind, pack_strings([])))
    assert not client.heard
    read_all(client)
    assert [type(heard) for heard in client.heard[:2]] == [MalformedFrameError, ConnectionLossError]
    assert client.heard[2:] == ["lost"]
    assert client.aborted


def test_what_waits_for_its_turn_counts_as_heard_from_the_server(client: Client) -> None:
    long = client.ask(GetChildrenNames("/a"))
    client.turn()
    client.receive(reply(long, pack_strings(names(90_000))))
    client.now += 60.0
    client.turn()
    assert client.connection.heard_at == client.now
