"""An asyncio event loop in virtual time: what one simulated process runs on.

The model. A loop runs in ticks: everything that was ready when the tick began runs, in order; what that makes ready
waits for the next tick. The world decides when a tick happens: a little after the event that woke an idle loop, or
when the previous tick's time is used up (`LoopProfile`), so ticks of different processes interleave by seed, and time
passes even in a loop that never waits. Within a tick `time()` stands still. Timers and I/O that come up during a tick
are seen together in the next one, as on a real loop. File operations lengthen the tick in which they are made.

A loop that is *paused* (SIGSTOP) runs no ticks; what comes up waits. A loop that is *dropped* (the process died) never
calls anything again: `call_soon` and its kin do nothing, suspended coroutines are closed with everything they could
act on already cut off, and nothing that they or their finalizers raise counts.

Tasks hash by their order of creation, so that sets of tasks (asyncio.wait, TaskGroup) are walked in the same order in
every run.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import traceback
import weakref
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, NoReturn, Protocol

from barnabas.testing.killed_code import close_quietly, has_failed_unseen, no_news_of_the_killed
from barnabas.testing.profile import LoopProfile
from barnabas.testing.real_threads import this_thread
from barnabas.testing.simulated_clock import SimulatedClock
from barnabas.testing.simulated_tasks import SimulatedFuture, SimulatedTask
from barnabas.testing.trace import Occurrence
from barnabas.testing.world import World

TASKS_KEPT_MIN = 256
_TICK = int(Occurrence.TICK)
TIMER_ADJUSTMENT_SECONDS = 1e-9


class ProcessEndedError(BaseException):
    """Raised in code of a simulated process that has ended, where it touches the world; ends that code. Not an
    Exception, so nothing handles it by mistake.
    """


class UnhandledError(Exception):
    """Something on a loop of a simulation raised and nobody took it; the text is what asyncio's exception handler was
    told.
    """


class ProcessNetwork(Protocol):
    """What a process has of the network, to its loop."""

    async def getaddrinfo(self, host: Any, port: Any, flags: int) -> list[tuple[Any, ...]]: ...
    def name_of(self, address: str) -> str: ...
    async def connect(
        self, factory: Callable[[], Any], host: str | None, port: int | None, local_addr: tuple[str, int] | None
    ) -> tuple[asyncio.Transport, Any]: ...
    async def listen(
        self,
        factory: Callable[[], Any],
        host: str | Sequence[str] | None,
        port: int | None,
        backlog: int,
        start_serving: bool,
    ) -> asyncio.AbstractServer: ...


class ReadyHandle(asyncio.Handle):
    """A callback in a loop's ready queue."""

    __slots__ = ("arguments", "callback", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context | None) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments: tuple[Any, ...] = arguments
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback = None
        self.arguments = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def get_context(self) -> Context:
        return self.context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.callback!r}>"


