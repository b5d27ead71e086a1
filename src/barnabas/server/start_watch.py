"""Waiting for a process that starts: for as long as it makes progress, however long the recovery of its logs takes.

What starts says in lines how far it is, and ready, or why it ends, in the last one (`barnabas broker --progress`). A
recovery that is cut short begins anew the next time, so who is not silent is not stopped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

SILENCE_SECONDS_MAX: Final = 90.0
"""Without progress. A broker that was killed waits for the end of its former session, one and a half of the longest
time-out (20 ticks, 40 s) at most."""
START_SECONDS_MAX: Final = 24 * 3600.0
"""With progress: the recovery of some hundred TB takes so long."""
REMARK_EVERY_SECONDS: Final = 10.0
"""How often the progress is reported to a person."""
STARTING: Final = "starting"
"""The key of a line that tells of progress; its value is what the process is at, in words."""


class NoProgressError(Exception):
    """The process has been silent for too long, or takes too long altogether; the message says which."""


async def last_line(
    loop: asyncio.AbstractEventLoop,
    read_line: Callable[[], Awaitable[str | None]],
    *,
    on_progress: Callable[[str], object],
    on_silence: Callable[[], object] | None = None,
    silence_seconds: float = SILENCE_SECONDS_MAX,
) -> dict[str, Any] | None:
    """What the process says when it is ready, or why it ended; None when it ended without a word.

    `on_progress` is told at most every `REMARK_EVERY_SECONDS`. With `on_silence` a silent process is waited for all the
    same, and that is called once per silence; without, raises NoProgressError.
    """
    began = told = loop.time()
    while True:
        line = await _line(read_line, on_silence, silence_seconds)
        if line is None:
            return None
        said: dict[str, Any] = json.loads(line)
        if STARTING not in said:
            return said
        now = loop.time()
        if on_silence is None and now - began >= START_SECONDS_MAX:
            raise NoProgressError(f"it was not ready within {START_SECONDS_MAX / 3600:g} hours")
        if said[STARTING] and now - told >= REMARK_EVERY_SECONDS:
            told = now
            on_progress(said[STARTING])


async def _line(
    read_line: Callable[[], Awaitable[str | None]], on_silence: Callable[[], object] | None, silence_seconds: float
) -> str | None:
    try:
        async with asyncio.timeout(silence_seconds):
            return await read_line()
    except TimeoutError:
        if on_silence is None:
            raise NoProgressError(f"it made no progress for {silence_seconds:g} s") from None
    on_silence()
    return await read_line()
