"""Corners that random operations do not reach: each is played at both servers, and they must do the same."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import raw_zookeeper as raw
from tests.support.embedded_coordinator import embedded_coordinator
from tests.support.raw_zookeeper import (
    Acl,
    ConnectionLost,
    Encoder,
    Operation,
    RawSession,
    Reply,
    Request,
    Stat,
    WatchEvent,
)
from tests.support.waiting import wait_until
from tests.support.zookeeper import four_letter_word, zookeeper

# ZooKeeper's default for jute.maxbuffer.
FRAME_BYTES_MAX = 0xFFFFF
LARGE_TEXT = "x" * 400

Scenario = Callable[["Clients", str], Any]
_roots = (f"/directed{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Servers:
    """The ports of the oracle and of the coordinator under test."""

    oracle_port: int
    tested_port: int

    def outcomes(self, scenario: Scenario) -> tuple[Any, Any]:
        """What the scenario saw at ZooKeeper, and at ours; at the same time, since some wait."""
        root = next(_roots)
        with ThreadPoolExecutor(2) as both:
            theirs = both.submit(played, scenario, self.oracle_port, root)
            ours = both.submit(played, scenario, self.tested_port, root)
            return theirs.result(), ours.result()


@pytest.fixture(scope="module")
def servers(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Both with ZooKeeper's defaults: a tick of two seconds, sessions of 4 to 40 s."""
    defaults = {"tickTime": 2000, "minSessionTimeout": 4_000, "maxSessionTimeout": 40_000}
    with (
        zookeeper(tmp_path_factory.mktemp("oracle"), configuration=defaults) as oracle,
        embedded_coordinator(tmp_path_factory.mktemp("coordinator")) as tested,
    ):
        yield Servers(oracle.port, tested.port)


@dataclass(frozen=True, slots=True)
class Clients:
    """Sessions at one server; their connections are closed when the scenario is over, however it ends."""

    port: int
    opened: list[RawSession] = field(default_factory=list)

    def session(self, timeout_ms: int = 30_000) -> RawSession:
        """A new session."""
        session = self.connectionless(timeout_ms)
        assert session.connect()
        return session

    def connectionless(self, timeout_ms: int = 30_000) -> RawSession:
        """A client that has not said anything yet."""
        session = RawSession(self.port, timeout_ms)
        self.opened.append(session)
        return session


def played(scenario: Scenario, port: int, root: str) -> Any:
    clients = Clients(port)
    try:
        return scenario(clients, root)
    finally:
        for session in clients.opened:
            session.drop()


def bare(value: Any) -> Any:
    """A reply without what differs between any two runs: xids, zxids, times, session ids."""
    match value:
        case Stat():
            return replace(
                value,
                czxid=0,
                mzxid=0,
                pzxid=0,
                ctime_ms=0,
                mtime_ms=0,
                ephemeral_owner=int(value.ephemeral_owner != 0),
            )
        case Reply():
            return replace(value, xid=0, zxid=0, body=bare(value.body))
        case tuple():
            return tuple(map(bare, value))
        case _:
            return value


def calls(clients: Clients, *requests: Request) -> list[Any]:
    """The bare replies of one session to the requests, one after another."""
    session = clients.session()
    seen = [bare(session.call(request)) for request in requests]
    session.close()
    return seen


def request_frame(operation: int, body: bytes, xid: int = 1) -> bytes:
    return struct.pack(">ii", xid, operation) + body


