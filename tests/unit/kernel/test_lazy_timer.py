"""`barnabas.kernel.lazy_timer`."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.lazy_timer import LOOK_SECONDS_MAX, LazyTimer
from barnabas.kernel.timers import Timer, Timers
from tests.unit.kernel.virtual_loop import HandDrivenLoop

SET = st.tuples(st.just("set"), st.integers(1, 40))
CLEAR = st.tuples(st.just("clear"), st.just(0))
ADVANCE = st.tuples(st.just("advance"), st.integers(0, 25))


@settings(deadline=None)
@given(st.lists(st.one_of(SET, SET, CLEAR, ADVANCE), max_size=60))
def test_calls_back_at_the_deadline_that_was_set_last(steps: list[tuple[str, int]]) -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    now_ms = 0
    fired: list[int] = []
    expected: list[int] = []
    deadline_ms: int | None = None
    timer = LazyTimer(timers, lambda: fired.append(now_ms))
    for what, value in steps:
        if what == "set":
            deadline_ms = now_ms + value
            timer.set(loop.now + value / 1000)
        elif what == "clear":
            deadline_ms = None
            timer.clear()
        else:
            for _ in range(value):
                now_ms += 1
                loop.advance(0.001)
                if deadline_ms is not None and deadline_ms <= now_ms:
                    expected.append(now_ms)
                    deadline_ms = None
        assert fired == expected
        assert len(timers) <= 1
    timer.close()
    assert not len(timers)


def test_moves_no_timer_while_the_deadline_only_grows() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    made: list[float] = []
    call_at = timers.call_at

    def counted(deadline: float, *more: Any) -> Timer:
        made.append(deadline)
        return call_at(deadline, *more)

    timers.call_at = counted  # type: ignore[method-assign, assignment]
    timer = LazyTimer(timers, lambda: None)
    for _ in range(100):
        timer.set(loop.now + 0.5)
        loop.advance(0.004)
        timer.clear()
    assert len(made) == 1


def test_nothing_stands_for_days_where_nobody_waits_any_more() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    idle: list[float] = []
    timer = LazyTimer(timers, lambda: None, lambda: idle.append(loop.now))
    begin = loop.now
    timer.set(begin + 2_147_483.647)  # the longest time-out that a request can have
    timer.clear()
    loop.advance(LOOK_SECONDS_MAX + 1)
    assert idle
    assert not len(timers)


def test_a_far_deadline_is_kept_to_the_tick() -> None:
    loop = HandDrivenLoop()
    timers = Timers(loop.as_loop)
    fired: list[float] = []
    timer = LazyTimer(timers, lambda: fired.append(loop.now))
    deadline = loop.now + 2.5 * LOOK_SECONDS_MAX
    timer.set(deadline)
    for _ in range(3):
        loop.advance(LOOK_SECONDS_MAX * 0.8)
        assert not fired
    loop.advance(deadline - loop.now - 0.002)
    assert not fired
    loop.advance(0.003)
    assert len(fired) == 1
