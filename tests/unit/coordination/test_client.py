"""The client against a server that follows the test's script: what goes over the wire, what comes of every fault."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.errors import (
    AuthFailedError,
    BadArgumentsError,
    ClientClosedError,
    ConnectionLossError,
    ErrorCode,
    MalformedFrameError,
    NoNodeError,
    NotSentError,
    ReplyTooLargeError,
    RequestTooLargeError,
    SessionExpiredError,
)
from barnabas.coordination.jute import INT, Reader, pack_buffer, pack_string
from barnabas.coordination.operations import Create, Delete, GetData, SetData
from barnabas.coordination.protocol import (
    LENGTH,
    MULTI_END,
    MULTI_HEADER,
    XID_AUTH,
    XID_SET_WATCHES,
    AuthPacket,
    EventType,
    KeeperState,
    OpCode,
    Stat,
    WatcherEvent,
    frame,
)
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.real_host import real_host
from tests.unit.coordination.scripted_server import ScriptedConnection, ScriptedServer, scripted_server

Parties = tuple[Client, ScriptedConnection, ScriptedServer]
Run = Callable[[Coroutine[Any, Any, Any]], Any]
STAT = Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


@contextlib.asynccontextmanager
async def client_of(server: ScriptedServer, chroot: str = "", **settings: Any) -> AsyncIterator[Client]:
    async with real_host("test", asyncio.get_running_loop()) as host:
        client = Client(host, ClientSettings(server.address + chroot, backoff_ms_min=1, backoff_ms_max=2, **settings))
        try:
            yield client
        finally:
            await client.close()


@contextlib.asynccontextmanager
async def connected(
    chroot: str = "", **settings: Any
) -> AsyncIterator[tuple[Client, ScriptedConnection, ScriptedServer]]:
    """A client that has a session, the server's end of its connection, and the server."""
    async with scripted_server() as server, client_of(server, chroot, **settings) as client:
        connecting = asyncio.create_task(client.connect(30_000))
        connection = await server.connection()
        await connection.accept()
        await connecting
        yield client, connection, server
        # Nobody answers the end of the session, and nobody should wait for that.
        for each in server._all:
            each.close()


def test_new_session_is_asked_for_and_taken_as_the_server_grants_it(run: Run) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, client_of(server, session_timeout_ms=9_000) as client:
            connecting = asyncio.create_task(client.connect(30_000))
            connection = await server.connection()
            request = await connection.accept(session_id=0x1234, timeout_ms=4_000, password=b"secret")
            await connecting
            assert (request.session_id, request.password, request.timeout_ms) == (0, bytes(16), 9_000)
            assert (request.last_zxid_seen, request.read_only) == (0, False)
            assert (client.ticket.id, client.ticket.password) == (0x1234, b"secret")
            assert client.session_timeout_ms == 4_000
            assert client.state is SessionState.CONNECTED
            connection.close()

    run(scenario())


def test_requests_of_one_turn_leave_in_one_write_and_answers_come_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            first = asyncio.create_task(client.get_data("/a"))
            rest = asyncio.create_task(client.submit([SetData("/b", b"x", 3), Delete("/c"), GetData("/d")]))
            requests = [await connection.request() for _ in range(4)]
            assert [request.op_code for request in requests] == [
                OpCode.GET_DATA,
                OpCode.SET_DATA,
                OpCode.DELETE,
                OpCode.GET_DATA,
            ]
            assert [request.xid for request in requests] == [1, 2, 3, 4]
            assert [request.body.string() for request in requests] == ["/a", "/b", "/c", "/d"]
            connection.reply(requests[0], pack_buffer(b"data") + STAT.pack())
            connection.reply(requests[1], STAT.pack())
            connection.reply(requests[2], code=ErrorCode.NO_NODE)
            connection.reply(requests[3], pack_buffer(None) + STAT.pack())
            assert await first == (b"data", STAT)
            stat, missing, null = await rest
            assert stat == STAT
            assert isinstance(missing, NoNodeError)
            assert missing.path == "/c"
            assert null == (None, STAT)

    run(scenario())


