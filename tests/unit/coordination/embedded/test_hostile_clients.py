"""The coordinator against clients that are slow, deaf or hostile, a disk that hangs, and its own defects."""

from __future__ import annotations

import asyncio
import functools
import logging
from pathlib import Path
from typing import Any

import pytest

from barnabas.coordination.embedded import connection as connection_module
from barnabas.coordination.embedded import server as server_module
from barnabas.coordination.embedded.commits import Append
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from tests.support.raw_zookeeper import Operation, authentication, create, multi, read, set_data
from tests.unit.coordination.embedded.caller import Caller, CallerDisconnectedError
from tests.unit.coordination.embedded.serving import HOST, Run, connection_of, give, serving, until

NO_NODE, AUTH_FAILED, THROTTLED = -101, -115, -127


class SlowDisk:
    """Stands before the disk of a coordinator: batches wait until they are let through."""

    def __init__(self, coordinator: EmbeddedCoordinator) -> None:
        self.arrived: list[tuple[asyncio.Future[None], list[bytes], int]] = []
        self.is_open = False
        self._append: Append = coordinator.engine.commits._append
        coordinator.engine.commits._append = self._hold

    def _hold(self, records: list[bytes], first_zxid: int) -> asyncio.Future[None]:
        if self.is_open:
            return self._append(records, first_zxid)
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arrived.append((held, records, first_zxid))
        return held

    def open(self) -> None:
        """Lets what waits through, and all that comes."""
        self.is_open = True
        for held, records, first_zxid in self.arrived:
            self._append(records, first_zxid).add_done_callback(functools.partial(_pass_on, held))
        self.arrived.clear()


def _pass_on(held: asyncio.Future[None], _written: asyncio.Future[None]) -> None:
    held.set_result(None)


async def make_deaf(coordinator: EmbeddedCoordinator, caller: Caller, replies: int = 200) -> list[asyncio.Future[Any]]:
    """Has the caller ask for more than it takes, until the server reads it no more."""
    await caller.body(create("/large", b"x" * 900_000))
    assert caller.transport is not None
    caller.transport.pause_reading()
    waiting: list[asyncio.Future[Any]] = [caller.send(read(Operation.GET_DATA, "/large")) for _ in range(replies)]
    connection = connection_of(coordinator, caller)
    await until(lambda: not connection.is_reading)
    return waiting


def test_a_client_that_takes_its_replies_while_the_disk_is_behind_is_read_again(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, outstanding_requests_max=2) as coordinator:
            slow_reader = await Caller.open(HOST, coordinator.port)
            writer = await Caller.open(HOST, coordinator.port)
            waiting = await make_deaf(coordinator, slow_reader)
            connection = connection_of(coordinator, slow_reader)
            disk = SlowDisk(coordinator)
            written = [writer.send(create("/a", b""))]
            await until(lambda: len(disk.arrived) == 1)
            written += [writer.send(create("/b", b"")), writer.send(create("/c", b""))]
            await until(lambda: coordinator.engine.commits.is_full)
            assert slow_reader.transport is not None
            slow_reader.transport.resume_reading()
            await until(lambda: not connection._writing_paused)
            disk.open()
            assert all(reply.error == 0 for reply in await asyncio.gather(*waiting, *written))

    run(scenario())


def test_a_session_that_is_not_read_because_of_the_disk_does_not_expire(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, outstanding_requests_max=2) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            disk = SlowDisk(coordinator)
            written = [caller.send(create("/a", b""))]
            await until(lambda: len(disk.arrived) == 1)
            written += [caller.send(create(f"/b{number}", b"")) for number in range(5)]
            connection = connection_of(coordinator, caller)
            await until(lambda: not connection.is_reading)
            session = connection.session
            assert session is not None
            give(coordinator, caller, 100)
            began_at = session.heard_at
            await until(lambda: session.heard_at > began_at or len(coordinator.engine.sessions) == 0)
            assert coordinator.engine.sessions.get(caller.session_id) is session
            give(coordinator, caller, 10_000)
            disk.open()
            assert [reply.error for reply in await asyncio.gather(*written)] == [0] * 6

    run(scenario())


