"""`barnabas.kernel.real_spawn` and `real_child`: real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.host import ChildLimitError, HostClosedError
from barnabas.kernel.real_spawn import ARGUMENT_BYTES_MAX, RealSpawn
from barnabas.kernel.turns import yield_to_loop
from tests.unit.kernel import child_entries

ENTRIES = "tests.unit.kernel.child_entries"
Run = Callable[[Coroutine[Any, Any, Any]], Any]


async def until_written(path: Path) -> int:
    """The process id that a child wrote, once it is there."""
    while not path.exists() or not path.read_text():
        await asyncio.sleep(0.005)
    return int(path.read_text())


async def until_ended(process_id: int) -> None:
    """Returns when there is no such process, or it only waits to be reaped by somebody else."""
    while True:
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        await asyncio.sleep(0.005)


def test_hands_over_a_large_argument_and_gives_back_the_exit_status(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop())
        text = bytes(range(256)) * 4096
        target = tmp_path / "written"
        child = await spawn(f"{ENTRIES}:write_argument", str(target).encode() + b"\n" + text)
        assert list(await asyncio.gather(child.wait(), child.wait())) == [7, 7]
        assert target.read_bytes() == text
        child.signal(signal.SIGTERM)  # nothing happens
        await spawn.close(10)

    run(scenario())


@pytest.mark.parametrize(
    ("entry", "status"), [("end_quietly", 0), ("read_standard_input", 0), ("fail", 1), ("none", 1)]
)
def test_exit_status_says_how_the_entry_ended(
    run: Run, capfd: pytest.CaptureFixture[str], entry: str, status: int
) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop())
        child = await spawn(f"{ENTRIES}:{entry}", b"of no use")
        assert await child.wait() == status
        await spawn.close(10)

    run(scenario())
    assert ("ValueError: of no use" in capfd.readouterr().err) is (entry == "fail")


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = tmp_path / "child"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        parent = subprocess.Popen([sys.executable, child_entries.__file__, str(told)], env=environment)
        try:
            child_id = await until_written(told)
            assert child_id != parent.pid
        finally:
            parent.kill()
            parent.wait()
        await until_ended(child_id)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_signal_reaches_the_child(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop())
        told = tmp_path / "child"
        child = await spawn(f"{ENTRIES}:wait_for_ever", str(told).encode())
        assert await until_written(told) == child.process_id
        child.signal(signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        await spawn.close(10)

    run(scenario())


def test_who_waits_may_be_cancelled_without_harm_to_others(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop())
        told = tmp_path / "child"
        child = await spawn(f"{ENTRIES}:wait_for_ever", str(told).encode())
        await until_written(told)
        impatient = asyncio.ensure_future(child.wait())
        patient = asyncio.ensure_future(child.wait())
        await asyncio.sleep(0)
        impatient.cancel()
        child.signal(signal.SIGTERM)
        assert await patient == -signal.SIGTERM
        await spawn.close(10)

    run(scenario())


def test_close_lets_children_stop_in_order(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop())
        children = []
        for number in range(2):
            told = tmp_path / f"child{number}"
            children.append(await spawn(f"{ENTRIES}:stop_in_order", str(told).encode()))
            await until_written(told)
        await spawn.close(30)
        assert [await child.wait() for child in children] == [5, 5]
        with pytest.raises(HostClosedError):
            await spawn(f"{ENTRIES}:end_quietly", b"")

    run(scenario())


def test_close_kills_a_child_that_does_not_stop(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop())
        told = tmp_path / "child"
        child = await spawn(f"{ENTRIES}:refuse_to_stop", str(told).encode())
        await until_written(told)
        await spawn.close(0.05)
        assert await child.wait() == -signal.SIGKILL

    run(scenario())


def test_refuses_more_children_than_it_may_have(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop(), children_max=1)
        told = tmp_path / "child"
        child = await spawn(f"{ENTRIES}:wait_for_ever", str(told).encode())
        with pytest.raises(ChildLimitError, match="1 child processes run already"):
            await spawn(f"{ENTRIES}:end_quietly", b"")
        await until_written(told)
        child.signal(signal.SIGKILL)
        await child.wait()
        after = await spawn(f"{ENTRIES}:end_quietly", b"")
        assert await after.wait() == 0
        await spawn.close(10)

    run(scenario())


@pytest.mark.parametrize("entry", ["module", "module:", ":function", "module:a.b", "a b:c", "a..b:c", "-c:x"])
def test_refuses_an_entry_that_is_none(run: Run, entry: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ValueError, match=r"package\.module:function"):
            await RealSpawn(asyncio.get_running_loop())(entry, b"")

    run(scenario())


def test_refuses_an_oversize_argument(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(ValueError, match="at most"):
            await RealSpawn(asyncio.get_running_loop())(f"{ENTRIES}:end_quietly", bytes(ARGUMENT_BYTES_MAX + 1))

    run(scenario())


def test_a_child_that_was_being_started_when_the_host_closed_does_not_stay(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        spawn = RealSpawn(asyncio.get_running_loop())
        path = tmp_path / "process"
        starting = asyncio.ensure_future(spawn(f"{ENTRIES}:wait_for_ever", str(path).encode()))
        await yield_to_loop()
        await spawn.close(10)
        with pytest.raises(HostClosedError):
            await starting
        assert not path.exists()

    run(scenario())
