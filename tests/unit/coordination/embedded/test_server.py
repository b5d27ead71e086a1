"""The coordinator over sockets, on both loops: sessions, order of events and replies, bounds, four-letter words."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.kernel.real_host import real_host
from tests.support.raw_zookeeper import (
    Acl,
    Encoder,
    Operation,
    Reply,
    Request,
    WatchEvent,
    authentication,
    create,
    delete,
    multi,
    read,
    set_data,
    set_watches,
    watches,
)
from tests.unit.coordination.embedded.caller import Caller, CallerDisconnectedError
from tests.unit.coordination.embedded.serving import give

Run = Callable[[Any], Any]
HOST = "127.0.0.1"
EPHEMERAL = 1
CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4
SESSION_TIMEOUT_MS = 1000


def config_for(directory: Path, **settings: Any) -> CoordinatorConfig:
    return CoordinatorConfig(str(directory), port=0, **{"min_session_timeout_ms": 100, **settings})


@contextlib.asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[EmbeddedCoordinator]:
    async with real_host("test", asyncio.get_running_loop()) as host:
        coordinator = EmbeddedCoordinator(host, config_for(directory, **settings))
        await coordinator.start()
        try:
            yield coordinator
        finally:
            await coordinator.stop()
            await Caller.drop_all()


async def word(port: int, command: bytes) -> str:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(command)
    answer = await reader.read()
    writer.close()
    return answer.decode()


def described(caller: Caller) -> list[tuple[int, str] | int]:
    """What arrived: watch events as (type, path), replies as their error."""
    return [(each.type, each.path) if isinstance(each, WatchEvent) else each.error for each in caller.take()]


def test_keeps_everything_over_a_restart(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            await caller.body(create("/a", b"data"))
            await caller.body(multi([create("/a/b", b""), create("/e", b"", EPHEMERAL)]))
            before = (await caller.call(read(Operation.GET_DATA, "/a"))).body
            session = (caller.session_id, caller.password)
        async with serving(tmp_path) as coordinator:
            again = await Caller.open(HOST, coordinator.port, session_id=session[0], password=session[1])
            assert again.session_id == session[0]
            assert (await again.call(read(Operation.GET_DATA, "/a"))).body == before
            assert await again.body(Request(Operation.GET_EPHEMERALS, b"\0\0\0\0")) == ("/e",)
            await again.end()
            other = await Caller.open(HOST, coordinator.port)
            assert other.session_id > session[0]
            assert (await other.call(read(Operation.EXISTS, "/e"))).error == -101

    run(scenario())


def test_events_come_before_replies_that_show_the_change(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            writer = await Caller.open(HOST, coordinator.port)
            reader = await Caller.open(HOST, coordinator.port)
            await reader.call(read(Operation.EXISTS, "/a", True))
            await writer.call(read(Operation.GET_CHILDREN, "/", True))
            reader.take(), writer.take()
            await writer.call(create("/a", b"1"))
            assert described(writer) == [(CHILDREN, "/"), 0]
            await reader.call(read(Operation.GET_DATA, "/a", True))
            assert described(reader) == [(CREATED, "/a"), 0]
            await asyncio.gather(
                writer.send(set_data("/a", b"2")),
                writer.send(delete("/a")),
                *(reader.send(read(Operation.GET_DATA, "/a")) for _ in range(50)),
            )
            arrived = described(reader)
            # Whoever sees the znode gone has heard of the change before, as the watch fired first.
            first_gone = next((at for at, each in enumerate(arrived) if each == -101), len(arrived))
            await reader.ping()
            assert (CHANGED, "/a") in (arrived + described(reader))[: first_gone + 1]

    run(scenario())


def test_pipelined_requests_are_answered_in_order(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            waiting = []
            for number in range(500):
                waiting.append(caller.send(create(f"/n{number}", str(number).encode())))
                waiting.append(caller.send(read(Operation.GET_DATA, f"/n{number}")))
                waiting.append(caller.send(set_data(f"/n{number}", b"again", 0)))
            replies = await asyncio.gather(*waiting)
            assert all(reply.error == 0 for reply in replies)
            assert [reply.body[0] for reply in replies[1::3]] == [str(number).encode() for number in range(500)]
            zxids = [reply.zxid for reply in replies]
            assert zxids == sorted(zxids)

    run(scenario())


def test_a_session_moves_with_its_password_and_closes_the_old_connection(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            first = await Caller.open(HOST, coordinator.port)
            with pytest.raises(CallerDisconnectedError):
                await Caller.open(HOST, coordinator.port, session_id=first.session_id, password=b"x" * 16)
            await first.ping()
            second = await Caller.open(
                HOST, coordinator.port, session_id=first.session_id, password=first.password, timeout_ms=12_345
            )
            assert (second.session_id, second.timeout_ms) == (first.session_id, 12_345)
            await first.closed
            await second.ping()

    run(scenario())


@pytest.mark.parametrize(("asked", "granted"), [(1, 100), (5000, 5000), (1_000_000, 40_000)])
def test_timeouts_are_negotiated(run: Run, tmp_path: Path, asked: int, granted: int) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            assert (await Caller.open(HOST, coordinator.port, timeout_ms=asked)).timeout_ms == granted

    run(scenario())


def test_a_silent_session_expires_with_its_ephemerals(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            watcher = await Caller.open(HOST, coordinator.port)
            silent = await Caller.open(HOST, coordinator.port)
            await silent.body(create("/e", b"", EPHEMERAL))
            await watcher.call(read(Operation.GET_DATA, "/e", True))
            began = asyncio.get_running_loop().time()
            give(coordinator, silent, SESSION_TIMEOUT_MS)
            await silent.closed
            lasted_ms = (asyncio.get_running_loop().time() - began) * 1000
            assert lasted_ms >= SESSION_TIMEOUT_MS - 1
            await watcher.ping()
            assert described(watcher) == [0, (DELETED, "/e")]
            with pytest.raises(CallerDisconnectedError, match="expired"):
                await Caller.open(HOST, coordinator.port, session_id=silent.session_id, password=silent.password)

    run(scenario())


def test_watches_set_again_after_a_reconnection(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            writer = await Caller.open(HOST, coordinator.port)
            await writer.body(create("/a", b""))
            reader = await Caller.open(HOST, coordinator.port)
            await reader.call(read(Operation.GET_DATA, "/a", True))
            seen = reader.last_zxid
            reader.drop()
            await writer.body(set_data("/a", b"new"))
            again = await Caller.open(
                HOST,
                coordinator.port,
                session_id=reader.session_id,
                password=reader.password,
                last_zxid_seen=seen,
            )
            await again.call(set_watches(seen, ["/a"], ["/b"], []))
            await writer.body(create("/b", b""))
            await again.ping()
            assert described(again) == [(CHANGED, "/a"), 0, (CREATED, "/b")]

    run(scenario())


def test_a_client_that_has_seen_the_future_is_refused(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            with pytest.raises(CallerDisconnectedError):
                await Caller.open(HOST, coordinator.port, last_zxid_seen=1_000)

    run(scenario())


def test_digest_credentials_open_guarded_znodes(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            alice, eve = await Caller.open(HOST, coordinator.port), await Caller.open(HOST, coordinator.port)
            assert (await alice.call(authentication("digest", b"alice:secret"))).error == 0
            await alice.body(create("/mine", b"x", 0, (Acl(31, "auth", ""),)))
            assert (await eve.call(read(Operation.GET_DATA, "/mine"))).error == -102
            assert (await alice.call(read(Operation.GET_DATA, "/mine"))).error == 0
            await eve.call(watches(Operation.ADD_WATCH, "/mine", 1))
            await alice.body(set_data("/mine", b"y"))
            await eve.ping()
            assert [each for each in eve.arrivals if isinstance(each, WatchEvent)] == []
            assert (await eve.call(authentication("kerberos", b""))).error == -115
            await eve.closed

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x04abcd",
        b"\0\0\0\x00",
        bytes(200),
    ],
)
def test_garbage_ends_its_connection_alone(run: Run, tmp_path: Path, garbage: bytes) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            good = await Caller.open(HOST, coordinator.port)
            reader, writer = await asyncio.open_connection(HOST, coordinator.port)
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            bad = await Caller.open(HOST, coordinator.port)
            bad.write(b"\x00\x10\x00\x00" + garbage)
            await bad.closed
            await good.ping()
            assert (await good.call(Request(Operation.GET_DATA, b"\0\0"))).error == -5
            good.write_frame(bytes(Encoder().pack("ii", 1, 99).output))  # no operation of ZooKeeper's
            await good.closed

    run(scenario())


def test_frames_may_be_as_large_as_the_bound_and_arrive_in_pieces(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            large = b"x" * (0xFFFFF - 100)
            await caller.body(create("/large", large))
            assert (await caller.call(read(Operation.GET_DATA, "/large"))).body[0] == large
            request = read(Operation.GET_DATA, "/large")
            frame = Encoder().pack("iii", 8 + len(request.body), 77, request.operation).output + request.body
            future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            caller._outstanding.append((77, request.operation, future))
            for byte in bytes(frame):
                caller.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await future).body[0] == large

    run(scenario())


def test_connections_are_limited(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, connections_per_address_max=2) as coordinator:
            first, _second = await Caller.open(HOST, coordinator.port), await Caller.open(HOST, coordinator.port)
            with pytest.raises(CallerDisconnectedError):
                await Caller.open(HOST, coordinator.port)
            await first.end()
            await (await Caller.open(HOST, coordinator.port)).ping()

    run(scenario())


def test_connections_leave_some_of_the_files_that_may_be_open(run: Run, tmp_path: Path) -> None:
    """For logs and snapshots: without them the coordinator ends."""

    async def scenario() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            coordinator = EmbeddedCoordinator(dataclasses.replace(host, open_files_max=4), config_for(tmp_path))
            await coordinator.start()
            try:
                callers = [await Caller.open(HOST, coordinator.port) for _ in range(3)]
                with pytest.raises(CallerDisconnectedError):
                    await Caller.open(HOST, coordinator.port)
                await callers[0].ping()
            finally:
                await coordinator.stop()
                await Caller.drop_all()

    run(scenario())


def test_watches_are_limited(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, watches_max=3) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            codes = [(await caller.call(read(Operation.EXISTS, f"/n{number}", True))).error for number in range(5)]
            assert codes == [-101, -101, -101, -127, -127]
            assert (await caller.call(set_watches(0, ["/x"], [], []))).error == -127
            caller.drop()
            other = await Caller.open(HOST, coordinator.port)
            while coordinator.engine.watches.count:
                await other.ping()
            assert (await other.call(read(Operation.EXISTS, "/n", True))).error == -101

    run(scenario())


def test_a_client_that_never_reads_is_bounded_and_dropped(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, unread_bytes_max=2 << 20) as coordinator:
            writer = await Caller.open(HOST, coordinator.port)
            deaf = await Caller.open(HOST, coordinator.port)
            name = "x" * 60_000
            await deaf.call(watches(Operation.ADD_WATCH, "/", 1))
            assert deaf.transport is not None
            deaf.transport.pause_reading()
            for number in range(400):
                if len(coordinator._connections) == 1:
                    break
                await writer.body(create(f"/{name}{number}", b""))
            assert len(coordinator._connections) == 1
            await writer.ping()

    run(scenario())


def test_reads_that_nobody_collects_are_not_answered_ahead(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            await caller.body(create("/large", b"x" * 900_000))
            assert caller.transport is not None
            caller.transport.pause_reading()
            waiting = [caller.send(read(Operation.GET_DATA, "/large")) for _ in range(200)]
            other = await Caller.open(HOST, coordinator.port)
            connection = next(each for each in coordinator._connections if each.session_id == caller.session_id)
            while connection.is_reading:
                await other.ping()
            assert connection.statistics.received < 150
            caller.transport.resume_reading()
            assert all(reply.error == 0 for reply in await asyncio.gather(*waiting))

    run(scenario())


def test_writers_wait_while_the_disk_is_behind(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, outstanding_requests_max=10) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            replies = await asyncio.gather(*(caller.send(create(f"/n{number}", b"")) for number in range(500)))
            assert [reply.body for reply in replies] == [f"/n{number}" for number in range(500)]

    run(scenario())


def test_snapshots_are_taken_while_it_serves(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> int:
        async with serving(tmp_path, snapshot_transactions=200) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            for start in range(0, 2000, 250):
                await asyncio.gather(*(caller.send(create(f"/n{start + each}", b"")) for each in range(250)))
            assert coordinator._snapshot is not None
            await coordinator._snapshot
        async with serving(tmp_path) as coordinator:
            return coordinator.engine.tree.count

    assert run(scenario()) == 2005
    assert "snapshot at transaction" in caplog.text
    assert any(path.name.startswith("snapshot.0") for path in tmp_path.iterdir())


def test_containers_go_when_their_last_child_has_gone(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, container_check_interval_ms=20) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            for path in ("/used", "/unused"):
                await caller.body(Request(Operation.CREATE_CONTAINER, create(path, b"").body))
            await caller.body(create("/used/child", b""))
            await caller.body(delete("/used/child"))
            await caller.call(read(Operation.EXISTS, "/used", True))
            while (DELETED, "/used") not in [
                (each.type, each.path) for each in caller.arrivals if isinstance(each, WatchEvent)
            ] and (await caller.call(read(Operation.EXISTS, "/used"))).error == 0:
                await caller.ping()
            assert (await caller.call(read(Operation.EXISTS, "/unused"))).error == 0

    run(scenario())


def test_four_letter_words(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            await caller.body(create("/e", b"", EPHEMERAL))
            await caller.call(read(Operation.GET_DATA, "/e", True))
            port = coordinator.port
            assert await word(port, b"ruok") == "imok"
            assert await word(port, b"isro") == "rw"
            summary = await word(port, b"srvr")
            assert summary.startswith("Zookeeper version: 3.8.4-")
            assert "Mode: standalone\n" in summary
            assert "Node count: 6\n" in summary
            assert "Zxid: 0x2\n" in summary
            metrics = dict(line.split("\t") for line in (await word(port, b"mntr")).splitlines())
            expected = {
                "zk_znode_count": "6", "zk_watch_count": "1", "zk_ephemerals_count": "1", "zk_global_sessions": "1",
                "zk_server_state": "standalone",
            }  # fmt: skip
            assert {key: metrics[key] for key in expected} == expected
            assert await word(port, b"wchs") == "1 connections watching 1 paths\nTotal watches:1\n"
            assert f"sid={caller.session_id:#x},lop=GETD" in await word(port, b"cons")
            assert f"{caller.session_id:#x}\n\t/e\n" in await word(port, b"wchc")
            assert f"/e\n\t{caller.session_id:#x}\n" in await word(port, b"wchp")
            assert "Clients:\n /127.0.0.1:" in await word(port, b"stat")
            assert "tickTime=2000\n" in await word(port, b"conf")
            assert "zookeeper.version=3.8.4" in await word(port, b"envi")
            assert f"{caller.session_id:#x}:\n\t/e\n" in await word(port, b"dump")
            await word(port, b"srst")
            # The word that reset the count is counted itself.
            assert "Received: 1\n" in await word(port, b"srvr")

    run(scenario())


@pytest.mark.parametrize(
    "settings",
    [{"port": 70_000}, {"tick_time_ms": 0}, {"connections_per_address_max": -1}, {"max_session_timeout_ms": 1}],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|not between|at least|leave no choice"):
        CoordinatorConfig("/data", **settings)
