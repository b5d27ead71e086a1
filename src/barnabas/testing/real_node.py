"""One node of a cluster in this process: a thread with an event loop and a host of its own, which can be paused, and
killed as a process can.

A node that is killed is cut off from its files and connections between two turns of its loop, and then never runs
again: nothing is flushed, nobody is told. What its coroutines still do while they are closed reaches nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import random
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from barnabas.kernel.host import Host
from barnabas.kernel.real_host import RealClock
from barnabas.kernel.real_offload import RealOffload
from barnabas.kernel.real_spawn import RealSpawn
from barnabas.testing.real_disk import NodeFiles
from barnabas.testing.real_links import NodeLinks, linked_loop

Result = TypeVar("Result")
Main = Callable[[Host, Callable[[object], None]], Coroutine[Any, Any, None]]
"""What a node runs, given its host and what to call when it serves, with whatever others need of it."""

STOP_SECONDS_MAX: Final = 60.0
"""How long a node's stop in order may take before it is killed."""
_CALL_SECONDS_MAX: Final = 30.0
_DRAIN_SECONDS: Final = 10.0
_CHILD_STOP_SECONDS: Final = 5.0
_JOIN_SECONDS: Final = 5.0
_BURIAL_TURNS: Final = 4


_NODES: Final[weakref.WeakSet[Node]] = weakref.WeakSet()
"""The nodes of this process, for `_let_go_in_child`."""


class NodeError(RuntimeError):
    """A node did not start, ended by itself, or does not answer; the message says why."""


@dataclass(frozen=True, slots=True)
class NodeHost(Host):
    """The host of one node."""

    files: NodeFiles
    offload: RealOffload
    spawn: RealSpawn


