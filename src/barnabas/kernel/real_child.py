"""The program of a child process that `RealSpawn` started.

`python -m barnabas.kernel.real_child package.module:function` is the command. Standard input is the lifeline: a length,
the argument, and then nothing until the parent ends or lets go.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Generator

from barnabas.kernel.paced_work import finish
from barnabas.kernel.real_files import RealFiles

ARGUMENT_LENGTH = struct.Struct("!I")
STOP_SECONDS = 10.0
_OBJECTS_PER_COLLECTION = 100_000
NICE = 10
"""Children do what can wait, while their parent answers."""


def main(entry: str) -> int:
    """Runs the entry with the argument from the lifeline and returns the exit status."""
    lifeline = os.dup(0)
    # The entry must not read from the lifeline by accident.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    (length,) = ARGUMENT_LENGTH.unpack(_read_exactly(lifeline, ARGUMENT_LENGTH.size))
    argument = _read_exactly(lifeline, length)
    threading.Thread(target=_stop_with_parent, args=(lifeline,), name="lifeline", daemon=True).start()
    module, _, function = entry.partition(":")
    os.nice(NICE)
    # Work goes through millions of short-lived objects, and through few cycles.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    status = getattr(importlib.import_module(module), function)(RealFiles(), argument)
    if isinstance(status, Generator):
        status = finish(status, time.monotonic, time.sleep)
    return 0 if status is None else int(status)


def _read_exactly(descriptor: int, count: int) -> bytes:
    chunks = []
    while count:
        chunk = os.read(descriptor, min(count, 1024 * 1024))
        if not chunk:
            raise SystemExit(1)  # the parent ended while it was starting this process
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def _stop_with_parent(lifeline: int) -> None:
    """Sends SIGTERM, which an entry may handle to stop cleanly; then ends the process."""
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