def test_an_expired_client_that_takes_nothing_does_not_keep_its_connection(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINGER_SECONDS", 0.05)

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            await make_deaf(coordinator, caller)
            give(coordinator, caller, 100)
            await until(lambda: not coordinator._connections)
            assert len(coordinator.engine.sessions) == 0

    run(scenario())


def test_a_connection_that_lost_its_session_watches_no_more(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody takes what is left to send on that connection.
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.05)

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            first = await Caller.open(HOST, coordinator.port)
            await make_deaf(coordinator, first, 50)
            connection = connection_of(coordinator, first)
            coordinator.engine.watches.data.add("/", connection)
            second = await Caller.open(HOST, coordinator.port, session_id=first.session_id, password=first.password)
            assert coordinator.engine.watches.count == 0
            await second.ping()

    run(scenario())


def test_stopping_under_load_answers_what_it_took_and_is_no_failure(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[str]:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            disk = SlowDisk(coordinator)
            taken = [caller.send(create("/a", b""))]
            await until(lambda: len(disk.arrived) == 1)
            stopping = asyncio.create_task(coordinator.stop())
            await asyncio.sleep(0)
            received = coordinator.engine.statistics.received
            late = caller.send(create("/late", b""))
            await asyncio.sleep(0.02)
            assert coordinator.engine.statistics.received == received
            disk.open()
            await stopping
            assert not coordinator.failure.done()
            with pytest.raises(CallerDisconnectedError):
                await late
            return [reply.body for reply in await asyncio.gather(*taken)]

    assert run(scenario()) == ["/a"]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_stopping_does_not_wait_for_ever_for_a_disk_that_hangs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "STOP_SECONDS", 0.05)
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.05)

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            disk = SlowDisk(coordinator)
            caller.send(create("/a", b""))
            await until(lambda: len(disk.arrived) == 1)
            await coordinator.stop()

    run(scenario())
    assert "the disk did not answer" in caplog.text


def test_a_defect_in_a_write_stops_the_service_and_leaves_the_log_whole(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            await caller.body(create("/before", b""))
            tree = coordinator.engine.tree

            def defect(*_arguments: object, **_named: object) -> bytes:
                raise RuntimeError("a defect")

            tree.create = defect  # type: ignore[method-assign]
            with pytest.raises(CallerDisconnectedError):
                await caller.call(create("/after", b""))
            assert "a defect" in str(await coordinator.failure)
            with pytest.raises(CallerDisconnectedError):
                await Caller.open(HOST, coordinator.port)
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            assert await caller.body(read(Operation.EXISTS, "/before")) is not None
            assert (await caller.call(read(Operation.EXISTS, "/after"))).error == NO_NODE

    run(scenario())


def test_a_defect_in_a_read_ends_its_connection_alone(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            other = await Caller.open(HOST, coordinator.port)

            def defect(*_arguments: object) -> bytes:
                raise RuntimeError("a defect")

            coordinator.engine.read_handlers[Operation.GET_ACL] = defect
            with pytest.raises(CallerDisconnectedError):
                await caller.call(read(Operation.GET_ACL, "/"))
            await other.body(create("/a", b""))
            assert not coordinator.failure.done()

    run(scenario())


def test_statistics_of_a_quota_that_no_number_holds_do_no_harm(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            for path in ("/a", "/zookeeper/quota/a", "/zookeeper/quota/a/zookeeper_limits"):
                await caller.body(create(path, b""))
            await caller.body(create("/zookeeper/quota/a/zookeeper_stats", b""))
            for text in (b"9" * 4300, b"9" * 4301, b"%d" % (2**63 - 1)):
                await caller.body(set_data("/zookeeper/quota/a/zookeeper_stats", b"count=" + text))
                await caller.body(create("/a/" + str(len(text)), b""))
            data, _ = await caller.body(read(Operation.GET_DATA, "/zookeeper/quota/a/zookeeper_stats"))
            assert data.startswith(b"count=%d," % -(2**63))
        async with serving(tmp_path) as coordinator:
            assert coordinator.engine.tree.nodes["/a/4300"][0] == b""

    run(scenario())


def test_connections_are_listed_whatever_they_asked_last(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            connection_of(coordinator, caller).statistics.last_op_code = 999
            reader, writer = await asyncio.open_connection(HOST, coordinator.port)
            writer.write(b"cons")
            assert b"lop=NA" in await reader.read()
            writer.close()

    run(scenario())


def test_the_bytes_of_watched_paths_are_limited(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, watch_path_bytes_max=10_000) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            watched = [await caller.call(read(Operation.EXISTS, f"/{number}{'x' * 998}", True)) for number in range(12)]
            assert [reply.error for reply in watched] == [NO_NODE] * 10 + [THROTTLED] * 2
            await caller.body(create(f"/0{'x' * 998}", b""))
            assert (await caller.call(read(Operation.EXISTS, "/y", True))).error == NO_NODE

    run(scenario())


def test_identities_of_a_connection_are_limited(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            errors = []
            with pytest.raises(CallerDisconnectedError):
                for number in range(connection_module.IDENTITIES_MAX + 2):
                    errors.append((await caller.call(authentication("digest", b"user:%d" % number))).error)
            assert errors.count(0) < connection_module.IDENTITIES_MAX
            assert errors[-1] == AUTH_FAILED

    run(scenario())


def test_a_multi_read_cannot_ask_for_more_than_fits(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, unread_bytes_max=4_000_000) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            await caller.body(create("/large", b"x" * 900_000))
            part = read(Operation.GET_DATA, "/large")
            assert (await caller.call(multi([part] * 4, Operation.MULTI_READ))).error == 0
            assert (await caller.call(multi([part] * 5, Operation.MULTI_READ))).error == THROTTLED

    run(scenario())
