"""`barnabas.kernel.real_host`: the parts together, and the entry."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel import real_host as real_host_module
from barnabas.kernel.host import Host, HostClosedError, OffloadKind
from barnabas.kernel.real_host import (
    RealHost,
    fastest_loop_factory,
    open_files_limit,
    raise_open_files_limit,
    real_host,
    stop_on_signals,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_program_reaches_the_world_through_its_host_alone(run: Run, tmp_path: Path) -> None:
    async def program(host: Host) -> tuple[int, bytes]:
        path = str(tmp_path / "00000000000000000000.log")
        descriptor = host.files.open(path, os.O_RDWR | os.O_CREAT)
        host.files.write(descriptor, b"records")
        await host.offload(OffloadKind.SYNC, host.files.fdatasync, descriptor, order=path)
        content = await host.offload(OffloadKind.DISK, host.files.pread, descriptor, 100, 0)
        host.files.close(descriptor)
        return host.clock.time_ms(), content

    async def scenario() -> None:
        before_ms = time.time_ns() // 1_000_000
        async with real_host("broker-1", asyncio.get_running_loop()) as host:
            time_ms, content = await program(host)
            assert content == b"records"
            assert before_ms <= time_ms <= time.time_ns() // 1_000_000
            assert host.name == "broker-1"
            assert host.loop is asyncio.get_running_loop()
            assert len(host.entropy(16)) == 16
            assert host.entropy(16) != host.entropy(16)
        with pytest.raises(HostClosedError):
            host.offload(OffloadKind.SYNC, abs, 1)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("broker-1")]

    run(scenario())


def test_hosts_do_not_share_their_random_numbers(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with real_host("broker-1", loop) as one, real_host("broker-2", loop) as two:
            assert one.random.getrandbits(64) != two.random.getrandbits(64)

    run(scenario())


def test_run_gives_back_the_result_and_picks_the_fastest_loop() -> None:
    import uvloop

    async def main(host: RealHost) -> tuple[str, bool]:
        return host.name, isinstance(host.loop, uvloop.Loop)

    assert real_host_module.run(main, name="coordinator") == ("coordinator", True)
    assert real_host_module.run(main, loop_factory=asyncio.new_event_loop) == ("barnabas", False)


def test_without_uvloop_asyncio_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert fastest_loop_factory() is asyncio.new_event_loop


def test_run_closes_the_host_when_main_fails() -> None:
    seen: list[RealHost] = []

    async def main(host: RealHost) -> None:
        seen.append(host)
        await host.offload(OffloadKind.CPU, abs, 1)
        raise OSError("cannot start")

    with pytest.raises(OSError, match="cannot start"):
        real_host_module.run(main, name="failing")
    with pytest.raises(HostClosedError):
        seen[0].offload(OffloadKind.CPU, abs, 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("failing")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_can_stop_in_order_on_a_signal(run: Run, number: int) -> None:
    async def scenario() -> None:
        stop = stop_on_signals(asyncio.get_running_loop())
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        await stop.wait()

    run(scenario())


def test_raises_the_limit_of_open_files_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        assert open_files_limit() == min(soft, 256)
        assert raise_open_files_limit() == hard == open_files_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert raise_open_files_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_port_itself_loads_neither_asyncio_nor_random() -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import barnabas.kernel.host\n"
        "sys.exit(bool({'asyncio', 'uvloop', 'random'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_asking_for_memory_to_be_kept_uses_none() -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from barnabas.kernel.real_host import keep_freed_memory\n"
        "def resident_pages():\n"
        "    return int(Path('/proc/self/statm').read_text().split()[1])\n"
        "before = resident_pages()\n"
        "keep_freed_memory(32 * 1024 * 1024)\n"
        "sys.exit(resident_pages() - before > 256)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
