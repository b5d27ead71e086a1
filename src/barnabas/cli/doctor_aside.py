"""What may never come back, as a look at a dead NFS mount or a question to a dead DNS: done aside, and waited for.

It loads no asyncio: what takes long begins before there is a loop.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from barnabas.cli.doctor_findings import Finding

Result = TypeVar("Result")
ANSWER_SECONDS: Final = 5.0
"""How long a file system or a name may take."""
_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EBADF})


def mode_of(path: str) -> int | None:
    """The mode of a file or directory; None where there is none. Raises OSError where that cannot be told, and loads no
    `pathlib`, which does the same.
    """
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise


def begin(work: Callable[[], Result]) -> Future[Result]:
    """Begins `work` on a thread of its own, which does not keep the process from its end: nobody can interrupt a call
    to a file system that does not answer.
    """
    done: Future[Result] = Future()
    done.set_running_or_notify_cancel()  # who does not wait any more takes nothing back

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - for who waits
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return done


async def aside(work: Callable[[], Result] | Future[Result], seconds: float | None = None) -> Result:
    """What `work`, which is begun unless it has been, returns. Raises what it raises, and TimeoutError after so many
    seconds (`ANSWER_SECONDS`); its thread is left behind then.
    """
    import asyncio

    begun = work if isinstance(work, Future) else begin(work)
    async with asyncio.timeout(ANSWER_SECONDS if seconds is None else seconds):
        return await asyncio.wrap_future(begun)


async def found_aside(
    work: Callable[[], list[Finding]] | Future[list[Finding]], instead: Finding, seconds: float | None = None
) -> list[Finding]:
    """As `aside`; or what is to be said where there is no answer in time."""
    try:
        return await aside(work, seconds)
    except TimeoutError:
        return [instead]
