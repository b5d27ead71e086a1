"""`barnabas.kernel.timers`."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.timers import EXPIRIES_PER_TURN, Timer, Timers
from tests.unit.kernel.virtual_loop import HandDrivenLoop, run_virtually

ADD = st.tuples(st.just("add"), st.integers(1, 40))
CANCEL = st.tuples(st.just("cancel"), st.integers(0, 200))
ADVANCE = st.tuples(st.just("advance"), st.integers(0, 25))


@settings(deadline=None)
@given(st.lists(st.one_of(ADD, ADD, CANCEL, ADVANCE), max_size=120))
def test_agrees_with_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    now_ms = 0
    fired: list[int] = []
    expected: list[int] = []
    waiting: dict[int, int] = {}  # number -> deadline
    made: list[Timer] = []
    for step, amount in steps:
        if step == "add":
            number = len(made)
            made.append(timers.call_after(amount, fired.append, number))
            waiting[number] = now_ms + amount
        elif step == "cancel" and made:
            number = amount % len(made)
            assert made[number].cancel() is (number in waiting)
            waiting.pop(number, None)
        elif step == "advance":
            now_ms += amount
            loop.advance_to(now_ms / 1000)
            due = sorted((deadline, number) for number, deadline in waiting.items() if deadline <= now_ms)
            expected += [number for _, number in due]
            for _, number in due:
                del waiting[number]
        assert fired == expected
        assert len(timers) == len(waiting)
        assert loop.pending_timers <= 1
        assert [timer.active for timer in made] == [number in waiting for number in range(len(made))]


@settings(deadline=None)
@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=30), st.floats(0, 1e6))
def test_fires_never_early_and_at_most_a_tick_late(delays: list[float], start: float) -> None:
    loop = HandDrivenLoop()
    loop.now = start
    timers = Timers(loop.as_loop)
    late: list[float] = []
    for delay in delays:
        deadline = start + delay
        timers.call_at(deadline, lambda deadline=deadline: late.append(loop.now - deadline))
    for _ in range(600):
        loop.advance(0.0001)
    assert len(late) == len(delays)
    assert min(late) > -2e-6  # the rounding of floats is forgiven
    assert max(late) < 0.0012


def test_keeps_one_timer_of_the_loop_for_the_earliest() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[str] = []
    timers.call_after(500, fired.append, "late")
    early = timers.call_after(20, fired.append, "early")
    assert loop.pending_timers == 1
    assert early.cancel()
    loop.advance(0.1)
    assert fired == []
    assert loop.pending_timers == 1
    loop.advance(0.4)
    assert fired == ["late"]
    assert loop.pending_timers == 0


def test_timers_of_one_tick_fire_in_the_order_they_were_made() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[int] = []
    for number in range(50):
        timers.call_at(0.010, fired.append, number)
    loop.advance(0.010)
    assert fired == list(range(50))


def test_a_mass_expiry_takes_several_turns_and_the_rest_can_still_be_cancelled() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[int] = []
    made = [timers.call_after(5, fired.append, number) for number in range(3 * EXPIRIES_PER_TURN)]
    loop.now = 0.005
    assert loop.take_turn()
    assert len(fired) == EXPIRIES_PER_TURN
    assert made[-1].cancel()
    loop.advance()
    assert fired == list(range(3 * EXPIRIES_PER_TURN - 1))
    assert loop.turns == 3
    assert len(timers) == 0


def test_a_call_that_cancels_another_due_one_is_obeyed() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[str] = []
    second: list[Timer] = []
    timers.call_after(5, lambda: second.pop().cancel())
    second.append(timers.call_after(5, fired.append, "second"))
    loop.advance(0.005)
    assert fired == []
    assert len(timers) == 0


def test_a_timer_made_by_a_call_waits_for_a_later_tick() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    calls: list[float] = []

    def again() -> None:
        calls.append(loop.now)
        timers.call_after(0, again)

    timers.call_after(0, again)
    loop.advance()
    assert len(calls) == 1
    loop.advance(0.001)
    assert len(calls) == 2


def test_a_call_that_raises_is_reported_and_harms_no_other() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[str] = []
    timers.call_after(5, fired.pop)
    timers.call_after(5, fired.append, "after the failure")
    timers.call_after(6, fired.append, "later")
    loop.advance(0.010)
    assert fired == ["after the failure", "later"]
    assert [type(context["exception"]) for context in loop.reported] == [IndexError]


def test_the_end_of_the_process_in_a_call_loses_no_other_timer() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[str] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    timers.call_after(5, interrupted)
    timers.call_after(5, fired.append, "after the interrupt")
    with pytest.raises(KeyboardInterrupt):
        loop.advance(0.005)
    loop.advance()
    assert fired == ["after the interrupt"]


def test_cancelled_timers_leave_no_memory_behind() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)

    def churn() -> None:
        for number in range(20_000):
            # An hour away, each in a tick of its own: nothing surfaces to be thrown away.
            timers.call_after(3_600_000 + number, print).cancel()

    churn()
    gc.collect()
    tracemalloc.start()
    churn()
    gc.collect()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 50_000


def test_close_cancels_all_and_takes_no_more() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[str] = []
    timers.call_after(5, timers.close)
    due = timers.call_after(5, fired.append, "due")
    later = timers.call_after(50, fired.append, "later")
    loop.advance(1)
    assert fired == []
    assert not due.active
    assert not later.active
    assert (len(timers), loop.pending_timers) == (0, 0)
    with pytest.raises(RuntimeError, match="closed"):
        timers.call_after(1, print)


def test_sleep_takes_the_time_and_leaves_nothing_when_it_is_cancelled() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        started = loop.time()
        await timers.sleep(250)
        assert loop.time() - started == pytest.approx(0.250)
        sleeper = loop.create_task(timers.sleep(1000))
        await timers.sleep(1)
        sleeper.cancel()
        await asyncio.wait([sleeper])
        assert len(timers) == 0

    run_virtually(scenario())


def test_who_is_cancelled_in_the_turn_in_which_he_would_awake_breaks_nothing() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, complaint: complaints.append(complaint))
        timers = Timers(loop)
        sleeper: asyncio.Task[None] | None = None

        def cancel() -> None:
            if sleeper is not None:
                sleeper.cancel()

        timers.call_after(10, cancel)
        sleeper = loop.create_task(timers.sleep(10))
        await asyncio.wait([sleeper])
        assert (sleeper.cancelled(), complaints) == (True, [])

    run_virtually(scenario())


def test_fires_on_real_loops_in_order_and_not_early(run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        all_fired = loop.create_future()
        fired: list[tuple[float, float]] = []

        def fire(deadline: float) -> None:
            fired.append((deadline, loop.time()))
            if len(fired) == 3:
                all_fired.set_result(None)

        started = loop.time()
        for delay in (0.0305, 0.0102, 0.0007):
            timers.call_at(started + delay, fire, started + delay)
        await all_fired
        assert [deadline for deadline, _ in fired] == sorted(deadline for deadline, _ in fired)
        # uvloop's clock has milliseconds.
        assert all(at >= deadline - 0.001 for deadline, at in fired)

    run(scenario())
