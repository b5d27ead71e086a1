"""The last moves are kept, of partitions and of replicas, and told in their order."""

from __future__ import annotations

from barnabas.controller.recent_transitions import TRANSITIONS_KEPT, RecentTransitions, StateTransition, to_be_told


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def stopwatch(self) -> float:
        return 0.0

    def time_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms


def move(partition: int, broker_id: int | None = None) -> StateTransition:
    return StateTransition("flights", partition, broker_id, "OFFLINE", "ONLINE")


def test_replicas_do_not_push_partitions_out() -> None:
    recent = RecentTransitions(Clock())
    recent.add(move(7))
    for number in range(3 * TRANSITIONS_KEPT):
        recent.add(move(number, 2))
    kept = recent.latest(TRANSITIONS_KEPT)
    assert (kept[0].time_ms, kept[0].move) == (1, move(7))
    assert [timed.move.partition for timed in kept[1:]] == list(range(2 * TRANSITIONS_KEPT, 3 * TRANSITIONS_KEPT))


def test_they_are_told_in_the_order_in_which_they_came() -> None:
    recent = RecentTransitions(Clock())
    for number in range(6):
        recent.add(move(number, None if number % 2 else 1))
    assert [timed.move.partition for timed in recent.latest(2)] == [2, 3, 4, 5]
    assert recent.latest(0) == recent.latest(-1) == ()
    recent.clear()
    assert recent.latest(2) == ()


def test_of_many_moves_that_are_not_logged_only_those_are_told_that_are_kept() -> None:
    before = dict.fromkeys(range(TRANSITIONS_KEPT + 5), "OFFLINE")
    assert list(to_be_told(before, all_of_them=False)) == list(before.items())[5:]
    assert list(to_be_told(before, all_of_them=True)) == list(before.items())
    assert list(to_be_told({1: "NEW"}, all_of_them=False)) == [(1, "NEW")]