def test_answers_are_read_however_they_are_cut(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            reading = asyncio.create_task(client.submit([GetData("/a"), GetData("/b")]))
            requests = [await connection.request(), await connection.request()]
            written: list[bytes] = []
            writer, connection.writer = connection.writer, _Collector(written)  # type: ignore[assignment]
            connection.reply(requests[0], pack_buffer(b"one") + STAT.pack())
            connection.reply(requests[1], pack_buffer(b"two" * 1_000) + STAT.pack())
            connection.writer = writer
            for byte in b"".join(written):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert [answer.data for answer in await reading] == [b"one", b"two" * 1_000]

    run(scenario())


class _Collector:
    def __init__(self, written: list[bytes]) -> None:
        self.write = written.append


def test_operations_under_way_fail_when_the_connection_breaks_and_the_rest_of_the_call_is_not_sent(run: Run) -> None:
    async def scenario() -> None:
        async with connected(in_flight_max=2) as (client, connection, server):
            states: list[SessionState] = []
            client.add_state_listener(states.append)
            submitting = asyncio.create_task(client.submit([Create("/a"), Create("/b"), Create("/c"), Create("/d")]))
            await connection.request()
            connection.reply(await connection.request(), code=0)  # not the oldest: the connection is of no more use
            outcomes = await submitting
            assert [type(outcome) for outcome in outcomes[:2]] == [ConnectionLossError, ConnectionLossError]
            await (await server.connection()).accept()
            await client.connect(30_000)
            assert [type(outcome) for outcome in outcomes[2:]] == [NotSentError, NotSentError]
            assert [outcome.path for outcome in outcomes] == ["/a", "/b", "/c", "/d"]
            assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]

    run(scenario())


