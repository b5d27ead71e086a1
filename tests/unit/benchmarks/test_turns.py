"""The arithmetic of `benchmarks.brokers.turns`: neighbours are compared, and how sure their median is."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from benchmarks.brokers.turns import Turns, interval, paired, ratios, table


def sides(count: int) -> list[int]:
    """Whose turn each is, as `load.c` has them."""
    return [(turn + 1) // 2 % 2 for turn in range(count)]


@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_has_the_turn_of_the_side_that_has_it_first(side: int) -> None:
    assert sides(8) == [0, 1, 1, 0, 0, 1, 1, 0]
    turns = [float(10 * number + each) for number, each in enumerate(sides(8))]
    found = list(paired(turns, side=side))
    assert [(with_it % 10, without % 10) for with_it, without in found] == [(side, 1 - side)] * 4
    assert [sorted(pair) for pair in found] == [turns[:2], turns[2:4], turns[4:6], turns[6:]]


def test_a_turn_without_a_neighbour_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(paired([1.0, 2.0, 3.0], side=0))


@pytest.mark.parametrize("side", [0, 1])
def test_what_grows_slower_from_turn_to_turn_is_not_in_the_ratio(side: int) -> None:
    turns = [1.01**number * (1.5 if each == side else 1.0) for number, each in enumerate(sides(400))]
    found = ratios(list(paired(turns, side=side)))
    assert statistics.median(found) == pytest.approx(1.5, rel=0.011)
    assert math.prod(found) ** (1 / len(found)) == pytest.approx(1.5, rel=0.0001)


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (20, 5), (40, 13), (100, 39)])
def test_the_interval_of_a_median_leaves_out_so_many_at_each_end(count: int, left_out: int) -> None:
    """As tables of the sign test have it."""
    values = [float(number) for number in range(count)]
    random.Random(count).shuffle(values)
    assert interval(values) == (left_out, count - 1 - left_out)
    if count > 5:
        missed = 2 * sum(math.comb(count, below) for below in range(left_out + 1)) / 2**count
        assert missed <= 0.05 < missed + 2 * math.comb(count, left_out + 1) / 2**count


def test_the_interval_of_very_many_is_that_of_the_normal_distribution() -> None:
    low, high = interval([float(number) for number in range(10_000)])
    assert low == pytest.approx(5_000 - 98, abs=2)
    assert high == pytest.approx(5_000 + 98, abs=2)


def test_the_interval_has_the_median_19_times_in_20() -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(2_000):
        low, high = interval([chance.expovariate(1.0) for _ in range(25)])
        held += low <= math.log(2) <= high
    assert 0.95 <= held / 2_000 <= 0.975


def test_the_table_says_whether_the_goal_is_met_and_what_nothing_looks_like() -> None:
    found = {}
    for name, times in (("dear", 1.06), ("cheap", 1.05)):
        seconds = (10e-6, 20e-6, 30e-6)
        found[name] = Turns([(each * times, each) for each in seconds], [(each * 0.99, each) for each in seconds])
    _, _, dear, cheap = table({"dear": "what is dear", "cheap": "what is not"}, found, 1.05).splitlines()
    assert dear == (
        "| what is dear | 21.2 / 20.0 us | 1.060 | 1.060-1.060 | 0.990 | 0.990-0.990 | at most 1.05: NOT met |"
    )
    assert cheap.endswith("| at most 1.05: met |")
