"""`barnabas.kernel.real_offload`: real threads, on both loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from barnabas.kernel.host import HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.real_offload import OffloadLimits, RealOffload
from barnabas.kernel.turns import yield_to_loop

Run = Callable[[Coroutine[Any, Any, Any]], Any]
SYNC, DISK, CPU = OffloadKind.SYNC, OffloadKind.DISK, OffloadKind.CPU
WAIT_SECONDS = 30.0


def offload_of(workers: int = 4, unfinished_max: int = 1000) -> RealOffload:
    limits = dict.fromkeys(OffloadKind, OffloadLimits(workers, unfinished_max))
    return RealOffload("test", asyncio.get_running_loop(), limits)


def test_runs_off_the_loop_and_gives_back_the_result_on_it(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of()
        on: list[int] = []
        future = offload(CPU, lambda left, right: (threading.get_ident(), left + right), 2, 3)
        future.add_done_callback(lambda _: on.append(threading.get_ident()))
        ran_on, result = await future
        assert result == 5
        assert ran_on != threading.get_ident()
        assert on == [threading.get_ident()]
        assert await offload.close(10)

    run(scenario())


def test_what_the_work_raises_is_raised_to_whoever_awaits(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of()

        def fail(error: BaseException) -> None:
            raise error

        for error in (OSError(28, "disk full"), SystemExit(3), KeyboardInterrupt()):
            future = offload(DISK, fail, error)
            await asyncio.wait([future])
            assert future.exception() is error
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await offload(DISK, fail, StopIteration())
        assert await offload(DISK, abs, -1) == 1
        assert await offload.close(10)

    run(scenario())


def test_work_of_one_order_runs_one_at_a_time_in_order_and_other_work_beside_it(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=4)
        gate = threading.Event()
        done: dict[str, list[int]] = {"a": [], "b": []}
        at_once: dict[str, int] = {"a": 0, "b": 0}
        most: dict[str, int] = {"a": 0, "b": 0}

        def work(key: str, number: int) -> None:
            at_once[key] += 1
            most[key] = max(most[key], at_once[key])
            if (key, number) == ("a", 0):
                gate.wait(WAIT_SECONDS)
            done[key].append(number)
            at_once[key] -= 1

        of_a = [offload(SYNC, work, "a", number, order="a") for number in range(100)]
        of_b = [offload(SYNC, work, "b", number, order="b") for number in range(100)]
        free = [offload(SYNC, abs, -number) for number in range(100)]
        await asyncio.gather(*of_b, *free)
        assert done["a"] == []  # it waits, and occupies one thread only
        gate.set()
        await asyncio.gather(*of_a)
        assert done == {"a": list(range(100)), "b": list(range(100))}
        assert most == {"a": 1, "b": 1}
        assert await offload.close(10)

    run(scenario())


def test_a_full_queue_pushes_back_until_work_is_finished(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=1, unfinished_max=3)
        gate = threading.Event()
        futures = [offload(DISK, gate.wait, WAIT_SECONDS, order="file") for _ in range(3)]
        with pytest.raises(OffloadFullError, match="3 pieces of disk work are unfinished"):
            offload(DISK, abs, 1)
        assert await offload(CPU, abs, -1) == 1  # another kind has room of its own
        assert (offload.unfinished(DISK), offload.unfinished(CPU)) == (3, 0)
        gate.set()
        await asyncio.gather(*futures)
        assert await offload(DISK, abs, -1) == 1
        assert await offload.close(10)

    run(scenario())


class CountingLoop:
    """A loop that counts how often a thread wakes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.create_future = loop.create_future
        self.wakes = 0
        self._loop = loop

    def call_soon_threadsafe(self, callback: Callable[..., object]) -> None:
        self.wakes += 1
        self._loop.call_soon_threadsafe(callback)


def test_what_hangs_in_one_lane_lets_none_wait_in_another(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=2, unfinished_max=3)
        gate = threading.Event()
        hanging = [offload(SYNC, gate.wait, WAIT_SECONDS, lane="hangs") for _ in range(3)]
        with pytest.raises(OffloadFullError):
            offload(SYNC, gate.wait, lane="hangs")
        assert await asyncio.wait_for(offload(SYNC, abs, -1, order="hangs", lane="works"), WAIT_SECONDS) == 1
        assert await asyncio.wait_for(offload(SYNC, abs, -2, order="hangs"), WAIT_SECONDS) == 2
        assert offload.unfinished(SYNC) == 3
        gate.set()
        assert all(await asyncio.gather(*hanging))
        assert offload.unfinished(SYNC) == 0
        assert await offload.close(10)

    run(scenario())


