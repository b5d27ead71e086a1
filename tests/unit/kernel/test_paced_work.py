"""Work that may not go as fast as it can."""

from __future__ import annotations

from barnabas.kernel.paced_work import PAUSE_SECONDS_MIN, PacedWork, finish


class Time:
    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_takes_as_long_as_its_pieces_have_to_and_pauses_seldom() -> None:
    time = Time()

    def work() -> PacedWork[str]:
        for _ in range(1000):
            time.now += 0.001
            yield 0.01
        return "done"

    assert finish(work(), lambda: time.now, time.pause) == "done"
    assert 9.8 <= time.now - 1000.0 <= 10.2
    assert len(time.pauses) <= 10 / PAUSE_SECONDS_MIN
    assert min(time.pauses) >= PAUSE_SECONDS_MIN


def test_makes_up_for_no_time_that_was_lost_and_pauses_for_nothing() -> None:
    time = Time()

    def work() -> PacedWork[None]:
        yield 0.0
        time.now += 60
        yield 0.5
        yield 0.5

    finish(work(), lambda: time.now, time.pause)
    assert time.pauses == [0.5, 0.5]
