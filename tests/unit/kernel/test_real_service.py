"""What a service manager hears, at a socket of the test."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_service import STATUS_CHARACTERS_MAX, ServiceManager

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(10)
        yield bound


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_the_manager_hears_of_start_readiness_and_stop(run: Run, manager: socket.socket) -> None:
    async def tell() -> None:
        given = environment(manager)
        service = ServiceManager(asyncio.get_running_loop(), given)
        assert service.is_there
        assert given == {}, "children would speak in the name of this process"
        service.starting("1 of 3 logs\nare loaded")
        service.ready("broker 1")
        service.stopping("moving leaders away")
        service.close()
        service.ready("is dropped")

    run(tell())
    assert manager.recv(1000) == b"EXTEND_TIMEOUT_USEC=90000000\nSTATUS=1 of 3 logs are loaded"
    assert manager.recv(1000) == b"READY=1\nSTATUS=broker 1"
    assert manager.recv(1000) == b"STOPPING=1\nSTATUS=moving leaders away"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(1000)


def test_the_watchdog_is_told_while_the_loop_turns_and_not_when_it_hangs(run: Run, manager: socket.socket) -> None:
    async def turn() -> None:
        loop = asyncio.get_running_loop()
        given = environment(manager, WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid()))
        service = ServiceManager(loop, given)
        for _ in range(3):
            assert await loop.run_in_executor(None, manager.recv, 1000) == b"WATCHDOG=1"
        # The loop stands while this waits.
        manager.settimeout(0.2)
        with pytest.raises(TimeoutError):
            for _ in range(100):
                manager.recv(1000)
        manager.settimeout(10)
        assert await loop.run_in_executor(None, manager.recv, 1000) == b"WATCHDOG=1"
        service.close()

    run(turn())


@pytest.mark.parametrize("process", ["1", "x"])
def test_the_watchdog_of_another_process_is_left_alone(run: Run, manager: socket.socket, process: str) -> None:
    async def turn() -> None:
        given = environment(manager, WATCHDOG_USEC="1000", WATCHDOG_PID=process)
        service = ServiceManager(asyncio.get_running_loop(), given)
        await asyncio.sleep(0.02)
        service.ready("")
        service.close()

    run(turn())
    assert manager.recv(1000) == b"READY=1\nSTATUS="


def test_abstract_addresses_are_spoken_to(run: Run) -> None:
    name = f"barnabas-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"\0{name}")
        bound.settimeout(10)

        async def tell() -> None:
            service = ServiceManager(asyncio.get_running_loop(), {"NOTIFY_SOCKET": f"@{name}"})
            service.ready("x" * 5_000)
            service.close()

        run(tell())
        assert bound.recv(10_000) == b"READY=1\nSTATUS=" + b"x" * STATUS_CHARACTERS_MAX


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_without_a_socket_of_this_machine_nothing_happens(run: Run, address: str) -> None:
    async def tell() -> None:
        service = ServiceManager(asyncio.get_running_loop(), {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"})
        assert not service.is_there
        service.ready("nobody hears it")
        service.close()

    run(tell())


def test_a_manager_that_is_gone_does_no_harm(run: Run, tmp_path: Path) -> None:
    async def tell() -> None:
        service = ServiceManager(asyncio.get_running_loop(), {"NOTIFY_SOCKET": str(tmp_path / "gone")})
        service.ready("nobody hears it")
        service.stopping("")
        service.close()

    run(tell())
