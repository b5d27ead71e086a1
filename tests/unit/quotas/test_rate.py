"""`barnabas.quotas.rate` and `barnabas.quotas.token_bucket`."""

from __future__ import annotations

import math
import random

import pytest

from barnabas.quotas.rate import Rate
from barnabas.quotas.token_bucket import TokenBucket


def test_what_comes_first_is_spread_over_all_windows_but_one() -> None:
    rate = Rate(11, 1.0)
    assert rate.measure(0.0) == 0.0
    rate.record(500, 0.0)
    assert rate.measure(0.0) == 50.0
    assert rate.measure(0.5) == pytest.approx(500 / 10.5)
    assert rate.measure(1.5) == pytest.approx(500 / 10.5)  # a full window has passed, nine are missing
    assert rate.measure(10.5) == pytest.approx(500 / 10.5)


def test_one_window_alone_is_measured_over_a_millisecond_at_least() -> None:
    rate = Rate(1, 1.0)
    rate.record(5, 7.0)
    assert rate.measure(7.0) == 5000.0


def test_what_was_recorded_by_mistake_is_taken_back() -> None:
    rate = Rate(11, 1.0)
    rate.record(500, 0.0)
    rate.record(700, 0.2)
    rate.record(-700, 0.2)
    assert rate.measure(0.0) == 50.0


def test_the_pause_brings_the_rate_down_to_the_bound() -> None:
    rate = Rate(11, 1.0)
    rate.record(1000, 0.0)
    assert rate.throttle_seconds(100.0, 0.0) == 0.0
    rate.record(1, 0.0)
    assert rate.throttle_seconds(100.0, 0.0) == pytest.approx(0.01)
    rate.record(999, 0.0)
    assert rate.throttle_seconds(100.0, 0.0) == pytest.approx(10.0)
    assert rate.throttle_seconds(0.0, 0.0) == math.inf


@pytest.mark.parametrize("size", [30, 300, 1500])
def test_who_pauses_as_long_as_he_is_told_gets_the_rate_of_the_bound(size: int) -> None:
    bound, random_, rate = 1000.0, random.Random(size), Rate(11, 1.0)
    now, passed, throttled = 0.0, 0.0, 0
    while now < 150.0:
        taken = random_.randrange(1, 2 * size)
        rate.record(taken, now)
        passed += taken
        seconds = rate.throttle_seconds(bound, now)
        throttled += seconds > 0
        now += max(seconds, 0.01)
    assert throttled
    assert passed / now == pytest.approx(bound, rel=0.2)  # the burst at the beginning included


def test_a_bucket_is_full_at_first_and_one_request_may_overdraw_it() -> None:
    bucket = TokenBucket(11, 1.0)
    assert bucket.measure(2.0, 5.0) == 22.0
    bucket.record(20, 2.0, 5.0)
    assert bucket.throttle_seconds(2.0, 5.0) == 0.0
    bucket.record(12, 2.0, 5.0)
    assert bucket.measure(2.0, 5.0) == -10.0
    assert bucket.throttle_seconds(2.0, 5.0) == 5.0
    assert bucket.throttle_seconds(2.0, 9.0) == 1.0
    assert bucket.throttle_seconds(2.0, 10.0) == 0.0


def test_a_bucket_fills_no_further_than_all_windows() -> None:
    bucket = TokenBucket(11, 1.0)
    bucket.record(22, 2.0, 5.0)
    assert bucket.measure(2.0, 6.0) == 2.0
    assert bucket.measure(2.0, 500.0) == 22.0
    assert bucket.measure(1.0, 500.0) == 11.0  # another bound


def test_a_bucket_that_does_not_fill_lets_nothing_pass_once_it_is_overdrawn() -> None:
    bucket = TokenBucket(11, 1.0)
    assert bucket.throttle_seconds(0.0, 1.0) == 0.0
    bucket.record(1, 0.0, 1.0)
    assert bucket.throttle_seconds(0.0, 100.0) == math.inf
