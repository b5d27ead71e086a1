"""Child processes that end when their parent does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, cast

from barnabas.kernel.host import ChildLimitError, HostClosedError
from barnabas.kernel.real_child import ARGUMENT_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable

_ENTRY = r"(?a:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)"

CHILDREN_MAX = 64
ARGUMENT_BYTES_MAX = 64 * 1024 * 1024


class RealChildProcess(asyncio.SubprocessProtocol):
    """A child process; the loop tells it when the process has ended."""

    def __init__(self, siblings: dict[RealChildProcess, None], loop: asyncio.AbstractEventLoop) -> None:
        self._siblings = siblings
        self._ended: asyncio.Future[int] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._siblings[self] = None

    def process_exited(self) -> None:
        self._siblings.pop(self, None)
        status = self._connected().get_returncode()
        if not self._ended.done():
            self._ended.set_result(-1 if status is None else status)
        self._connected().close()

    @property
    def process_id(self) -> int:
        process_id = self._connected().get_pid()
        if process_id is None:
            raise ProcessLookupError("the process was never started")
        return process_id

    async def wait(self) -> int:
        # Several may wait; none of them may cancel it for the others.
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        if self._ended.done():
            return
        try:
            self._connected().send_signal(number)
        except ProcessLookupError:
            return

    def send_argument(self, argument: bytes) -> None:
        """Writes the argument into the lifeline, which then stays open for as long as the child may live."""
        lifeline = self._lifeline()
        lifeline.write(ARGUMENT_LENGTH.pack(len(argument)))
        lifeline.write(argument)

    def cut_lifeline(self) -> None:
        """Tells the child that its parent is gone; it stops as if that were so."""
        if not self._ended.done():
            self._lifeline().abort()

    def _lifeline(self) -> asyncio.WriteTransport:
        return cast("asyncio.WriteTransport", self._connected().get_pipe_transport(0))

    def _connected(self) -> asyncio.SubprocessTransport:
        if self._transport is None:
            raise ProcessLookupError("the process was never started")
        return self._transport


class RealSpawn:
    """The `Spawn` port on processes of this interpreter, each in a session of its own.

    The child's standard input is the lifeline: the argument goes down it, and its end is the end of the parent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, children_max: int = CHILDREN_MAX) -> None:
        self._loop = loop
        self._children_max = children_max
        self._children: dict[RealChildProcess, None] = {}
        self._starting = 0
        self._closed = False

    async def __call__(self, entry: str, argument: bytes, /) -> RealChildProcess:
        if not re.fullmatch(_ENTRY, entry):
            raise ValueError(f'a child\'s entry reads "package.module:function", not {entry!r}')
        if len(argument) > ARGUMENT_BYTES_MAX:
            raise ValueError(f"a child's argument has at most {ARGUMENT_BYTES_MAX} bytes, not {len(argument)}")
        self._check_open()
        if len(self._children) + self._starting >= self._children_max:
            raise ChildLimitError(f"{self._children_max} child processes run already: wait for one to end")
        self._starting += 1
        try:
            _transport, child = await self._loop.subprocess_exec(
                lambda: RealChildProcess(self._children, self._loop),
                *(sys.executable, "-P", "-m", "barnabas.kernel.real_child", entry),
                stdin=asyncio.subprocess.PIPE,
                stdout=None,
                stderr=None,
                env=_child_environment(sys.path),
                # Ctrl-C in a terminal reaches the parent alone, which stops its children in order.
                start_new_session=True,
            )
        finally:
            self._starting -= 1
        try:
            self._check_open()
        except HostClosedError:  # `close` did not see this child; without its argument it has done nothing yet
            child.signal(signal.SIGKILL)
            await child.wait()
            raise
        child.send_argument(argument)
        return child

    def _check_open(self) -> None:
        if self._closed:
            raise HostClosedError("the host is closing: no new child processes")

    async def close(self, stop_seconds: float) -> None:
        """Starts no more children, asks the running ones to stop, and kills those that still run after the limit."""
        self._closed = True
        children = list(self._children)
        if not children:
            return
        for child in children:
            child.cut_lifeline()
        waits = [asyncio.ensure_future(child.wait()) for child in children]
        _, late = await asyncio.wait(waits, timeout=stop_seconds)
        if late:
            for child in children:
                child.signal(signal.SIGKILL)
            await asyncio.wait(late)


def _child_environment(search_path: Iterable[str]) -> dict[str, str]:
    """The child must find the same modules as its parent, whatever the source of the parent's path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in search_path)}