PATH = bytes(Encoder().text("/").output)
MALFORMED_FRAMES = {
    "no header at all": b"",
    "half a header": b"\0\0\0\1",
    "header without a body": request_frame(Operation.GET_DATA, b""),
    "path without a watch flag": request_frame(Operation.GET_DATA, PATH),
    "path longer than the frame": request_frame(Operation.GET_DATA, struct.pack(">i", 1_000_000) + b"/"),
    "path of a negative length": request_frame(Operation.GET_DATA, struct.pack(">i", -2) + b"\0"),
    "null path": request_frame(Operation.GET_DATA, struct.pack(">i", -1) + b"\0"),
    "null path of exists": request_frame(Operation.EXISTS, struct.pack(">i", -1) + b"\0"),
    "null path of create": request_frame(Operation.CREATE, bytes(Encoder().text(None).buffer(b"").acls([]).output)),
    "null path of delete": request_frame(Operation.DELETE, struct.pack(">ii", -1, -1)),
    "path that is not UTF-8": request_frame(Operation.GET_DATA, struct.pack(">i", 2) + b"/\xff\0"),
    "bytes behind the body": request_frame(Operation.GET_DATA, PATH + b"\0" + b"more"),
    "create without flags": request_frame(
        Operation.CREATE, bytes(Encoder().text("/malformed").buffer(b"").acls(raw.WORLD_ALL).output)
    ),
    "access control list of a billion entries": request_frame(
        Operation.CREATE, bytes(Encoder().text("/malformed").buffer(b"").pack("i", 1 << 30).output)
    ),
    "data longer than the frame": request_frame(
        Operation.SET_DATA, bytes(Encoder().text("/").pack("i", 1 << 30).output)
    ),
    "multi that never ends": request_frame(Operation.MULTI, struct.pack(">i?i", Operation.CHECK, False, -1) + PATH),
    "multi of an unknown operation": request_frame(Operation.MULTI, struct.pack(">i?i", 999, False, -1) + PATH),
    "multi of set_acl": request_frame(Operation.MULTI, raw.multi([raw.set_acl("/", raw.WORLD_ALL)]).body),
    "multi without its end": request_frame(Operation.MULTI, b""),
    "multi_read of a write": request_frame(Operation.MULTI_READ, raw.multi([raw.delete("/none")]).body),
    "multi of a read": request_frame(Operation.MULTI, raw.multi([raw.read(Operation.GET_DATA, "/")]).body),
    "delete container by a client": request_frame(Operation.DELETE_CONTAINER, PATH),
    "set watches cut off": request_frame(Operation.SET_WATCHES, struct.pack(">qi", 0, 3), xid=-8),
    "authentication cut off": request_frame(Operation.AUTH, b"\0\0", xid=-4),
    "authentication by an unknown scheme": request_frame(
        Operation.AUTH, raw.authentication("nonsense", b"x").body, xid=-4
    ),
    "authentication by a null scheme": request_frame(
        Operation.AUTH, bytes(Encoder().pack("i", 0).text(None).buffer(b"x").output), xid=-4
    ),
    "reconfig": request_frame(Operation.RECONFIG, bytes(Encoder().text("").text("").text("").pack("q", -1).output)),
    "sync of a missing path": request_frame(Operation.SYNC, bytes(Encoder().text("/none").output)),
}


@pytest.mark.parametrize("name", MALFORMED_FRAMES)
def test_malformed_frames_end_alike(servers: Servers, name: str) -> None:
    def scenario(clients: Clients, root: str) -> list[tuple[int, int, int] | str]:
        session = clients.session()
        session.send_frame(MALFORMED_FRAMES[name])
        session.send_frame(request_frame(Operation.PING, b"", xid=-2))
        seen: list[tuple[int, int, int] | str] = []
        try:
            while not seen or seen[-1][0] != -2:
                frame = session.receive_frame()
                xid, _zxid, error = struct.unpack_from(">iqi", frame)
                # ZooKeeper writes a body behind some errors; no client reads one.
                seen.append((xid, error, 0 if error else len(frame)))
        except ConnectionLost:
            seen.append("closed")
        return seen

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


@pytest.mark.parametrize("operation", [0, 999, -1])
def test_unknown_operations_are_answered_and_end_the_connection(servers: Servers, operation: int) -> None:
    def scenario(clients: Clients, root: str) -> tuple[int, int]:
        session = clients.session()
        session.send_frame(request_frame(operation, PATH))
        xid, _zxid, error = struct.unpack_from(">iqi", session.receive_until_closed(), 4)
        return xid, error

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs == (1, -6)


@pytest.mark.parametrize(
    "length", [FRAME_BYTES_MAX - 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, -1, -(1 << 31), (1 << 31) - 1]
)
def test_frame_lengths_are_bounded_alike(servers: Servers, length: int) -> None:
    def scenario(clients: Clients, root: str) -> str:
        session = clients.session()
        # The data fill the frame: header 8, path 4 + its length, length of data 4, access control list 27, flags 4.
        data = bytes(max(0, min(length, 1 << 20) - 47 - len(root)))
        body = request_frame(Operation.CREATE, raw.create(root, data).body)
        if 0 <= length < 1 << 21:
            assert len(body) == length
        try:
            session.send_bytes(struct.pack(">i", length) + body)
            return "created" if session.receive_frame() else "empty"
        except ConnectionLost:
            return "closed"

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


