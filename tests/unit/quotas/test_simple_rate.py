"""`barnabas.quotas.simple_rate`."""

from __future__ import annotations

import math
from random import Random

import pytest

from barnabas.quotas.samples import SampledSum
from barnabas.quotas.simple_rate import SimpleRate


def test_the_first_window_counts_whole() -> None:
    rate = SimpleRate(11, 1.0)
    assert rate.measure(0.0) == 0.0
    rate.record(500, 0.0)
    assert rate.measure(0.0) == 500.0
    assert rate.measure(0.9) == 500.0
    assert rate.measure(2.0) == 250.0


def test_the_rate_is_over_the_time_since_the_oldest_sample() -> None:
    rate = SimpleRate(11, 1.0)
    for second in range(5):
        rate.record(100, float(second))
    assert rate.measure(4.0) == 500 / 4
    assert rate.measure(5.0) == 100.0


def test_samples_leave_when_all_windows_have_passed() -> None:
    rate = SimpleRate(3, 1.0)
    rate.record(1000, 0.0)
    rate.record(60, 1.0)
    assert rate.measure(2.9) == pytest.approx(1060 / 2.9)
    assert rate.measure(3.5) == pytest.approx(60 / 2.5)
    assert rate.measure(4.0) == 0.0


def test_a_steady_rate_is_over_the_last_windows_only() -> None:
    rate = SimpleRate(3, 1.0)
    measured = []
    for second in range(100):
        rate.record(10, float(second))
        measured.append(rate.measure(float(second)))
    assert measured[:3] == [10.0, 20.0, 15.0]
    assert set(measured[3:]) == {15.0}, "three samples, since the first of which two windows have passed"


def test_says_how_long_it_stays_above_a_bound() -> None:
    rate = SimpleRate(11, 1.0)
    assert rate.seconds_above(100, 0.0) == 0.0
    rate.record(500, 0.0)
    assert rate.seconds_above(500, 0.0) == 0.0
    assert rate.seconds_above(100, 0.0) == 5.0
    assert rate.seconds_above(100, 2.0) == 3.0
    assert rate.measure(4.99) > 100 >= rate.measure(5.0)
    assert rate.seconds_above(0, 2.0) == math.inf
    assert rate.seconds_above(0, 11.0) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_of_the_samples_is_what_they_say(seed: int) -> None:
    """Against sums that are made anew each time, with pauses of all lengths."""
    random = Random(seed)
    kept, anew = SampledSum(5, 1.0), SampledSum(5, 1.0)
    now = 100.0
    for _ in range(3_000):
        now += random.choice((0.0, 0.0001, 0.01, 0.3, 1.0, random.uniform(0.5, 8.0)))
        if random.random() < 0.7:
            value = random.randrange(-5, 1000)
            kept.record(value, now)
            anew.record(value, now)
        if random.random() < 0.5:
            anew._kept_until = -math.inf
            assert kept.total(now) == anew.total(now)
