"""`barnabas.pipelines.letter_places`: what is known of letters is bounded, and what is not known is looked for."""

from __future__ import annotations

import random

from barnabas.pipelines.letter_places import DONE_MAX, PARTS_MAX, LetterPlaces


def test_what_runs_before_have_read_may_have_letters_and_what_lies_behind_has_none() -> None:
    places = LetterPlaces({0: (0, 50)}, 7)
    assert places.since_ms({0: (49, 60)}) == 7
    assert places.since_ms({0: (50, 60), 1: (0, 10)}) is None
    assert LetterPlaces({}, 7).since_ms({0: (0, 1)}) is None


def test_of_a_part_what_has_its_letters_by_this_run_is_left_out_at_its_ends() -> None:
    places = LetterPlaces()
    places.done({0: (10, 20), 1: (0, 5)})
    places.done({0: (20, 25)})
    places.done({0: (40, 50)})
    assert places.rest({0: (5, 22), 1: (0, 5), 2: (1, 2)}) == {0: (5, 10), 2: (1, 2)}
    assert places.rest({0: (15, 45)}) == {0: (25, 40)}
    assert places.rest({0: (5, 60)}) == {0: (5, 60)}
    assert places.rest({0: (10, 25)}) == {}


def test_what_is_remembered_is_bounded_and_nothing_that_may_have_a_letter_is_forgotten() -> None:
    chance = random.Random(1)
    places = LetterPlaces({0: (0, 3)}, 5)
    begun: list[tuple[int, tuple[int, int]]] = [(5, (0, 3))]
    for time in range(6, 500):
        start = chance.randrange(100_000)
        begun.append((time, (start, start + chance.randrange(1, 50))))
        places.begin({0: begun[-1][1]}, time)
    for _ in range(2_000):
        start = chance.randrange(100_000)
        end = start + chance.randrange(1, 200)
        since = [time for time, (first, beyond) in begun if start < beyond and first < end]
        found = places.since_ms({0: (start, end)})
        assert not since or (found is not None and found <= min(since))
    assert len(places._begun) == PARTS_MAX
    # The newest are told apart.
    last_ms, last = begun[-1]
    assert places.since_ms({0: last}) in {time for time, _ in begun} | {5}
    assert places.since_ms({1: (0, 9)}) is None
    for number in range(DONE_MAX + 10):
        places.done({0: (10 * number, 10 * number + 1)})
    assert places.rest({0: (0, 1)}) == {0: (0, 1)}
    assert places.rest({0: (10 * DONE_MAX, 10 * DONE_MAX + 1)}) == {}
    assert last_ms == 499
