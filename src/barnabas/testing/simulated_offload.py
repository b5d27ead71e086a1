"""Work off the loop, in a simulation: `kernel.host.Offload` without threads.

A piece of work waits for a free worker of its kind and lane and for the piece before it there with the same `order`;
then it *begins* at a seeded moment: the function runs, at once and whole, as far as programs can see. It *ends*, and
its future is done, after the time that its file operations take (a sync, on a slow disk, long). A sync in it covers
what had changed when it began, and is certain only at the end: see `simulated_disk`, "Syncs under way".

When the process dies, work that has not begun has by seed not happened, happened, or happened for some file operations
and no more; work of one order stays a prefix. What has begun has happened (unless power fails too: then its syncs are
by seed). Computations (kind CPU) just vanish. While the process is paused nothing begins or ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from barnabas.kernel.host import OffloadFullError, OffloadKind, Result
from barnabas.testing.simulated_files import WorkUnderWay
from barnabas.testing.simulated_loop import ProcessEndedError
from barnabas.testing.trace import Occurrence

if TYPE_CHECKING:
    from barnabas.testing.profile import OffloadProfile
    from barnabas.testing.simulated_disk import SimulatedDisk
    from barnabas.testing.simulated_files import SimulatedFiles
    from barnabas.testing.simulated_loop import SimulatedLoop
    from barnabas.testing.world import World

_Lane = tuple[OffloadKind, str | None]

CALLS_ALLOWED = (0, 0, 0, 1, 2, 3, 5, 8, 20, 1_000_000)
"""How many file operations unfinished work still makes after its process died, one drawn."""


class _Work:
    __slots__ = ("arguments", "error", "function", "future", "kind", "lane", "number", "order", "result", "under_way")

    def __init__(
        self,
        number: int,
        kind: OffloadKind,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        order: Hashable | None,
        lane: str | None,
        future: asyncio.Future[Any],
    ) -> None:
        self.number = number
        self.kind = kind
        self.function = function
        self.arguments = arguments
        self.order = order
        self.lane = kind, lane
        self.future = future
        self.under_way = WorkUnderWay()
        self.result: Any = None
        self.error: BaseException | None = None


class SimulatedOffload:
    """One process's `Offload`."""

    def __init__(
        self,
        world: World,
        purpose: str,
        loop: SimulatedLoop,
        files: SimulatedFiles,
        disk: SimulatedDisk,
        profile: OffloadProfile,
    ) -> None:
        self._world = world
        self._label = world.trace.label(f"{loop.name} offload")
        self._random = world.random(f"offload/{purpose}")
        self._loop = loop
        self._files = files
        self._disk = disk
        self._profile = profile
        self._ready: dict[_Lane, deque[_Work]] = {}
        self._waiting: dict[_Lane, dict[Hashable, deque[_Work]]] = {}
        self._unfinished: Counter[_Lane] = Counter()
        self._busy: Counter[_Lane] = Counter()
        self._dispatched: dict[_Work, None] = {}
        self._begun: dict[_Work, None] = {}
        self._held: list[tuple[Callable[[_Work], None], _Work]] = []
        self._numbers = 0
        self._paused = False
        self._ended = False

    def __call__(
        self,
        kind: OffloadKind,
        function: Callable[..., Result],
        /,
        *arguments: Any,
        order: Hashable | None = None,
        lane: str | None = None,
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self._loop.create_future()
        if self._ended:
            return future
        key = kind, lane
        if self._unfinished[key] >= self._profile.unfinished_max:
            raise OffloadFullError(
                f"{self._unfinished[key]} pieces of {kind.value} work are unfinished: try again when some are done"
            )
        self._numbers += 1
        work = _Work(self._numbers, kind, function, arguments, order, lane, future)
        self._unfinished[key] += 1
        waiting = self._waiting.setdefault(key, {})
        if order is not None and order in waiting:
            waiting[order].append(work)
        else:
            if order is not None:
                waiting[order] = deque()
            self._ready.setdefault(key, deque()).append(work)
            self._dispatch(key)
        return future

    def _dispatch(self, lane: _Lane) -> None:
        ready = self._ready.setdefault(lane, deque())
        while ready and self._busy[lane] < self._profile.workers:
            work = ready.popleft()
            self._busy[lane] += 1
            self._dispatched[work] = None
            self._world.schedule(
                self._world.now + self._random.uniform(*self._profile.dispatch_seconds), self._begin, work
            )

    def _begin(self, work: _Work) -> None:
        if self._ended:
            return
        if self._paused:
            self._held.append((self._begin, work))
            return
        del self._dispatched[work]
        if work.future.cancelled():
            self._done(work)
            return
        self._begun[work] = None
        self._world.trace.add(self._world.now, Occurrence.OFFLOAD_STARTED, self._label, work.number)
        self._run(work)
        seconds = work.under_way.seconds + self._random.uniform(*self._profile.compute_seconds)
        self._world.schedule(self._world.now + seconds, self._end, work)

    def _run(self, work: _Work) -> None:
        outer, self._files.work = self._files.work, work.under_way
        try:
            work.result = work.function(*work.arguments)
        except BaseException as error:  # noqa: BLE001 - the future's to tell
            work.error = error
        finally:
            self._files.work = outer

    def _end(self, work: _Work) -> None:
        if self._ended:
            return
        if self._paused:
            self._held.append((self._end, work))
            return
        del self._begun[work]
        self._world.trace.add(self._world.now, Occurrence.OFFLOAD_FINISHED, self._label, work.number)
        self._finish_syncs(work)
        self._done(work)
        self._loop.call_soon(_tell, work)

    def _done(self, work: _Work) -> None:
        self._busy[work.lane] -= 1
        self._unfinished[work.lane] -= 1
        if work.order is not None:
            self._next_of(work.lane, work.order)
        self._dispatch(work.lane)

    def _finish_syncs(self, work: _Work) -> None:
        for under_way in work.under_way.syncs:
            self._disk.finish_sync(under_way)

    def _next_of(self, lane: _Lane, order: Hashable) -> None:
        waiting = self._waiting[lane][order]
        if waiting:
            self._ready[lane].append(waiting.popleft())
        else:
            del self._waiting[lane][order]

    def pause(self) -> None:
        """Nothing begins or ends any more."""
        self._paused = True

    def resume(self) -> None:
        """What should have begun or ended meanwhile does so now."""
        self._paused = False
        held, self._held = self._held, []
        for action, work in held:
            self._world.schedule(self._world.now, action, work)

    def cut_off(self) -> None:
        """The process has ended: nothing is taken, begun or told any more."""
        self._ended = True

    def abandon(self, *, power_failed: bool) -> None:
        """Decides what of the unfinished work has happened, after everything of the process has been cut off."""
        stopped: dict[tuple[_Lane, Hashable], None] = {}
        for work in self._begun:
            if not power_failed:
                self._finish_syncs(work)
            elif work.order is not None and work.under_way.syncs:
                stopped[work.lane, work.order] = None  # its syncs had not returned, so the next had not begun
        unfinished = [*self._dispatched, *(work for ready in self._ready.values() for work in ready)]
        unfinished += [work for orders in self._waiting.values() for waiting in orders.values() for work in waiting]
        for work in unfinished:
            if work.kind is OffloadKind.CPU or work.future.cancelled() or (work.lane, work.order) in stopped:
                continue
            calls = self._random.choice(CALLS_ALLOWED)
            if calls:
                self._files.allow_calls(calls)
                self._run(work)
                self._files.allow_calls(0)
                if not power_failed:
                    self._finish_syncs(work)
            waits_for_sync = power_failed and bool(work.under_way.syncs)
            if work.order is not None and (not calls or waits_for_sync or isinstance(work.error, ProcessEndedError)):
                stopped[work.lane, work.order] = None
        self._dispatched.clear()
        self._begun.clear()
        self._waiting.clear()
        self._ready.clear()
        self._held.clear()


def _tell(work: _Work) -> None:
    if not work.future.done():
        if isinstance(work.error, StopIteration):
            # A future refuses it, since it would end the awaiting coroutine silently.
            work.future.set_exception(RuntimeError(f"{work.function!r} raised StopIteration"))
        elif work.error is not None:
            work.future.set_exception(work.error)
        else:
            work.future.set_result(work.result)
