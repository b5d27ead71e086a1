"""`barnabas.kernel.real_program`: whole programs as children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from barnabas.kernel import real_program
from barnabas.kernel.real_program import LINES_KEPT_MAX, RealProgram, is_process, start_program
from tests.unit.kernel.test_real_spawn import until_ended

Run = Callable[[Coroutine[Any, Any, Any]], Any]


async def start(program: str, **options: Any) -> RealProgram:
    return await start_program(asyncio.get_running_loop(), [sys.executable, "-c", program], **options)


def test_says_lines_and_then_nothing_and_its_status(run: Run) -> None:
    async def scenario() -> None:
        program = await start("import sys; print('one'); print('two'); sys.stdout.write('no end'); sys.exit(3)")
        assert [await program.read_line() for _ in range(3)] == ["one", "two", None]
        assert await program.wait() == 3
        assert not program.is_running
        assert await program.stop(20) == 3  # nothing happens

    run(scenario())


class Ended:
    """A transport whose process has ended already."""

    def __init__(self) -> None:
        self.is_closed = False

    def get_pid(self) -> int:
        return 2**22 + 1  # no system has it

    def get_returncode(self) -> int:
        return 3

    def close(self) -> None:
        self.is_closed = True


def test_what_it_has_said_is_not_lost_where_its_end_is_heard_of_first(run: Run) -> None:
    async def scenario() -> None:
        program, transport = RealProgram(asyncio.get_running_loop()), Ended()
        program.connection_made(cast("asyncio.BaseTransport", transport))
        reading, waiting = asyncio.ensure_future(program.read_line()), asyncio.ensure_future(program.wait())
        program.process_exited()
        await asyncio.sleep(0.01)
        assert [program.is_running, reading.done(), waiting.done(), transport.is_closed] == [False] * 4
        program.pipe_data_received(1, b"why\n")
        program.pipe_connection_lost(1, None)
        assert [await reading, await program.read_line()] == ["why", None]
        assert await waiting == 3
        assert transport.is_closed

    run(scenario())


def test_who_holds_its_output_open_does_not_hold_up_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_program, "REST_SECONDS_MAX", 0.05)

    async def scenario() -> None:
        program = await start(
            "import os, subprocess, sys\n"
            "left = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True)\n"
            "print(left.pid, flush=True)\n"
            "os._exit(0)"
        )
        left = int(await program.read_line() or 0)
        try:
            assert await program.wait() == 0
            assert await program.read_line() is None
        finally:
            os.kill(left, signal.SIGKILL)

    run(scenario())


def test_keeps_the_last_lines_that_nobody_has_read(run: Run) -> None:
    async def scenario() -> None:
        program = await start(f"for number in range({LINES_KEPT_MAX + 50}): print(number)")
        await program.wait()
        found = []
        while (line := await program.read_line()) is not None:
            found.append(int(line))
        assert found == list(range(50, LINES_KEPT_MAX + 50))

    run(scenario())


def test_stops_in_order_and_is_killed_when_it_does_not(run: Run) -> None:
    async def scenario() -> None:
        orderly = await start(
            "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint('up', flush=True)\n"
            "signal.pause()"
        )
        assert await orderly.read_line() == "up"
        assert await orderly.stop(20) == 5
        stubborn = await start(
            "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n"
            "while True: signal.pause()"
        )
        assert await stubborn.read_line() == "up"
        assert await stubborn.stop(0.05) == -signal.SIGKILL

    run(scenario())


def test_its_own_children_end_with_it(run: Run) -> None:
    async def scenario() -> None:
        program = await start(
            "import subprocess, sys\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
            "print(child.pid, flush=True)\nchild.wait()"
        )
        grandchild = int(await program.read_line() or 0)
        program.kill()
        assert await program.wait() == -signal.SIGKILL
        await until_ended(grandchild)

    run(scenario())


def test_the_end_of_its_input_is_the_end_of_its_parent(run: Run, tmp_path: Path) -> None:
    """A parent that is killed lets go of the pipe, and the program stops as if it was asked to."""
    child = (
        "import asyncio\n"
        "from barnabas.kernel.real_program import stop_at_end_of_input\n"
        "async def main():\n"
        "    stop = asyncio.Event()\n"
        "    stop_at_end_of_input(asyncio.get_running_loop(), stop)\n"
        "    print('up', flush=True)\n"
        "    await stop.wait()\n"
        f"    open({str(tmp_path / 'stopped')!r}, 'w').write('in order')\n"
        "asyncio.run(main())\n"
    )
    parent = (
        "import asyncio, os, signal, sys\n"
        "from barnabas.kernel.real_program import start_program\n"
        "async def main():\n"
        f"    program = await start_program(asyncio.get_running_loop(), [sys.executable, '-c', {child!r}])\n"
        "    await program.read_line()\n"
        "    print(program.process_id, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )

    async def scenario() -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        killed = await start(parent, environment={"PYTHONPATH": path})
        child_id = int(await killed.read_line() or 0)
        assert await killed.wait() == -signal.SIGKILL
        await until_ended(child_id)
        assert (tmp_path / "stopped").read_text() == "in order"

    run(scenario())


def test_errors_go_where_they_are_sent(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        with (tmp_path / "errors").open("wb") as errors:
            program = await start("import sys; sys.stderr.write('wrong')", errors_to=errors.fileno())
        await program.wait()
        assert (tmp_path / "errors").read_text() == "wrong"

    run(scenario())


def test_a_program_that_is_not_there_is_an_error(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(FileNotFoundError):
            await start_program(asyncio.get_running_loop(), ["/nowhere/program"])

    run(scenario())


def test_an_id_of_a_process_is_told_from_what_is_none() -> None:
    assert is_process(b"%d\n" % os.getpid())
    assert is_process(b"1")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    for text in (b"%d" % ended.pid, b"", b"x", b"9" * 20):
        assert not is_process(text)
