"""Work off the loop: one bounded pool of threads per kind and lane, results handed back to the loop in batches."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.kernel.facts import fact
from barnabas.kernel.host import HostClosedError, OffloadFullError, OffloadKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

Result = TypeVar("Result")

JOIN_SECONDS = 1.0


@fact
class OffloadLimits:
    """Bounds of one kind, in each lane: threads, and pieces of work that are accepted and not finished."""

    workers: int
    unfinished_max: int

    def __post_init__(self) -> None:
        if self.workers < 1 or self.unfinished_max < 1:
            raise ValueError(f"an offload pool needs at least one worker and room for one piece of work, not {self}")


DEFAULT_LIMITS: Mapping[OffloadKind, OffloadLimits] = {
    # A sync waits for the device: several at once let the file system join them.
    OffloadKind.SYNC: OffloadLimits(workers=8, unfinished_max=8192),
    OffloadKind.DISK: OffloadLimits(workers=8, unfinished_max=8192),
    OffloadKind.REMOTE: OffloadLimits(workers=10, unfinished_max=1024),
    OffloadKind.CPU: OffloadLimits(workers=max(1, os.cpu_count() or 1), unfinished_max=1024),
    OffloadKind.WRITE: OffloadLimits(workers=1, unfinished_max=1024),  # one at a time, of each log directory
    OffloadKind.PROBE: OffloadLimits(workers=64, unfinished_max=1024),  # threads only for those that wait
}


@dataclass(slots=True, eq=False)
class _Work:
    """One call on its way through a pool; `result` and `error` are set by the worker."""

    pool: _Pool
    future: asyncio.Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    order: Hashable | None
    result: Any = None
    error: BaseException | None = None


class RealOffload:
    """The `Offload` port on threads.

    A burst of completions costs one wake-up of the loop, whatever the number of kinds and threads they come from.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        limits: Mapping[OffloadKind, OffloadLimits] = DEFAULT_LIMITS,
    ) -> None:
        """`limits` has the kinds to bound unlike `DEFAULT_LIMITS`; `name` becomes part of the threads' names."""
        self._loop = loop
        self._lock = threading.Lock()
        self._finished: list[_Work] = []
        self._wake_requested = False
        # Of the loop alone; insertion order keeps what close() cancels deterministic.
        self._unfinished: dict[_Work, None] = {}
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        self._name = name
        self._limits = {**DEFAULT_LIMITS, **limits}
        self._pools: dict[tuple[OffloadKind, str | None], _Pool] = {}

    def __call__(
        self,
        kind: OffloadKind,
        function: Callable[..., Result],
        /,
        *arguments: Any,
        order: Hashable | None = None,
        lane: str | None = None,
    ) -> asyncio.Future[Result]:
        if self._closed:
            raise HostClosedError("the host is closing: no new work off the loop")
        pool = self._pools.get((kind, lane))
        if pool is None:
            name = f"{self._name}-{kind.value}" if lane is None else f"{self._name}-{kind.value}-{lane}"
            pool = self._pools[kind, lane] = _Pool(name, self._limits[kind], self._finish)
        if pool.unfinished >= pool.limits.unfinished_max:
            raise OffloadFullError(
                f"{pool.limits.unfinished_max} pieces of {kind.value} work are unfinished: try again when some are done"
            )
        future: asyncio.Future[Result] = self._loop.create_future()
        work = _Work(pool, future, function, arguments, order)
        self._unfinished[work] = None
        pool.submit(work)
        return future

    def unfinished(self, kind: OffloadKind) -> int:
        """Pieces of work of the kind that are accepted and not finished, in all lanes; for gauges."""
        return sum(pool.unfinished for (pool_kind, _), pool in self._pools.items() if pool_kind is kind)

    async def close(self, drain_seconds: float) -> bool:
        """Takes no new work, waits `drain_seconds` for accepted work, cancels the rest, and ends the threads.

        False when work was cancelled or abandoned while it ran (a thread stuck in a call to the disk cannot be stopped;
        it does not keep the process from ending).
        """
        self._closed = True
        if self._unfinished:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=drain_seconds)
        abandoned = list(self._unfinished)
        for work in abandoned:
            work.future.cancel()
        for pool in self._pools.values():
            pool.stop(0.0 if abandoned else JOIN_SECONDS)
        return not abandoned

    def abandon(self, join_seconds: float) -> bool:
        """As `close`, for a loop that has stopped for good: work that no thread has begun is dropped at once.

        False when a thread was still at work after `join_seconds`: whatever it uses may not be closed then.
        """
        self._closed = True
        for work in list(self._unfinished):
            work.future.cancel()
        stopped = [pool.stop(join_seconds) for pool in self._pools.values()]
        return all(stopped)

    def _finish(self, work: _Work) -> None:
        """Called by the workers."""
        with self._lock:
            self._finished.append(work)
            if self._wake_requested:
                return
            self._wake_requested = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop was closed without closing the host: nobody is left to tell
            return

    def _deliver(self) -> None:
        """Hands every finished result to its future, on the loop."""
        with self._lock:
            finished, self._finished = self._finished, []
            self._wake_requested = False
        for work in finished:
            work.pool.unfinished -= 1
            del self._unfinished[work]
            future = work.future
            if future.done():
                continue
            if work.error is None:
                future.set_result(work.result)
            elif isinstance(work.error, StopIteration):
                # A future refuses it, since it would end the awaiting coroutine silently.
                future.set_exception(RuntimeError(f"{work.function!r} raised StopIteration"))
            else:
                future.set_exception(work.error)
        if self._drained is not None and not self._unfinished and not self._drained.done():
            self._drained.set_result(None)


class _Pool:
    """The threads of one kind in one lane, started as they are needed.

    Work of one `order` key is handed to the threads one at a time; the rest of the key waits in a line of its own, so
    that it occupies no thread.
    """

    def __init__(self, name: str, limits: OffloadLimits, finish: Callable[[_Work], None]) -> None:
        self.limits = limits
        self.unfinished = 0  # of the loop alone
        self._name = name
        self._finish = finish
        self._runnable: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[_Work]] = {}

    def submit(self, work: _Work) -> None:
        """Called on the loop."""
        self.unfinished += 1
        if len(self._threads) < min(self.unfinished, self.limits.workers):
            self._start_thread()
        if work.order is not None:
            with self._lock:
                line = self._waiting.get(work.order)
                if line is not None:
                    line.append(work)
                    return
                self._waiting[work.order] = deque()
        self._runnable.put(work)

    def stop(self, join_seconds: float) -> bool:
        """Lets the threads end after the work that is queued (which they skip when it is cancelled); whether all have
        ended.
        """
        for _thread in self._threads:
            self._runnable.put(None)
        for thread in self._threads:
            thread.join(join_seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _start_thread(self) -> None:
        # A daemon: a thread that is stuck in the disk must not keep the process from ending.
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (work := self._runnable.get()) is not None:
            if not work.future.cancelled():
                try:
                    work.result = work.function(*work.arguments)
                except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever awaits the future
                    work.error = error
            self._release(work.order)
            self._finish(work)
            del work  # the results must not live until the next piece of work comes

    def _release(self, order: Hashable | None) -> None:
        """Makes the next work of the key runnable."""
        if order is None:
            return
        with self._lock:
            line = self._waiting[order]
            if not line:
                del self._waiting[order]
                return
            work = line.popleft()
        self._runnable.put(work)