def test_large_replies_are_not_bounded(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> Any:
        session = clients.session()
        session.call(raw.create(root))
        for first in range(0, 3_000, 500):
            names = [f"{root}/{LARGE_TEXT}{number}" for number in range(first, first + 500)]
            session.call(raw.multi([raw.create(name) for name in names]))
        listed = session.call(raw.read(Operation.GET_CHILDREN2, root))
        session.close()
        return bare(listed)

    theirs, ours = servers.outcomes(scenario)
    assert len(theirs.body[0]) == 3_000
    assert ours == theirs


def test_sequential_names_follow_the_parent(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        create2 = Operation.CREATE2
        return calls(
            clients,
            raw.create(root),
            raw.create(f"{root}/", flags=2),
            raw.create(f"{root}/n", flags=2),
            raw.delete(f"{root}/n0000000001"),
            raw.create(f"{root}/n", flags=2, operation=create2),
            raw.create(f"{root}/plain"),
            raw.create(f"{root}/n", flags=3, operation=create2),
            raw.create(f"{root}/plain/", flags=3),
            raw.create(f"{root}/n0000000006"),
            raw.create(f"{root}/n", flags=2),
            raw.multi([raw.create(f"{root}/m", flags=2), raw.create(f"{root}/m", flags=2), raw.check(root, 7)]),
            raw.multi([raw.create(f"{root}/m", flags=2), raw.create(f"{root}/m", flags=2)]),
            raw.create("/", flags=2),
            raw.read(Operation.GET_CHILDREN2, root),
        )

    theirs, ours = servers.outcomes(scenario)
    assert theirs[1].body == f"{theirs[0].body}/0000000000"
    assert ours == theirs


def test_whole_multi_is_undone_when_one_part_fails(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        return calls(
            clients,
            raw.create(root, b"before"),
            raw.create(f"{root}/gone"),
            raw.multi(
                [
                    raw.set_data(root, b"after", 0),
                    raw.delete(f"{root}/gone"),
                    raw.create(f"{root}/new", flags=1),
                    raw.create(f"{root}/new/below"),
                ]
            ),
            raw.multi([raw.delete(root), raw.create(root)]),
            raw.multi(
                [
                    raw.create(f"{root}/deep"),
                    raw.create(f"{root}/deep/deeper", b"x", 0, raw.WORLD_ALL, Operation.CREATE2),
                    raw.set_data(f"{root}/deep/deeper", b"y", 0),
                    raw.check(f"{root}/deep/deeper", 1),
                    raw.delete(f"{root}/deep/deeper", 1),
                ]
            ),
            raw.read(Operation.GET_DATA, root),
            raw.read(Operation.GET_CHILDREN2, root),
            raw.on_path(Operation.GET_EPHEMERALS, root),
        )

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


def test_access_control_is_the_same(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        owner, other = clients.session(), clients.session()
        read_only = (Acl(1, "world", "anyone"), Acl(31, "auth", ""))
        seen: list[Any] = [
            owner.call(raw.authentication("digest", b"alice:wonder")),
            owner.call(raw.create(root, b"", 0, (Acl(31, "auth", ""),))),
            owner.call(raw.create(f"{root}/shown", b"", 0, read_only)),
            owner.call(raw.on_path(Operation.GET_ACL, f"{root}/shown")),
            other.call(raw.on_path(Operation.GET_ACL, f"{root}/shown")),
            other.call(raw.on_path(Operation.GET_ACL, root)),
            other.call(raw.create(f"{root}/refused")),
            other.call(raw.set_data(f"{root}/shown", b"refused")),
            other.call(raw.set_acl(f"{root}/shown", raw.WORLD_ALL)),
            other.call(raw.delete(f"{root}/shown")),
            other.call(raw.read(Operation.GET_DATA, f"{root}/shown")),
            other.call(raw.read(Operation.GET_CHILDREN, root)),
            other.call(raw.read(Operation.EXISTS, root)),
            other.call(raw.multi([raw.check(root, 0), raw.set_data(root, b"")])),
            other.call(
                raw.multi(
                    [raw.read(Operation.GET_DATA, root), raw.read(Operation.GET_CHILDREN, root)], Operation.MULTI_READ
                )
            ),
            other.call(raw.create(f"{root}x", b"", 0, (Acl(31, "auth", ""),))),
            other.call(raw.authentication("digest", b"alice:wonder")),
            other.call(raw.set_acl(root, read_only, 3)),
            other.call(raw.set_acl(root, read_only, 0)),
            other.call(raw.authentication("digest", b"bob:builder")),
            other.call(raw.create(f"{root}/two", b"", 0, (Acl(7, "auth", ""),))),
            other.call(raw.on_path(Operation.GET_ACL, f"{root}/two")),
            other.call(Request(Operation.WHO_AM_I, b"")),
            owner.call(raw.create(f"{root}/world-auth", b"", 0, (Acl(31, "auth", "ignored"), Acl(1, "auth", "x")))),
            owner.call(raw.on_path(Operation.GET_ACL, f"{root}/world-auth")),
        ]
        owner.close()
        other.close()
        return [bare(reply) for reply in seen]

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


def test_watchers_see_the_same_events_in_the_same_order(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        watcher, writer = clients.session(), clients.session()
        writer.call(raw.create(root))
        writer.call(raw.create(f"{root}/a"))
        for path, mode in ((root, 1), (f"{root}/a", 0), (f"{root}/a/b", 1)):
            watcher.call(raw.watches(Operation.ADD_WATCH, path, mode))
        for path in (root, f"{root}/a", f"{root}/none"):
            watcher.call(raw.read(Operation.EXISTS, path, True))
        watcher.call(raw.read(Operation.GET_CHILDREN, root, True))
        watcher.take_arrivals()
        writer.send(
            raw.set_data(f"{root}/a", b"1"),
            raw.create(f"{root}/a/b"),
            raw.create(f"{root}/a/b/c", flags=1),
            raw.multi([raw.create(f"{root}/none"), raw.set_data(root, b"2"), raw.delete(f"{root}/a/b/c")]),
            raw.delete(f"{root}/a/b"),
            raw.delete(f"{root}/none"),
            raw.create(f"{root}/e", flags=3),
        )
        for _ in range(7):
            writer.receive()
        watcher.ping()
        seen: list[Any] = list(watcher.take_arrivals())
        for path, kind in ((root, 3), (f"{root}/a", 2), (f"{root}/a", 1), (f"{root}/none", 3), (f"{root}/a/b", 3)):
            seen.append(bare(watcher.call(raw.watches(Operation.CHECK_WATCHES, path, kind))))
            seen.append(bare(watcher.call(raw.watches(Operation.REMOVE_WATCHES, path, kind))))
        writer.call(raw.set_data(root, b"3"))
        writer.close()
        watcher.ping()
        seen += [bare(arrival) for arrival in watcher.take_arrivals()]
        watcher.close()
        return seen

    theirs, ours = servers.outcomes(scenario)
    assert sum(isinstance(entry, WatchEvent) for entry in theirs) >= 10
    assert ours == theirs


def test_set_watches_after_a_reconnect_fires_what_was_missed(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        watcher, writer = clients.session(), clients.session()
        for path in ("", "/changed", "/deleted", "/parent", "/kept"):
            writer.call(raw.create(root + path))
        watcher.ping()
        watcher.drop()
        writer.call(raw.set_data(f"{root}/changed", b"1"))
        writer.call(raw.delete(f"{root}/deleted"))
        writer.call(raw.create(f"{root}/created"))
        writer.call(raw.create(f"{root}/parent/child"))
        assert watcher.connect()
        data = [f"{root}/changed", f"{root}/deleted", f"{root}/kept"]
        exist = [f"{root}/created", f"{root}/none"]
        child = [f"{root}/parent", f"{root}/kept", f"{root}/deleted"]
        watcher.call(raw.set_watches(watcher.last_zxid, data, exist, child, [f"{root}/none"], [root]))
        for request in (
            raw.set_data(f"{root}/kept", b"2"),
            raw.create(f"{root}/kept/child"),
            raw.create(f"{root}/none"),
            raw.set_data(f"{root}/changed", b"2"),
        ):
            writer.call(request)
        watcher.ping()
        seen = [bare(arrival) for arrival in watcher.take_arrivals()]
        watcher.close()
        writer.close()
        return seen

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


def test_session_moves_to_the_newer_connection(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        first = clients.session()
        first.call(raw.create(root, flags=1))
        second = clients.connectionless()
        second.session_id, second.password = first.session_id, first.password
        seen: list[Any] = [second.connect(), second.password == first.password]
        try:
            first.call(raw.read(Operation.EXISTS, root))
            seen.append("the first connection still answers")
        except ConnectionLost:
            seen.append("the first connection was closed")
        seen.append(bare(second.call(raw.read(Operation.EXISTS, root))))
        second.close()
        return seen

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


def test_session_requests_are_answered_alike(servers: Servers) -> None:
    def answer(clients: Clients, body: bytes) -> tuple[int, int, bool, int] | str:
        connection = clients.connectionless()
        connection.open_socket()
        connection.send_frame(body)
        try:
            frame = connection.receive_frame()
            version, timeout_ms, session_id = struct.unpack_from(">iiq", frame)
            return version, timeout_ms, session_id != 0, len(frame)
        except ConnectionLost:
            return "closed"

    def request(**changed: Any) -> bytes:
        values: dict[str, Any] = {
            "version": 0,
            "zxid": 0,
            "timeout_ms": 10_000,
            "session": 0,
            "password": bytes(16),
            "end": b"\0",
        }
        values |= changed
        end: bytes = values["end"]
        encoder = Encoder().pack("iqiq", values["version"], values["zxid"], values["timeout_ms"], values["session"])
        return bytes(encoder.buffer(values["password"]).output) + end

    def scenario(clients: Clients, root: str) -> list[Any]:
        living, closed = clients.session(), clients.session()
        closed.close()
        bodies = [
            *(request(timeout_ms=timeout_ms) for timeout_ms in (-1, 0, 3_999, 4_000, 40_000, 40_001, (1 << 31) - 1)),
            request(end=b""),  # as clients before ZooKeeper 3.4 do
            request(end=b"\1"),
            request(version=7),
            request(zxid=1 << 50),
            request(password=b""),
            request(password=None),
            request(session=living.session_id, password=living.password),
            request(session=living.session_id, password=bytes(16)),
            request(session=closed.session_id, password=closed.password),
            request(session=0x1234, password=bytes(16)),
            b"",
            b"\0" * 7,
            request()[:20],
        ]
        return [answer(clients, body) for body in bodies]

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


def test_expiry_deletes_ephemerals_and_tells_watchers(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        watcher, owner = clients.session(), clients.session(timeout_ms=4_000)
        watcher.call(raw.create(root))
        for name in ("a", "b"):
            owner.call(raw.create(f"{root}/{name}", flags=1))
            watcher.call(raw.read(Operation.EXISTS, f"{root}/{name}", True))
        watcher.call(raw.read(Operation.GET_CHILDREN, root, True))
        watcher.take_arrivals()
        owner.drop()
        wait_until(lambda: watcher.call(raw.read(Operation.EXISTS, f"{root}/b")).error != 0, "the session expires")
        events = sorted(repr(arrival) for arrival in watcher.take_arrivals() if isinstance(arrival, WatchEvent))
        seen = [events, owner.connect(), bare(watcher.call(raw.read(Operation.GET_CHILDREN2, root)))]
        watcher.close()
        return seen

    theirs, ours = servers.outcomes(scenario)
    assert len(theirs[0]) == 3
    assert ours == theirs


def test_closing_a_session_is_answered_and_takes_its_ephemerals(servers: Servers) -> None:
    def scenario(clients: Clients, root: str) -> list[Any]:
        session = clients.session()
        session.send(raw.create(root, flags=1), Request(Operation.CLOSE_SESSION, b""))
        seen: list[Any] = [bare(session.receive()), bare(session.receive())]
        seen.append(session.receive_until_closed())
        return [*seen, *calls(clients, raw.read(Operation.EXISTS, root))]

    theirs, ours = servers.outcomes(scenario)
    assert ours == theirs


@pytest.mark.parametrize("word", ["ruok", "srvr", "mntr", "cons", "wchs", "isro", "envi"])
def test_four_letter_words_have_the_same_shape(servers: Servers, word: str) -> None:
    def labels(port: int) -> list[str]:
        answer = four_letter_word(port, word)
        if word in {"ruok", "isro", "wchs"}:
            return [answer]
        if word == "cons":
            return [entry.partition("=")[0] for entry in answer.partition("(")[2].split(")")[0].split(",")]
        separator = {"srvr": ":", "mntr": "\t", "envi": "="}[word]
        return [line.partition(separator)[0] for line in answer.splitlines()]

    theirs, ours = labels(servers.oracle_port), labels(servers.tested_port)
    if word in {"mntr", "envi"}:
        # ZooKeeper's JVM has more to tell; what monitoring reads must be there.
        wanted = {
            "mntr": {"zk_version", "zk_server_state", "zk_znode_count", "zk_watch_count", "zk_ephemerals_count"}
            | {"zk_approximate_data_size", "zk_num_alive_connections", "zk_outstanding_requests", "zk_packets_received"}
            | {"zk_packets_sent", "zk_avg_latency", "zk_max_latency", "zk_min_latency"},
            "envi": {"zookeeper.version"},
        }[word]
        assert wanted <= set(theirs)
        assert wanted <= set(ours)
    else:
        assert ours == theirs
