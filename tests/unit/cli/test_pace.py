"""A rate of records: kept evenly, and without bursts."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.cli.pace import Pace
from barnabas.kernel.real_host import fastest_loop_factory


def test_a_wait_may_be_longer_than_timers_take() -> None:
    async def wait() -> None:
        pace = Pace(1e-300, asyncio.get_running_loop().time)
        await pace.wait(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pace.wait(1)

    with asyncio.Runner(loop_factory=fastest_loop_factory()) as runner:
        runner.run(wait())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_records_come_at_the_rate_from_the_first_on() -> None:
    clock = Clock()
    pace = Pace(100.0, clock)
    began = clock.now
    for _ in range(50):
        clock.now += pace.wait_seconds(10)
    assert clock.now - began == pytest.approx(49 * 0.1)


def test_what_was_late_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(10.0, clock)
    assert pace.wait_seconds(1) == 0
    clock.now += 60
    assert pace.wait_seconds(1) == 0
    assert pace.wait_seconds(1) == pytest.approx(0.1)


@pytest.mark.parametrize(("rate", "piece"), [(None, None), (0.5, 1), (20.0, 1), (1_000.0, 50)])
def test_what_is_sent_at_once_is_a_small_part_of_a_second(rate: float | None, piece: int | None) -> None:
    assert Pace(rate, Clock()).piece == piece


def test_without_a_rate_nothing_waits() -> None:
    assert Pace(None, Clock()).wait_seconds(10**9) == 0