def test_session_is_taken_to_the_next_connection_with_credentials_and_watches_first(run: Run) -> None:
    async def scenario() -> None:
        async with connected("/root", credentials=(("digest", b"u:p"),)) as (client, connection, server):
            auth = await connection.request()
            assert (auth.xid, auth.op_code) == (XID_AUTH, OpCode.AUTH)
            assert AuthPacket.read(auth.body) == AuthPacket("digest", b"u:p")
            connection.reply(auth)
            events: list[WatcherEvent] = []
            reads = asyncio.create_task(
                client.submit([GetData("/data", events.append), Create("/x")]),
            )
            data, create = await connection.request(), await connection.request()
            assert data.body.string() == "/root/data"
            connection.reply(data, pack_buffer(b"") + STAT.pack(), zxid=41)
            connection.reply(create, pack_string("/root/x"), zxid=42)
            assert (await reads)[1].path == "/x"
            looking = asyncio.create_task(client.exists("/none", events.append))
            connection.reply(await connection.request(), code=ErrorCode.NO_NODE, zxid=43)
            assert await looking is None
            listing = asyncio.create_task(client.get_children("/", events.append))
            children = await connection.request()
            assert children.body.string() == "/root"
            connection.reply(children, INT.pack(0) + STAT.pack(), zxid=44)
            await listing
            waiting = None
            connection.close()
            second = await server.connection()
            request = await second.accept(session_id=7)
            assert (request.session_id, request.password, request.last_zxid_seen) == (7, b"p" * 16, 44)
            assert (await second.request()).xid == XID_AUTH
            watches = await second.request()
            assert (watches.xid, watches.op_code) == (XID_SET_WATCHES, OpCode.SET_WATCHES)
            assert watches.body.long() == 44
            assert [watches.body.strings() for _ in range(3)] == [["/root/data"], ["/root/none"], ["/root"]]
            waiting = asyncio.create_task(client.delete("/later"))
            assert (await second.request()).op_code == OpCode.DELETE
            waiting.cancel()
            second.notify(EventType.NODE_CREATED, "/root/none")
            second.notify(EventType.NODE_CHILDREN_CHANGED, "/root")
            second.notify(EventType.NODE_CREATED, "/root/none")
            await _until(lambda: len(events) == 2)
            assert [(event.type, event.path) for event in events] == [
                (EventType.NODE_CREATED, "/none"),
                (EventType.NODE_CHILDREN_CHANGED, "/"),
            ]

    run(scenario())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_watcher_is_called_before_a_later_answer_is_seen_and_after_an_earlier_one(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            seen: list[str] = []

            async def read(name: str) -> None:
                await client.get_data("/a", lambda _: seen.append(f"event of {name}"))
                seen.append(name)

            first = asyncio.create_task(read("first"))
            request = await connection.request()
            second = asyncio.create_task(read("second"))
            later = await connection.request()
            answer = pack_buffer(b"") + STAT.pack()
            connection.reply(request, answer)
            connection.notify(EventType.NODE_DATA_CHANGED, "/a")
            connection.reply(later, answer)
            await asyncio.gather(first, second)
            assert seen == ["first", "event of first", "second"]

    run(scenario())


def test_expired_session_is_told_to_everybody_and_cannot_be_missed(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, server):
            events: list[WatcherEvent] = []
            states: list[SessionState] = []
            client.add_state_listener(states.append)
            waiting = asyncio.create_task(client.session_over())
            reading = asyncio.create_task(client.get_data("/a", events.append))
            connection.reply(await connection.request(), pack_buffer(b"") + STAT.pack())
            await reading
            connection.close()
            second = await server.connection()
            queued = asyncio.create_task(client.submit([GetData("/b"), GetData("/c")]))
            await second.accept(session_id=0, timeout_ms=0)
            outcomes = await queued
            assert [(type(outcome), outcome.path) for outcome in outcomes] == [
                (SessionExpiredError, "/b"),
                (SessionExpiredError, "/c"),
            ]
            assert await waiting is SessionState.EXPIRED
            assert await client.session_over() is SessionState.EXPIRED
            assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED]
            assert events == [WatcherEvent(EventType.NONE, KeeperState.EXPIRED, "")]
            late: list[SessionState] = []
            client.add_state_listener(late.append)
            assert late == [SessionState.EXPIRED]
            with pytest.raises(SessionExpiredError, match="/d: the session has expired"):
                await client.get_data("/d")
            with pytest.raises(SessionExpiredError):
                await client.connect(1_000)
            await client.close()
            assert client.state is SessionState.EXPIRED

    run(scenario())