class Node:
    """One run of `main(host, serves)` in a thread of its own, begun at once. Its methods are for other threads."""

    def __init__(self, name: str, main: Main, *, durable: bool = False, ports_cut: Sequence[int] = ()) -> None:
        """Nothing passes between it and listeners on `ports_cut`, from its start on."""
        self.name = name
        self.files = NodeFiles(durable=durable)
        self.links = NodeLinks()
        self.started: concurrent.futures.Future[Any] = concurrent.futures.Future()
        """Done with what `main` calls `serves` with, or with the error that it ends with before."""
        self.error: BaseException | None = None
        """Why it ended by itself."""
        self._main = main
        self._ports_cut = ports_cut
        self._loop = linked_loop(self.links)
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_killed = False
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._thread = threading.Thread(target=self._run, name=f"barnabas-{name}", daemon=True)
        self._thread.start()
        _NODES.add(self)

    # What there is.

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_paused(self) -> bool:
        return not self._goes_on.is_set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def _serves(self, what: object) -> None:
        if not self.started.done():
            self.started.set_result(what)

    # From other threads.

    def until_started(self, seconds_max: float) -> Any:
        """Returns what `main` has started. Raises NodeError."""
        try:
            return self.started.result(seconds_max)
        except TimeoutError:
            raise NodeError(f"{self.name} has not started within {seconds_max:g} s") from None
        except Exception as error:
            raise NodeError(f"{self.name} does not start: {error}") from error

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function on the node's loop, and returns what it does. Raises NodeError where the node is down or
        paused.
        """

        async def called() -> Result:
            return function(*arguments)

        return self.run(called(), _CALL_SECONDS_MAX)

    def run(self, work: Coroutine[Any, Any, Result], seconds_max: float) -> Result:
        """Runs a coroutine on the node's loop to its end. Raises NodeError as `call` does, and TimeoutError."""
        if not self.is_running or self.is_paused:
            work.close()
            state = "is paused: resume it first" if self.is_running else "does not run: start it first"
            raise NodeError(f"{self.name} {state}")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds_max)
        except TimeoutError:
            if not future.done():
                future.cancel()
                raise NodeError(f"{self.name} did not do that within {seconds_max:g} s") from None
            raise

    def tell(self, function: Callable[[], object]) -> None:
        """Calls a function on the node's loop, without waiting for it: where the node is paused, as soon as it goes on,
        ahead of everything else.
        """
        with contextlib.suppress(RuntimeError):  # it is down
            self._loop.call_soon_threadsafe(function)

    def pause(self) -> None:
        """Stops its loop where it is, as SIGSTOP stops a process; what the system does for its sockets goes on."""
        if not self.is_running:
            raise NodeError(f"{self.name} does not run: start it first")
        if not self._goes_on.is_set():
            return
        stands = threading.Event()
        self._goes_on.clear()

        def stand() -> None:
            stands.set()
            self._goes_on.wait()

        self._loop.call_soon_threadsafe(stand)
        if not stands.wait(_CALL_SECONDS_MAX):
            self._goes_on.set()
            raise NodeError(f"{self.name} has not stood still within {_CALL_SECONDS_MAX:g} s")

    def resume(self) -> None:
        """Goes on after `pause`, as after SIGCONT."""
        self._goes_on.set()

    def stop(self) -> None:
        """Stops it in order, and returns when nothing of it is left. Paused, it goes on for that."""
        self.resume()
        self._is_stopping = True
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            self.kill()
            raise NodeError(f"{self.name} had not stopped after {STOP_SECONDS_MAX:g} s, and was killed")

    def kill(self) -> None:
        """Ends it as kill -9 ends a process: at once, without a word to it. Returns when nothing of it is left."""
        self._is_killed = True
        self.files.slow_down(0)  # a turn that waits for its disk would have to end first
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._die)
        self._goes_on.set()
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise NodeError(f"{self.name} could not be ended within {STOP_SECONDS_MAX:g} s")

    # On the node's thread.

    def _run(self) -> None:
        loop = self._loop
        loop.set_exception_handler(self._failed)
        host = NodeHost(
            name=self.name,
            loop=loop,
            clock=RealClock(),
            random=random.Random(os.urandom(16)),
            entropy=os.urandom,
            files=self.files,
            offload=RealOffload(self.name, loop),
            spawn=RealSpawn(loop),
        )
        try:
            self._task = loop.create_task(self._begin(host), name=self.name)
            self._task.add_done_callback(lambda _: loop.stop())
            loop.run_forever()
            if self._is_killed:
                self._bury(host)
            else:
                loop.run_until_complete(self._leave(host))
        finally:
            loop.close()
            if not self.started.done():
                self.started.set_exception(self.error or NodeError("it was stopped before"))

    async def _begin(self, host: NodeHost) -> None:
        self.links.cut(self._ports_cut)
        await self._main(host, self._serves)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What nobody has caught is shown, unless it is what dead code says last."""
        if not self._is_killed:
            loop.default_exception_handler(context)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _die(self) -> None:
        self.files.cut_off()
        self.links.cut_off()
        self._loop.stop()

    async def _leave(self, host: NodeHost) -> None:
        """Ends what `main` has left, as a program does at its end."""
        if self._task is not None:
            try:
                await self._task
            except asyncio.CancelledError as error:
                self.error = None if self._is_stopping else error
            except Exception as error:  # noqa: BLE001 - kept for whoever asks
                self.error = error
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await host.spawn.close(_CHILD_STOP_SECONDS)
        await host.offload.close(_DRAIN_SECONDS)
        await self._loop.shutdown_asyncgens()
        self.links.end_held()
        # Transports report their ends in the turns after their protocols have.
        for _ in range(_BURIAL_TURNS):
            await turn()

    def _bury(self, host: NodeHost) -> None:
        """Lets go of everything that a dead node had, none of which reaches the world any more."""
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio's own gather
            coroutine = task.get_coro()
            if coroutine is not None:
                # Dead code's last words: it awaits in a `finally`, or reaches for what is cut off.
                with contextlib.suppress(BaseException):
                    coroutine.close()
        if host.offload.abandon(_JOIN_SECONDS):
            self.files.close_all()
        self._loop.run_until_complete(self._close_links(host))

    async def _close_links(self, host: NodeHost) -> None:
        self.links.close_all()
        await host.spawn.close(0.0)
        for _ in range(_BURIAL_TURNS):
            await turn()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001


def _let_go_in_child() -> None:
    """In a child that a test has forked: lets go of its copies of what nodes have open. None of their threads runs
    there, and a copy would keep a port from being free, a lock from ending, and peers from hearing that a node died.

    The numbers stay, open on nothing, as after `cut_off`. No lock is taken: who held it is not in the child.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for node in _NODES:
        for descriptor in (*node.links.descriptors(), *node.files.descriptors()):
            with contextlib.suppress(OSError):
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


async def turn() -> None:
    """Waits for a turn of the loop that has looked at its sockets."""
    loop = asyncio.get_running_loop()
    later: asyncio.Future[None] = loop.create_future()
    loop.call_later(0.001, later.set_result, None)
    await later


async def in_thread(function: Callable[[], Result]) -> Result:
    """What a function returns that blocks, while the running loop goes on."""
    return await asyncio.to_thread(function)
