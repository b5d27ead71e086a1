"""Programs that are started by their command line, in process groups of their own, and end when their parent does.

What `RealSpawn` is for work of our own, this is for whole servers: each has a command, says in lines on its standard
output what it is at, and watches its standard input, whose end is the end of the parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, cast

OUTPUT_BYTES_MAX: Final = 64 * 1024
LINES_KEPT_MAX: Final = 100
REST_SECONDS_MAX: Final = 1.0
"""How long what a program has said before its end is waited for, should a process that it left hold the pipe open."""


class RealProgram(asyncio.SubprocessProtocol):
    """One run of a program; `start_program` makes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._status: int | None = None
        self._ended: asyncio.Future[int] = loop.create_future()
        """The exit status, once its output is over too."""
        self._giving_up: asyncio.TimerHandle | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=LINES_KEPT_MAX)
        self._line_came: asyncio.Future[None] = loop.create_future()
        self._output_over = False

    # What the loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, _descriptor: int, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-OUTPUT_BYTES_MAX:]
        self._lines.extend(line.decode("utf-8", "replace") for line in lines)
        self._wake()

    def pipe_connection_lost(self, descriptor: int, _error: Exception | None) -> None:
        if descriptor == 1:
            self._output_over = True
            self._wake()
            self._end()

    def process_exited(self) -> None:
        status = self._connected().get_returncode()
        self._status = -1 if status is None else status
        # Children of the program that are left in its group go with it.
        self._signal_group(signal.SIGKILL)
        # The loop may hear of the end before it has read what was said before that.
        self._giving_up = self._loop.call_later(REST_SECONDS_MAX, self.pipe_connection_lost, 1, None)
        self._end()

    # For the parent.

    @property
    def process_id(self) -> int:
        """Also the id of the process group."""
        process_id = self._connected().get_pid()
        if process_id is None:
            raise ProcessLookupError("the program was never started")
        return process_id

    @property
    def is_running(self) -> bool:
        return self._status is None

    async def wait(self) -> int:
        """The exit status, when all that it has said is there to be read; negative is minus the signal's number."""
        # Several may wait; none of them may cancel it for the others.
        return await asyncio.shield(self._ended)

    async def read_line(self) -> str | None:
        """The next line of the standard output, without its end; None when there will be none."""
        while not self._lines:
            if self._output_over:
                return None
            await asyncio.shield(self._line_came)
        return self._lines.popleft()

    def terminate(self) -> None:
        """Asks it to stop in order (SIGTERM to the process alone)."""
        if self.is_running:
            self._connected().send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole process group."""
        if self.is_running:
            self._signal_group(signal.SIGKILL)

    def suspend(self) -> None:
        """SIGSTOP to the whole process group: nothing of it runs until `resume`."""
        if self.is_running:
            self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `suspend`."""
        if self.is_running:
            self._signal_group(signal.SIGCONT)

    async def stop(self, limit_seconds: float) -> int:
        """Asks it to stop, kills it after the limit, and returns the exit status."""
        self.terminate()
        try:
            async with asyncio.timeout(limit_seconds):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    # Inside.

    def _end(self) -> None:
        if self._status is None or not self._output_over or self._ended.done():
            return
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._ended.set_result(self._status)
        self._connected().close()

    def _wake(self) -> None:
        if not self._line_came.done():
            self._line_came.set_result(None)
        self._line_came = self._loop.create_future()

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.process_id, number)
        except ProcessLookupError:
            return

    def _connected(self) -> asyncio.SubprocessTransport:
        if self._transport is None:
            raise ProcessLookupError("the program was never started")
        return self._transport


async def start_program(
    loop: asyncio.AbstractEventLoop,
    command: Sequence[str],
    *,
    errors_to: int | None = None,
    keeps: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> RealProgram:
    """Starts a program whose standard error goes to the descriptor `errors_to` (None: to that of this process).

    `environment` is added to this process's; descriptors in `keeps` stay open in it. Raises OSError when it cannot be
    started.
    """
    _transport, program = await loop.subprocess_exec(
        lambda: RealProgram(loop),
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors_to,
        pass_fds=keeps,
        env={**os.environ, **(environment or {})},
        # A group of its own: Ctrl-C in a terminal reaches the parent alone, which stops its programs in order.
        start_new_session=True,
    )
    return program


def is_process(process_id: bytes) -> bool:
    """Whether a process with that id, in decimal digits, exists; False for anything but an id."""
    try:
        os.kill(int(process_id), 0)
    except PermissionError:
        return True
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    return True


def stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """For the program itself: sets `stop` when its standard input is over, which says that its parent is gone."""
    descriptor = 0

    def read() -> None:
        if not os.read(descriptor, OUTPUT_BYTES_MAX):
            loop.remove_reader(descriptor)
            stop.set()

    loop.add_reader(descriptor, read)