def test_a_burst_of_completions_wakes_the_loop_once(run: Run) -> None:
    async def scenario() -> None:
        loop = CountingLoop(asyncio.get_running_loop())
        offload = RealOffload("test", cast("asyncio.AbstractEventLoop", loop))
        futures = [offload(kind, abs, -number) for number in range(200) for kind in OffloadKind]
        while len(offload._finished) < len(futures):
            pass  # the loop is kept from running until every result is there
        assert [await future for future in futures] == [number for number in range(200) for _ in OffloadKind]
        assert loop.wakes == 1
        assert await offload.close(10)

    run(scenario())


def test_cancelled_work_that_has_not_begun_does_not_run(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=1)
        gate = threading.Event()
        ran: list[str] = []
        first = offload(DISK, gate.wait, WAIT_SECONDS)
        cancelled = [offload(DISK, ran.append, "cancelled"), offload(DISK, ran.append, "cancelled", order="file")]
        last = offload(DISK, ran.append, "last", order="file")
        for future in cancelled:
            future.cancel()
        gate.set()
        await asyncio.gather(first, last)
        assert ran == ["last"]
        assert offload.unfinished(DISK) == 0
        assert await offload.close(10)

    run(scenario())


def test_cancelling_work_that_runs_drops_its_result_alone(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=1)
        begun, gate = threading.Event(), threading.Event()
        ended: list[str] = []

        def work() -> None:
            begun.set()
            gate.wait(WAIT_SECONDS)
            ended.append("work")

        future = offload(DISK, work)
        begun.wait(WAIT_SECONDS)
        future.cancel()
        gate.set()
        assert await offload(DISK, abs, -1) == 1
        assert ended == ["work"]
        assert await offload.close(10)

    run(scenario())


def test_close_lets_accepted_work_end_and_takes_no_more(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=2)
        done: list[int] = []
        futures = [offload(SYNC, done.append, number, order="file") for number in range(500)]
        closing = asyncio.ensure_future(offload.close(30))
        await asyncio.sleep(0)
        with pytest.raises(HostClosedError):
            offload(SYNC, abs, 1)
        assert await closing
        assert done == list(range(500))
        assert all(future.done() and not future.cancelled() for future in futures)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-")]

    run(scenario())


def test_close_abandons_stuck_work_within_its_bound_and_cancels_the_rest(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=1)
        begun, gate = threading.Event(), threading.Event()
        ran: list[str] = []

        def stuck() -> None:
            begun.set()
            gate.wait(WAIT_SECONDS)

        futures = [offload(DISK, stuck), offload(DISK, ran.append, "queued"), offload(DISK, ran.append, "x", order="x")]
        begun.wait(WAIT_SECONDS)
        assert not await offload.close(0.05)
        assert all(future.cancelled() for future in futures)
        gate.set()
        for thread in threading.enumerate():
            if thread.name.startswith("test-"):
                thread.join(WAIT_SECONDS)
        assert ran == []

    run(scenario())


def test_results_are_not_kept_after_they_were_given_back(run: Run) -> None:
    class Large:
        """Something that a weak reference can be made to."""

    async def scenario() -> None:
        offload = offload_of(workers=1)
        argument = Large()
        result = await offload(CPU, lambda given: (given, Large())[1], argument)
        references = [weakref.ref(argument), weakref.ref(result)]
        del argument, result
        # The thread lets go while it waits for more; nothing else passes through its hands.
        while any(reference() is not None for reference in references):
            gc.collect()
            await asyncio.sleep(0)
        assert await offload.close(10)

    run(scenario())


def test_threads_start_as_they_are_needed_and_no_more_than_allowed(run: Run) -> None:
    async def scenario() -> None:
        offload = offload_of(workers=3)
        await offload(CPU, abs, 1)
        await offload(CPU, abs, 1)

        def names() -> list[str]:
            return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("test-cpu"))

        assert names() == ["test-cpu-0"]
        gate = threading.Event()
        futures = [offload(CPU, gate.wait, WAIT_SECONDS) for _ in range(10)]
        assert names() == ["test-cpu-0", "test-cpu-1", "test-cpu-2"]
        gate.set()
        await asyncio.gather(*futures)
        assert await offload.close(10)

    run(scenario())


@pytest.mark.parametrize("limits", [(0, 1), (1, 0)])
def test_refuses_limits_that_let_nothing_run(limits: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        OffloadLimits(*limits)


def test_it_may_be_closed_twice_at_once(run: Run) -> None:
    async def scenario() -> None:
        offload = RealOffload("test", asyncio.get_running_loop())
        gate = threading.Event()
        offload(OffloadKind.CPU, gate.wait)
        closings = [asyncio.ensure_future(offload.close(50)) for _ in range(2)]
        await yield_to_loop()
        gate.set()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*closings) == [True, True]

    run(scenario())
