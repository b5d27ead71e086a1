"""What the tests of `real_spawn` run in child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from barnabas.kernel.host import Files
from barnabas.kernel.real_host import RealHost, run


def write_argument(files: Files, argument: bytes) -> int:
    """Writes what follows the path (one line) to that path; ends with status 7."""
    path, _, text = argument.partition(b"\n")
    descriptor = files.open(path.decode(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    while text:
        text = text[files.write(descriptor, text) :]
    files.close(descriptor)
    return 7


def end_quietly(files: Files, argument: bytes) -> None:
    """Returns nothing."""


def fail(files: Files, argument: bytes) -> None:
    raise ValueError(argument.decode())


def read_standard_input(files: Files, argument: bytes) -> int:
    """0 when standard input is empty, so that an entry cannot disturb the lifeline."""
    return len(sys.stdin.buffer.read())


def wait_for_ever(files: Files, argument: bytes) -> None:
    """Tells its process id through the file that the argument names, and stays."""
    write_argument(files, argument + b"\n" + str(os.getpid()).encode())
    threading.Event().wait()


def stop_in_order(files: Files, argument: bytes) -> int:
    """Ends with status 5 on SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    write_argument(files, argument + b"\n" + str(os.getpid()).encode())
    stopped.wait()
    return 5


def refuse_to_stop(files: Files, argument: bytes) -> None:
    """Ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_ever(files, argument)


def parent(argument: str) -> None:
    """The main of a process that has a child, `wait_for_ever`, and does nothing else."""

    async def main(host: RealHost) -> None:
        child = await host.spawn("tests.unit.kernel.child_entries:wait_for_ever", argument.encode())
        await child.wait()

    run(main, loop_factory=asyncio.new_event_loop)


if __name__ == "__main__":
    parent(sys.argv[1])
