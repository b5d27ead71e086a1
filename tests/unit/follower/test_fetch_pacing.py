"""How long fetches wait at a leader, and how soon refused partitions are asked for again."""

from __future__ import annotations

from barnabas.follower.fetch_pacing import FetchWait, retry_delay_ms


def test_delays_double_up_to_what_is_configured() -> None:
    assert [retry_delay_ms(refusals, 1000) for refusals in (1, 2, 3, 6, 7, 1_000_000)] == [20, 40, 80, 640, 1000, 1000]
    assert retry_delay_ms(1, 5) == 5


def test_waits_are_short_after_a_change_and_grow_while_answers_come_in_their_time() -> None:
    wait = FetchWait(70)
    now = 0.0
    waits = []
    for _ in range(4):
        waits.append(wait.begin(now, None))
        now += waits[-1] / 1000
        wait.end_empty(now)
    assert waits == [20, 40, 70, 70]
    wait.shorten()
    assert wait.begin(now, None) == 20


def test_an_empty_answer_before_its_time_makes_waits_short_again() -> None:
    wait = FetchWait(500)
    for _ in range(3):
        asked = wait.begin(0.0, None)
        wait.end_empty(asked / 1000)
    assert wait.begin(0.0, None) == 160
    wait.end_empty(0.1)
    assert wait.begin(0.0, None) == 20


def test_waits_end_with_the_first_delay_and_never_before_it() -> None:
    wait = FetchWait(500)
    assert wait.begin(10.0, 10.0105) == 11
    assert wait.begin(10.0, 9.0) == 1
    assert wait.begin(10.0, 99.0) == 20


def test_waits_are_never_longer_than_configured() -> None:
    assert FetchWait(7).begin(0.0, None) == 7