def test_refused_credentials_end_the_session(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            adding = asyncio.create_task(client.add_credential("digest", b"u:p"))
            auth = await connection.request()
            connection.reply(auth, code=ErrorCode.AUTH_FAILED)
            with pytest.raises(AuthFailedError):
                await adding
            assert client.state is SessionState.AUTH_FAILED
            with pytest.raises(AuthFailedError):
                await client.get_data("/a")
            with pytest.raises(AuthFailedError):
                await client.add_credential("digest", b"u:q")

    run(scenario())


def test_no_more_is_in_flight_than_allowed(run: Run) -> None:
    async def scenario() -> None:
        async with connected(in_flight_max=2) as (client, connection, _):
            reading = asyncio.create_task(client.submit([GetData(f"/{index}") for index in range(5)]))
            sent = [await connection.request(), await connection.request()]
            for index in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await connection.request()
                connection.reply(sent[index], pack_buffer(b"%d" % index) + STAT.pack())
                sent.append(await connection.request())
            for index in (3, 4):
                connection.reply(sent[index], pack_buffer(b"%d" % index) + STAT.pack())
            assert [answer.data for answer in await reading] == [b"0", b"1", b"2", b"3", b"4"]

    run(scenario())


def test_bytes_in_flight_are_bounded_but_a_single_request_always_fits(run: Run) -> None:
    async def scenario() -> None:
        async with connected(in_flight_bytes_max=100) as (client, connection, _):
            writing = asyncio.create_task(client.submit([SetData("/a", bytes(1_000)), SetData("/b", b"")]))
            first = await connection.request()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await connection.request()
            connection.reply(first, STAT.pack())
            connection.reply(await connection.request(), STAT.pack())
            assert await writing == [STAT, STAT]

    run(scenario())


def test_room_that_a_cancelled_caller_was_given_goes_to_the_next(run: Run) -> None:
    async def scenario() -> None:
        async with connected(in_flight_max=1) as (client, connection, _):
            first = asyncio.create_task(client.delete("/1"))
            request = await connection.request()
            second = asyncio.create_task(client.delete("/2"))
            third = asyncio.create_task(client.delete("/3"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            second.cancel()
            connection.reply(request)
            await first
            following = await connection.request()
            assert following.body.string() == "/3"
            connection.reply(following)
            await third

    run(scenario())


def test_requests_above_the_bound_are_refused_here(run: Run) -> None:
    async def scenario() -> None:
        async with connected(request_bytes_max=200) as (client, connection, _):
            with pytest.raises(
                RequestTooLargeError,
                match=r"/big: a request of 1\d\d\d bytes is above the bound of 200; .*jute.maxbuffer",
            ):
                await client.create("/big", bytes(1_000))
            with pytest.raises(BadArgumentsError, match="a path starts with a slash"):
                await client.create("relative")
            deleting = asyncio.create_task(client.delete("/small"))
            request = await connection.request()
            assert (request.xid, request.op_code) == (1, OpCode.DELETE)
            connection.reply(request)
            await deleting

    run(scenario())


def test_reply_above_the_bound_fails_its_operation_and_the_connection(run: Run) -> None:
    async def scenario() -> None:
        async with connected(reply_bytes_max=1_000) as (client, connection, server):
            reading = asyncio.create_task(client.submit([GetData("/big"), GetData("/next")]))
            await connection.request()
            connection.writer.write(LENGTH.pack(1_001))
            outcomes = await reading
            assert [type(outcome) for outcome in outcomes] == [ReplyTooLargeError, ConnectionLossError]
            await (await server.connection()).accept()
            await client.connect(30_000)

    run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(LENGTH.pack(-5), id="negative length"),
        pytest.param(frame(b"short"), id="no header"),
        pytest.param(frame(INT.pack(99) + bytes(12)), id="unknown request"),
        pytest.param(
            frame(INT.pack(-1) + bytes(12) + INT.pack(77) + INT.pack(3) + pack_string("/")), id="unknown event"
        ),
        pytest.param(frame(INT.pack(1) + bytes(12) + INT.pack(5) + b"abc"), id="truncated body"),
        pytest.param(frame(INT.pack(1) + bytes(12) + pack_buffer(b"") + STAT.pack() + b"!"), id="bytes left over"),
    ],
)
def test_garbage_ends_the_connection_and_the_next_one_is_tried(run: Run, answer: bytes) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, server):
            reading = asyncio.create_task(client.submit([GetData("/a")]))
            await connection.request()
            connection.writer.write(answer)
            assert isinstance((await reading)[0], ConnectionLossError | MalformedFrameError)
            await connection.closed()
            second = await server.connection()
            request = await second.accept()
            assert request.session_id == 7

    run(scenario())


@pytest.mark.parametrize("way", ["unimplemented", "empty", "dropped"])
@pytest.mark.parametrize(
    ("read", "answers"),
    [
        (Client.get_many, [(b"1", STAT), (b"2", STAT)]),
        (Client.get_written_of_many, [(b"1", STAT.version, STAT.mzxid), (b"2", STAT.version, STAT.mzxid)]),
    ],
)
def test_multi_read_falls_back_to_single_reads(
    run: Run, read: Callable[[Client, list[str]], Coroutine[Any, Any, list[Any]]], answers: list[Any], way: str
) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, server):
            reading = asyncio.create_task(read(client, ["/a", "/b"]))
            request = await connection.request()
            assert request.op_code == OpCode.MULTI_READ
            if way == "unimplemented":
                connection.reply(request, code=ErrorCode.UNIMPLEMENTED)
            elif way == "empty":
                connection.reply(request)
            else:
                connection.close()
                connection = await server.connection()
                await connection.accept()
            for data in (b"1", b"2"):
                single = await connection.request()
                assert single.op_code == OpCode.GET_DATA
                connection.reply(single, pack_buffer(data) + STAT.pack())
            assert await reading == answers
            again = asyncio.create_task(client.get_children_names_of_many(["/a"]))
            request = await connection.request()
            assert request.op_code == (OpCode.MULTI_READ if way == "dropped" else OpCode.GET_CHILDREN)
            again.cancel()

    run(scenario())


