"""The real machine as a `Host`, and the entry that runs a program on it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from barnabas.kernel.host import Host
from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_offload import DEFAULT_LIMITS, OffloadLimits, RealOffload
from barnabas.kernel.real_spawn import RealSpawn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from barnabas.kernel.host import OffloadKind

Result = TypeVar("Result")

DRAIN_SECONDS = 10.0
CHILD_STOP_SECONDS = 15.0


class RealClock:
    """The wall clock of the operating system."""

    __slots__ = ()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    stopwatch = staticmethod(time.perf_counter)
    """Itself, since small requests ask it several times."""


@dataclass(frozen=True, slots=True)
class RealHost(Host):
    """The `Host` of the real machine; who builds it closes it, or uses `async with`."""

    offload: RealOffload
    spawn: RealSpawn

    async def close(self, drain_seconds: float = DRAIN_SECONDS) -> bool:
        """Stops child processes, then waits for work off the loop, both in bounded time; False when work was lost."""
        await self.spawn.close(CHILD_STOP_SECONDS)
        return await self.offload.close(drain_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def real_host(
    name: str,
    loop: asyncio.AbstractEventLoop,
    *,
    offload_limits: Mapping[OffloadKind, OffloadLimits] = DEFAULT_LIMITS,
) -> RealHost:
    """The host of this machine on the given loop, asyncio's or uvloop's. Threads start when they are first needed."""
    return RealHost(
        name=name,
        loop=loop,
        clock=RealClock(),
        random=random.Random(os.urandom(16)),
        entropy=os.urandom,
        files=RealFiles(),
        offload=RealOffload(name, loop, offload_limits),
        spawn=RealSpawn(loop),
        open_files_max=open_files_limit(),
    )


def run(
    main: Callable[[RealHost], Coroutine[Any, Any, Result]],
    *,
    name: str = "barnabas",
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    offload_limits: Mapping[OffloadKind, OffloadLimits] = DEFAULT_LIMITS,
) -> Result:
    """Runs `main(host)` to its end on a fresh loop, closes the host and the loop, and returns the result.

    The loop is uvloop's where that is installed, asyncio's otherwise, or what `loop_factory` makes. The first Ctrl-C
    cancels `main`, unless it took the signal itself (`stop_on_signals`).
    """

    async def on_host() -> Result:
        async with real_host(name, asyncio.get_running_loop(), offload_limits=offload_limits) as host:
            return await main(host)

    with asyncio.Runner(loop_factory=loop_factory or fastest_loop_factory()) as runner:
        return runner.run(on_host())


def fastest_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes uvloop's loop where that is installed, asyncio's otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def stop_on_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that SIGTERM or SIGINT sets, so that a program can stop in order; call it on the main thread."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def open_files_limit() -> int:
    """How many files this process may have open."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if 0 <= soft < 2**31 else 2**31 - 1


def raise_open_files_limit() -> int:
    """Raises the process's soft limit of open files to the hard one, where the system lets it; returns the limit.

    A broker holds a descriptor per connection and several per partition; the usual soft limit of 1,024 is soon reached.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS calls its hard limit infinite and then refuses that
            return soft
    return hard


def keep_freed_memory(bytes_max: int) -> None:
    """Has the process keep about so many bytes of memory that it frees, up to 64 MiB, instead of giving them back.

    What glibc gives back to the system comes page by page, zeroed, when it is needed again: for a buffer of 1 MB that
    takes longer than to fill it and send it (measured: 0.17 ms with this, 4 ms without, for two of them, on a busy
    virtual machine). glibc takes the largest mapping that was ever freed for the size from which on memory is mapped
    and unmapped, and keeps up to twice as much free at the end of its heap; so one is made and freed, untouched. Other
    C libraries take no notice.
    """
    bytes(bytes_max // 2)
