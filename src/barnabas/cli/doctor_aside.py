"""What may never come back, as a look at a dead NFS mount or a question to a dead DNS: done aside, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from barnabas.cli.doctor_findings import Finding

Result = TypeVar("Result")
ANSWER_SECONDS: Final = 5.0
"""How long a file system or a name may take."""


async def aside(work: Callable[[], Result], seconds: float | None = None) -> Result:
    """What `work` returns, on a thread of its own. Raises what it raises, and TimeoutError after so many seconds
    (`ANSWER_SECONDS`).

    The thread is left behind then, and does not keep the process from its end: nobody can interrupt a call to a file
    system that does not answer.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def tell(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - for who waits
            failure = error
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name="aside", daemon=True).start()
    async with asyncio.timeout(ANSWER_SECONDS if seconds is None else seconds):
        return await done


async def found_aside(
    work: Callable[[], list[Finding]], instead: Finding, seconds: float | None = None
) -> list[Finding]:
    """As `aside`; or what is to be said where there is no answer in time."""
    try:
        return await aside(work, seconds)
    except TimeoutError:
        return [instead]