def test_multi_read_gives_data_and_errors_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with connected("/root") as (client, connection, _):
            reading = asyncio.create_task(client.get_many(["/a", "/"]))
            body = (await _multi_read_of(connection, ["/root/a", "/root"])).body
            assert body.remaining == 0
            assert (await reading)[0] == (b"x", STAT)
            missing = (await reading)[1]
            assert isinstance(missing, NoNodeError)
            assert missing.path == "/"

    run(scenario())


async def _multi_read_of(connection: ScriptedConnection, paths: list[str]) -> Any:
    request = await connection.request()
    for path in paths:
        assert request.body.structure(MULTI_HEADER) == (OpCode.GET_DATA, False, -1)
        assert request.body.string() == path
        assert request.body.boolean() is False
    assert request.body.structure(MULTI_HEADER) == (-1, True, -1)
    found = MULTI_HEADER.pack(OpCode.GET_DATA, False, 0) + pack_buffer(b"x") + STAT.pack()
    missing = MULTI_HEADER.pack(OpCode.ERROR, False, ErrorCode.NO_NODE) + INT.pack(ErrorCode.NO_NODE)
    connection.reply(request, found + missing + MULTI_END)
    return request


def test_closing_ends_the_session_after_what_is_under_way(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            events: list[WatcherEvent] = []
            reading = asyncio.create_task(client.get_data("/a", events.append))
            request = await connection.request()
            closing = asyncio.create_task(client.close())
            last = await connection.request()
            assert last.op_code == OpCode.CLOSE_SESSION
            with pytest.raises(ClientClosedError):
                await client.delete("/b")
            connection.reply(request, pack_buffer(b"1") + STAT.pack())
            connection.reply(last)
            assert (await reading).data == b"1"
            await closing
            assert await connection.closed() == b""
            assert client.state is SessionState.CLOSED
            assert await client.session_over() is SessionState.CLOSED
            await _until(lambda: bool(events))
            assert events == [WatcherEvent(EventType.NONE, KeeperState.CLOSED, "")]
            await client.close()

    run(scenario())


def test_many_watches_are_taken_over_in_several_requests(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, server):
            paths = [f"/{index:05}{'x' * 100}" for index in range(2_000)]
            events: list[WatcherEvent] = []
            reading = asyncio.create_task(client.submit([GetData(path, events.append) for path in paths]))
            for _ in paths:
                connection.reply(await connection.request(), pack_buffer(b"") + STAT.pack())
            await reading
            connection.close()
            second = await server.connection()
            await second.accept()
            taken: list[str] = []
            while len(taken) < len(paths):
                request = await second.request()
                assert request.op_code == OpCode.SET_WATCHES
                assert request.body.end < 0xFFFFF
                request.body.long()
                taken += request.body.strings()
                second.reply(request)
            assert taken == paths
            await client.connect(30_000)
            second.notify(EventType.NODE_DELETED, paths[-1])
            await _until(lambda: bool(events))
            assert events[0].path == paths[-1]

    run(scenario())


def test_reader_of_requests_is_what_the_scripts_rely_on() -> None:
    # The scripts read paths with the product's reader; this pins it to bytes written by hand.
    assert Reader(b"\x00\x00\x00\x02/a").string() == "/a"
