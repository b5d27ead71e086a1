"""Standard input and output without blocking the loop: a member of a group must go on while a pipe is full, and Ctrl-C
must work while nobody types.

The descriptors are shared with other processes, so they are not set to non-blocking; each call is made when it will not
wait.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longer than any line with a record that brokers take unless they are set up otherwise."""
_READ_BYTES: Final = 256 * 1024
_PIPE_WRITE_BYTES: Final = select.PIPE_BUF
"""What a pipe that is ready takes at once for sure."""


class LineTooLongError(Exception):
    """A line of more than so many bytes; `lines_before` is how many whole lines came before it."""

    def __init__(self, lines_before: int, bytes_max: int) -> None:
        super().__init__(f"it has more than {bytes_max} bytes without an end, which no record of the topic may have")
        self.lines_before = lines_before


async def read_lines(
    loop: asyncio.AbstractEventLoop, descriptor: int, bytes_max: int = LINE_BYTES_MAX
) -> AsyncIterator[list[bytes]]:
    """The lines up to the end of a file, a pipe or a terminal, without their `\\n`, as many at once as are there. None
    may have more than `bytes_max`.

    Raises LineTooLongError, and OSError.
    """
    waits = _may_wait(descriptor)
    count = 0
    pieces: list[bytes] = []  # of a line that has no end yet
    size = 0
    while True:
        if waits:
            await _ready(loop, descriptor, loop.add_reader, loop.remove_reader)
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            continue
        if not data:
            break
        lines = data.split(b"\n")
        if pieces and len(lines) > 1:
            lines[0] = b"".join((*pieces, lines[0]))
            pieces, size = [], 0
        rest = lines.pop()
        if rest:
            pieces.append(rest)
            size += len(rest)
        too_long = next((number for number, line in enumerate(lines) if len(line) > bytes_max), None)
        if too_long is not None:
            del lines[too_long:]
        count += len(lines)
        if lines:
            yield lines
        if too_long is not None or size > bytes_max:
            raise LineTooLongError(count, bytes_max)
    if pieces:
        yield [b"".join(pieces)]


async def write(loop: asyncio.AbstractEventLoop, descriptor: int, data: bytes) -> None:
    """Writes all of `data`. Raises BrokenPipeError where nobody reads any more, and OSError."""
    view = memoryview(data)
    waits = _may_wait(descriptor)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while view:
        if waits and not poll.poll(0):
            await _ready(loop, descriptor, loop.add_writer, loop.remove_writer)
        try:
            written = os.write(descriptor, view[:_PIPE_WRITE_BYTES] if waits else view)
        except BlockingIOError:
            continue
        view = view[written:]


def _may_wait(descriptor: int) -> bool:
    """Whether a read or a write may take as long as somebody else likes: files do not, pipes and terminals do."""
    return not stat.S_ISREG(os.fstat(descriptor).st_mode)


async def _ready(
    loop: asyncio.AbstractEventLoop,
    descriptor: int,
    watch: Callable[..., Any],
    unwatch: Callable[[int], Any],
) -> None:
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        watch(descriptor, wake)
    except PermissionError:
        return  # what cannot be watched, as /dev/null, does not wait
    try:
        await ready
    finally:
        unwatch(descriptor)
