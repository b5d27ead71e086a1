"""What the client promises on any server: inherited by a test class for each kind of server, which gives
`addresses`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.errors import (
    BadArgumentsError,
    BadVersionError,
    ConnectionLossError,
    InvalidAclError,
    MultiFailedError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RuntimeInconsistencyError,
    SessionExpiredError,
    UnimplementedError,
)
from barnabas.coordination.operations import Check, Create, Delete, GetData, SetData, ZnodeData
from barnabas.coordination.protocol import CREATOR_ALL_ACL, OPEN_ACL, READ_ACL, CreateMode, EventType, WatcherEvent
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.real_host import real_host

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Events:
    """A watcher that keeps what it was told."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[WatcherEvent] = asyncio.Queue()

    def __call__(self, event: WatcherEvent) -> None:
        self._queue.put_nowait(event)

    async def next(self) -> tuple[EventType, str]:
        async with asyncio.timeout(60):
            event = await self._queue.get()
        return event.type, event.path

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


@contextlib.asynccontextmanager
async def client_of(connect: str, **settings: Any) -> AsyncIterator[Client]:
    async with real_host("test", asyncio.get_running_loop()) as host:
        client = Client(host, ClientSettings(connect, **({"session_timeout_ms": 8_000} | settings)))
        try:
            await client.connect(20_000)
            yield client
        finally:
            await client.close()


async def fresh_chroot(addresses: str) -> str:
    """A connection string whose chroot is new and empty."""
    async with client_of(addresses) as root:
        chroot = f"/suite-{uuid.uuid4().hex}"
        await root.create(chroot)
    return addresses + chroot


async def state_of(client: Client, wanted: SessionState) -> None:
    """Waits until the client is in this state."""
    reached = asyncio.get_running_loop().create_future()

    def listener(state: SessionState) -> None:
        if state is wanted and not reached.done():
            reached.set_result(None)

    client.add_state_listener(listener)
    try:
        async with asyncio.timeout(60):
            await reached
    finally:
        client.remove_state_listener(listener)