class WaitingHandle(asyncio.TimerHandle):
    """A callback that waits for its time, and afterwards lies in the ready queue."""

    __slots__ = ("arguments", "callback", "context", "due_seconds", "is_cancelled", "world")

    def __init__(
        self,
        world: World | None,
        due_seconds: float,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments: tuple[Any, ...] = arguments
        self.context = copy_context() if context is None else context
        self.is_cancelled = False
        self.due_seconds = due_seconds
        self.world = world

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback = None
            self.arguments = ()
            if self.world is not None:
                self.world.cancelled_one()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.due_seconds

    def get_context(self) -> Context:
        return self.context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.callback!r}>"

    def __hash__(self) -> int:
        return hash(self.due_seconds)

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(asyncio.AbstractEventLoop):
    """One process's loop. `network` is set by the process that owns the loop."""

    network: ProcessNetwork

    def __init__(self, world: World, name: str, clock: SimulatedClock, profile: LoopProfile) -> None:
        self.name = name
        self.world = world
        self.dropped = False
        self.was_killed = False
        """Whether its process was killed: what it has not closed is no fault of its code."""
        self._clock = clock
        self._profile = profile
        self._label = world.trace.label(name)
        self._random = world.random(f"loop/{name}").random
        self._ready: deque[ReadyHandle | WaitingHandle] = deque()
        self._tick_is_scheduled = False
        self._free_at = 0.0
        self._charged_seconds = 0.0
        self._paused = False
        self._running = False
        self._closing_now = False
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._tasks_made = 0
        self._futures_made = 0
        self._tasks_swept_at = TASKS_KEPT_MIN
        self._task_factory: Any = None
        self._exception_handler: Any = None
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._hooks = (self._generators.add, self._generator_abandoned)

    def __repr__(self) -> str:
        return f"<SimulatedLoop {self.name}{' dropped' if self.dropped else ''}>"

    # Callbacks and time.

    @property
    def clock(self) -> SimulatedClock:
        """The clocks of its machine."""
        return self._clock

    def time(self) -> float:
        return self._clock.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> ReadyHandle:
        handle = ReadyHandle(callback, args, context)
        if not self.dropped:
            self._ready.append(handle)
            if not self._tick_is_scheduled:
                self._schedule_tick()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> ReadyHandle:
        if this_thread() != self.world.thread:
            refusal = RuntimeError(
                f"a thread of its own calls code of {self.name}, which runs in virtual time: there are no other threads"
                " in a simulation"
            )
            self.world.fail(refusal)
            raise refusal
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> WaitingHandle:
        return self.call_at(self._clock.monotonic() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> WaitingHandle:
        handle = WaitingHandle(None if self.dropped else self.world, when, callback, args, context)
        if not self.dropped:
            self.world.schedule(self._clock.virtual_time(when), self._timer_due, handle)
        return handle

    def _timer_due(self, handle: WaitingHandle) -> None:
        if handle.is_cancelled:
            self.world.passed_cancelled()
        elif self.dropped:
            return
        elif self._clock.monotonic() < handle.due_seconds:
            # Rounding, or the clock was slowed after the timer was set: production code relies on `time() >= when`.
            when = max(
                self._clock.virtual_time(handle.due_seconds),
                self.world.now + max(TIMER_ADJUSTMENT_SECONDS, 4 * math.ulp(self.world.now)),
            )
            self.world.schedule(when, self._timer_due, handle)
        else:
            handle.world = None
            self._ready.append(handle)
            if not self._tick_is_scheduled:
                self._schedule_tick()

    def _schedule_tick(self) -> None:
        if self._paused:
            return
        self._tick_is_scheduled = True
        least, most = self._profile.wake_seconds
        when = self.world.now + least + (most - least) * self._random()
        self.world.schedule(max(when, self._free_at), self._tick)

    def _tick(self, _: object) -> None:
        if self.dropped or self._paused:
            self._tick_is_scheduled = False
            return
        take = self._ready.popleft
        count = len(self._ready)
        world = self.world
        world.trace.add(world.now, _TICK, self._label, count)
        self._charged_seconds = 0.0
        if world.hooks is not self._hooks:
            world.hooks = self._hooks
            sys.set_asyncgen_hooks(*self._hooks)
        _set_running_loop(self)
        self._running = True
        try:
            for _ in range(count):
                handle = take()
                if handle.is_cancelled:
                    continue
                try:
                    handle.context.run(handle.callback, *handle.arguments)  # type: ignore[arg-type]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - whatever a callback raises is the simulation's to report
                    self._callback_raised(handle, error)
                if self.is_closed():
                    break
        finally:
            # The traceback of what a task raised may keep this frame, and so, from Python 3.12 on, the task itself.
            handle = None  # type: ignore[assignment]
            self._running = False
            _set_running_loop(None)
        if self.is_closed():
            self._tick_is_scheduled = False
            self.close_coroutines()
            return
        self._end_tick(count)

    def _end_tick(self, callbacks: int) -> None:
        profile = self._profile
        least, most = profile.tick_seconds
        seconds = least + (most - least) * self._random() + callbacks * profile.callback_seconds + self._charged_seconds
        if profile.hiccup_probability and self._random() < profile.hiccup_probability:
            least, most = profile.hiccup_seconds
            seconds += least + (most - least) * self._random()
        self._free_at = self.world.now + seconds
        if self._ready and not self._paused:
            self.world.schedule(self._free_at, self._tick)
        else:
            self._tick_is_scheduled = False

    def charge(self, seconds: float) -> None:
        """Makes the present tick longer by the time that something on the loop took."""
        self._charged_seconds += seconds

    @property
    def charged_seconds(self) -> float:
        """By how much the present tick has been made longer, of virtual time."""
        return self._charged_seconds

    def _callback_raised(self, handle: ReadyHandle | WaitingHandle, error: BaseException) -> None:
        if not isinstance(error, ProcessEndedError):
            self.call_exception_handler(
                {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
            )

    # Pausing and dropping.

    def pause(self) -> None:
        """Runs nothing until `resume`; what becomes ready is kept."""
        self._paused = True

    def resume(self) -> None:
        """Goes on."""
        self._paused = False
        if self._ready and not self._tick_is_scheduled and not self.dropped:
            self._schedule_tick()

    def drop(self) -> None:
        """The process is gone. Call it after its network, files and offload have been cut off."""
        self.dropped = True
        self._ready.clear()
        if not self._running:
            self.close_coroutines()

    def close_coroutines(self) -> None:
        """Ends the suspended coroutines of a dropped loop, oldest first, so that none is left to a finalizer; their
        `finally` blocks run and reach nothing.
        """
        if self._closing_now:
            return
        self._closing_now = True
        outer = _get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        was_running, self._running = self._running, True
        _set_running_loop(self)
        sys.set_asyncgen_hooks(*self._hooks)
        try:
            with no_news_of_the_killed():
                for task in self.pending_tasks():
                    coroutine = task.get_coro()
                    if inspect.iscoroutine(coroutine):
                        close_quietly(coroutine)
                    del task, coroutine
        finally:
            _set_running_loop(outer)
            self._running = was_running
            sys.set_asyncgen_hooks(*hooks)
            self._closing_now = False
        self._tasks.clear()

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that are not done, in order of creation."""
        return [task for reference in self._tasks if (task := reference()) is not None and not task.done()]

    def failed_tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that have raised what nobody has taken yet, in order of creation."""
        return [task for reference in self._tasks if (task := reference()) is not None and has_failed_unseen(task)]

    def describe_pending(self) -> list[str]:
        """One line for each task that is not done: its name and where it waits."""
        lines = []
        for task in self.pending_tasks():
            frames = task.get_stack(limit=1)
            place = f"{frames[0].f_code.co_qualname} line {frames[0].f_lineno}" if frames else "not started"
            lines.append(f"{self.name}: {task.get_name()} at {place}")
        return lines

    # Futures and tasks.

    def create_future(self) -> asyncio.Future[Any]:
        future = SimulatedFuture(loop=self)
        self._futures_made = future.number = self._futures_made + 1
        return future

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        if self.dropped and inspect.iscoroutine(coro):
            close_quietly(coro)
        self._tasks_made += 1
        number = self._tasks_made
        if self._task_factory is not None:
            task: asyncio.Task[Any] = self._task_factory(
                self, coro, **({} if context is None else {"context": context}), **options
            )
            if name is not None:
                task.set_name(name)
        else:
            task = SimulatedTask(coro, number, loop=self, name=name or f"Task-{number}", context=context, **options)
        self._tasks.append(weakref.ref(task))
        if len(self._tasks) > self._tasks_swept_at:
            self._tasks = [
                reference
                for reference in self._tasks
                if (kept := reference()) is not None and (not kept.done() or has_failed_unseen(kept))
            ]
            self._tasks_swept_at = 2 * len(self._tasks) + TASKS_KEPT_MIN
        return task

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    def _generator_abandoned(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self.dropped:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        generators = list(self._generators)
        self._generators.clear()
        for generator in generators:
            await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - asyncio's signature
        return

    # Errors that nobody handled.

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dropped:
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Fails the simulation, also when the process has a handler of its own that logs."""
        if self.dropped:
            return
        error = context.get("exception")
        details = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        others = [f"{key}: {value!r}" for key, value in context.items() if key not in ("message", "exception")]
        failure = UnhandledError(f"on {self.name}: {context.get('message')} {' '.join(others)}\n{details}".rstrip())
        failure.__cause__ = error if isinstance(error, BaseException) else None
        self.world.fail(failure)

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Nothing changes: debugging measures real time."""

    # The loop's life: the world's business.

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self.dropped

    def run_forever(self) -> NoReturn:
        raise RuntimeError("a simulated loop is run by its Simulation: run_until, run_for or run_on")

    def run_until_complete(self, future: Any) -> NoReturn:  # noqa: ARG002 - asyncio's signature
        raise RuntimeError("a simulated loop is run by its Simulation: run_until, run_for or run_on")

    def stop(self) -> NoReturn:
        raise RuntimeError("a simulated loop is stopped by its process: return from main, or crash it")

    def close(self) -> None:
        """Nothing to release: the process's end drops the loop."""

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("there are no threads in a simulation: hand the work to Host.offload")

    # Network.

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return await self.network.getaddrinfo(host, port, options.get("flags", 0))

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:  # noqa: ARG002 - asyncio's signature
        return self.network.name_of(sockaddr[0]), str(sockaddr[1])

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        local_addr: tuple[str, int] | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Like asyncio's; there is no TLS and there are no foreign sockets in a simulation."""
        _refuse(ssl=ssl, **options)
        return await self.network.connect(protocol_factory, host, port, local_addr)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        backlog: int = 100,
        ssl: Any = None,
        start_serving: bool = True,
        **options: Any,
    ) -> asyncio.AbstractServer:
        """Like asyncio's; there is no TLS and there are no foreign sockets in a simulation."""
        _refuse(ssl=ssl, **options)
        return await self.network.listen(protocol_factory, host, port, backlog, start_serving)


ABSENT_METHODS = {
    **dict.fromkeys(("sendfile", "sock_sendfile"), "write what was read from Host.files"),
    "start_tls": "use plain connections; TLS is tested on real loops",
    "create_datagram_endpoint": "only streams are simulated",
    **dict.fromkeys(
        (
            *("create_unix_connection", "create_unix_server", "connect_accepted_socket"),
            *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
            *("sock_connect", "sock_accept", "add_reader", "remove_reader", "add_writer", "remove_writer"),
        ),
        "use create_connection and create_server",
    ),
    **dict.fromkeys(
        ("connect_read_pipe", "connect_write_pipe", "subprocess_exec", "subprocess_shell"), "use Host.spawn"
    ),
    **dict.fromkeys(
        ("add_signal_handler", "remove_signal_handler"),
        "signals belong to the command line, which hands its program something to wait for",
    ),
    "set_default_executor": "hand the work to Host.offload",
}
"""What loops have and simulated ones do not, with what to do instead."""


def _refusal(method: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"a simulated loop has no {method}: {instead}")

    return refuse


for _method, _instead in ABSENT_METHODS.items():
    setattr(SimulatedLoop, _method, _refusal(_method, _instead))

HARMLESS_OPTIONS = frozenset(
    {
        "family",
        "proto",
        "flags",
        "reuse_address",
        "reuse_port",
        "keep_alive",
        "server_hostname",
        "ssl_handshake_timeout",
        "ssl_shutdown_timeout",
        "happy_eyeballs_delay",
        "interleave",
        "all_errors",
    }
)


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value is not None and name not in HARMLESS_OPTIONS:
            raise NotImplementedError(f"a simulated network has no {name}: leave it out")