class ClientSuite:
    """Inherit it, and give a fixture `addresses`: `host:port` of the servers, comma-separated."""

    def test_znodes_are_made_read_changed_and_deleted(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            async with client_of(await fresh_chroot(addresses)) as client:
                assert await client.create("/a", b"1") == "/a"
                path, made = await client.create_with_stat("/a/b", None)
                assert path == "/a/b"
                assert made.czxid == made.mzxid == made.pzxid > 0
                data, stat = await client.get_data("/a")
                assert (data, stat.version, stat.num_children, stat.data_length) == (b"1", 0, 1, 1)
                assert (await client.get_data("/a/b")).data is None
                changed = await client.set_data("/a", b"22", 0)
                assert (changed.version, changed.data_length, changed.czxid) == (1, 2, stat.czxid)
                assert await client.exists("/a") == changed
                assert await client.exists("/none") is None
                names, root = await client.get_children("/")
                assert (names, root.num_children) == (["a"], 1)
                await client.delete("/a/b", 0)
                await client.delete("/a", 1)
                assert (await client.get_children("/")).names == []

        run(scenario())

    def test_every_refusal_is_its_own_error_with_the_path(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            async with client_of(await fresh_chroot(addresses)) as client:
                await client.create("/a")
                await client.create("/a/b")
                await client.create("/e", mode=CreateMode.EPHEMERAL)
                refused = [
                    (client.create("/a"), NodeExistsError, "/a"),
                    (client.create("/none/x"), NoNodeError, "/none/x"),
                    (client.create("/e/x"), NoChildrenForEphemeralsError, "/e/x"),
                    (client.delete("/a"), NotEmptyError, "/a"),
                    (client.delete("/none"), NoNodeError, "/none"),
                    (client.set_data("/a", b"", 7), BadVersionError, "/a"),
                    (client.delete("/a/b", 7), BadVersionError, "/a/b"),
                    (client.get_data("/none"), NoNodeError, "/none"),
                    (client.get_children("/none"), NoNodeError, "/none"),
                    (client.create("/acl", acl=()), InvalidAclError, "/acl"),
                    (client.create("/acl", acl=CREATOR_ALL_ACL), InvalidAclError, "/acl"),
                    (client.create("/a//b"), BadArgumentsError, "/a//b"),
                ]
                for operation, error, path in refused:
                    with pytest.raises(error) as caught:
                        await operation
                    assert caught.value.path == path

        run(scenario())

    def test_sequential_ephemeral_and_container_znodes(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            connect = await fresh_chroot(addresses)
            async with client_of(connect) as watching:
                async with client_of(connect) as client:
                    assert await client.create("/s-", mode=CreateMode.PERSISTENT_SEQUENTIAL) == "/s-0000000000"
                    assert await client.create("/", mode=CreateMode.PERSISTENT_SEQUENTIAL) == "/0000000001"
                    path = await client.create("/s-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
                    assert path == "/s-0000000002"
                    await watching.sync()  # its server may be one that comes behind
                    stat = await watching.exists(path)
                    assert stat is not None
                    assert stat.ephemeral_owner == client.ticket.id
                    assert await client.get_ephemerals() == [path]
                    await client.create("/box", mode=CreateMode.CONTAINER)
                    with pytest.raises(UnimplementedError):
                        # Servers know them only when `zookeeper.extendedTypesEnabled` is set.
                        await client.create("/brief", mode=CreateMode.PERSISTENT_WITH_TTL, ttl_ms=60_000)
                    await watching.sync()
                    assert await watching.count_descendants("/") == 4
                    gone = Events()
                    await watching.exists(path, gone)
                assert await gone.next() == (EventType.NODE_DELETED, path)
                left = sorted((await watching.get_children("/")).names)
                assert left == ["0000000001", "box", "s-0000000000"]

        run(scenario())

    def test_watches_fire_once_for_what_they_watch(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            connect = await fresh_chroot(addresses)
            async with client_of(connect) as client, client_of(connect) as other:
                data, created, children, none = Events(), Events(), Events(), Events()
                await client.create("/a", b"1")
                await client.get_data("/a", data)
                await client.exists("/a/x", created)
                await client.get_children("/a", children)
                with pytest.raises(NoNodeError):
                    await client.get_data("/missing", none)
                await other.set_data("/a", b"2")
                await other.set_data("/a", b"3")
                await other.create("/a/x")
                await other.create("/missing")
                assert await data.next() == (EventType.NODE_DATA_CHANGED, "/a")
                assert await created.next() == (EventType.NODE_CREATED, "/a/x")
                assert await children.next() == (EventType.NODE_CHILDREN_CHANGED, "/a")
                await client.get_children("/a/x", children)
                await client.get_data("/a/x", data)
                await other.delete("/a/x")
                assert await children.next() == (EventType.NODE_DELETED, "/a/x")
                assert await data.next() == (EventType.NODE_DELETED, "/a/x")
                await client.sync()
                assert (data.is_empty, created.is_empty, children.is_empty, none.is_empty) == (True, True, True, True)

        run(scenario())

    def test_a_multi_happens_whole_or_not_at_all(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            async with client_of(await fresh_chroot(addresses)) as client:
                answers = await client.multi(
                    [
                        Create("/a", b"1"),
                        Create("/a/b", with_stat=True),
                        SetData("/a", b"2"),
                        Check("/a", 1),
                        Delete("/a/b"),
                    ]
                )
                assert (answers[0].path, answers[0].stat) == ("/a", None)
                assert (answers[1].path, answers[1].stat.version) == ("/a/b", 0)
                assert (answers[2].version, answers[3:]) == (1, [None, None])
                with pytest.raises(MultiFailedError, match="operation 1 of 3 failed, so none happened: /a: ") as caught:
                    await client.multi([Create("/c"), Check("/a", 9), Delete("/a")])
                assert (caught.value.index, type(caught.value.error)) == (1, BadVersionError)
                assert [type(outcome) for outcome in caught.value.outcomes] == [
                    RuntimeInconsistencyError,
                    BadVersionError,
                    RuntimeInconsistencyError,
                ]
                assert (await client.get_children("/")).names == ["a"]

        run(scenario())

    def test_many_are_read_at_once(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            async with client_of(await fresh_chroot(addresses), in_flight_max=150) as client:
                paths = [f"/{index}" for index in range(1_000)]
                outcomes = await client.submit([Create(path, path.encode()) for path in paths])
                assert [outcome.path for outcome in outcomes] == paths
                found = await client.get_many([*paths, "/none", "/"])
                assert [getattr(each, "data", None) for each in found[:1_000]] == [path.encode() for path in paths]
                assert isinstance(found[1_000], NoNodeError)
                assert getattr(found[1_001], "data", None) == b""
                written = await client.get_written_of_many([*paths, "/none"])
                assert isinstance(written[1_000], NoNodeError)
                for short, whole in zip(written[:1_000], found[:1_000], strict=True):
                    assert isinstance(whole, ZnodeData)
                    assert short == (whole.data, whole.stat.version, whole.stat.mzxid)
                names = await client.get_children_names_of_many(["/", "/none", "/7"])
                assert isinstance(names[0], list)
                assert sorted(names[0]) == sorted(path[1:] for path in paths)
                assert isinstance(names[1], NoNodeError)
                assert names[2] == []
                assert await client.get_many([]) == []

        run(scenario())

    def test_acls_and_credentials(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            connect = await fresh_chroot(addresses)
            async with client_of(connect, credentials=(("digest", b"user:secret"),)) as owner:
                await owner.create("/mine", b"1", acl=CREATOR_ALL_ACL)
                acl, stat = await owner.get_acl("/mine")
                assert [(entry.permissions, entry.id.scheme, entry.id.id.split(":")[0]) for entry in acl] == [
                    (31, "digest", "user")
                ]
                async with client_of(connect) as stranger:
                    with pytest.raises(NoAuthError, match="/mine: "):
                        await stranger.get_data("/mine")
                    read = await stranger.get_many(["/mine"])
                    assert isinstance(read[0], NoAuthError)
                    await stranger.add_credential("digest", b"user:secret")
                    assert (await stranger.get_data("/mine")).data == b"1"
                    opened = await stranger.set_acl("/mine", OPEN_ACL, stat.aversion)
                    assert opened.aversion == 1
                    with pytest.raises(BadVersionError):
                        await owner.set_acl("/mine", READ_ACL, 0)

        run(scenario())

    def test_a_session_moves_to_another_connection_and_keeps_watches_ephemerals_and_credentials(
        self, run: Run, addresses: str
    ) -> None:
        async def scenario() -> None:
            connect = await fresh_chroot(addresses)
            async with (
                client_of(connect, credentials=(("digest", b"user:secret"),)) as client,
                client_of(connect) as other,
            ):
                events, created, fresh = Events(), Events(), Events()
                await client.create("/mine", acl=CREATOR_ALL_ACL, mode=CreateMode.EPHEMERAL)
                await client.create("/seen", b"1")
                await client.get_data("/seen", events)
                await client.exists("/new", created)
                await client.get_children("/", fresh)
                session_id = client.ticket.id
                break_connection(client)
                assert client.state is SessionState.SUSPENDED
                # Both happen while nobody tells the client.
                await other.set_data("/seen", b"2")
                await other.create("/new")
                assert await events.next() == (EventType.NODE_DATA_CHANGED, "/seen")
                assert await created.next() == (EventType.NODE_CREATED, "/new")
                assert await fresh.next() == (EventType.NODE_CHILDREN_CHANGED, "/")
                assert client.ticket.id == session_id
                await client.set_data("/mine", b"still mine")

        run(scenario())

    def test_operations_under_way_are_lost_with_the_connection_but_not_later_ones(
        self, run: Run, addresses: str
    ) -> None:
        async def scenario() -> None:
            async with client_of(await fresh_chroot(addresses)) as client:
                lost = asyncio.create_task(client.submit([Create(f"/{index}") for index in range(50)]))
                await asyncio.sleep(0)
                break_connection(client)
                outcomes = await lost
                assert all(isinstance(outcome, ConnectionLossError) for outcome in outcomes)
                await client.create("/after")
                assert await client.exists("/after") is not None

        run(scenario())

    def test_a_session_that_another_connection_ended_is_expired(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            connect = await fresh_chroot(addresses)
            async with client_of(connect) as client, client_of(connect) as other:
                events, gone = Events(), Events()
                await client.create("/mine", mode=CreateMode.EPHEMERAL)
                await client.get_data("/", events)
                await other.sync()
                await other.exists("/mine", gone)
                async with client_of(connect, ticket=client.ticket) as thief:
                    assert thief.ticket == client.ticket
                assert await client.session_over() is SessionState.EXPIRED
                assert await gone.next() == (EventType.NODE_DELETED, "/mine")
                assert await events.next() == (EventType.NONE, "")
                with pytest.raises(SessionExpiredError):
                    await client.get_data("/")

        run(scenario())

    def test_pipelined_and_interleaved_calls_each_get_their_own_answers(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            async with client_of(await fresh_chroot(addresses), in_flight_max=20) as client:

                async def write_and_read(number: int) -> None:
                    paths = [f"/{number}-{index}" for index in range(30)]
                    await client.submit([Create(path, path.encode()) for path in paths])
                    found = await client.submit([GetData(path) for path in paths])
                    assert [each.data for each in found] == [path.encode() for path in paths]

                await asyncio.gather(*(write_and_read(number) for number in range(10)))

        run(scenario())

    def test_ensured_paths_are_there(self, run: Run, addresses: str) -> None:
        async def scenario() -> None:
            async with client_of(await fresh_chroot(addresses)) as client:
                await client.ensure_path("/a/b/c")
                await client.ensure_path("/a/b/d")
                assert sorted((await client.get_children("/a/b")).names) == ["c", "d"]

        run(scenario())


def break_connection(client: Client) -> None:
    """Cuts the client's connection, as a network does."""
    connection = client._connection
    if connection is None:
        raise RuntimeError("there is no connection to break")
    connection.end("cut by the test")
