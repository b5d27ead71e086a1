"""The arithmetic of `benchmarks.groups`: when a group has settled, what had no owner, whether memory is linear."""

from __future__ import annotations

import pytest

from benchmarks.groups.figures import GROWTH_MAX, Ownership, bytes_per_group, growth_table, is_linear


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def of(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


# Ownership.


def test_a_group_has_settled_when_all_is_owned_in_equal_shares_and_not_before(clock: Clock) -> None:
    ownership = Ownership(5, clock)
    settled: list[float] = []
    ownership.on_settled = lambda: settled.append(clock.now)
    ownership.begin("ab")
    ownership.owns("a", of(0, 1, 2, 3, 4))
    assert ownership.settled_at() is None  # `b` has nothing
    clock.now += 1
    ownership.owns("a", of(0, 1, 2))
    assert ownership.settled_at() is None  # two have no owner
    clock.now += 1
    ownership.owns("b", of(3, 4))
    assert (ownership.settled_at(), settled, ownership.overlaps) == (102.0, [102.0], 0)
    clock.now += 1
    ownership.owns("b", of(3, 4))
    assert ownership.settled_at() == 102.0
    ownership.owns("b", of(3))
    assert ownership.settled_at() is None


def test_what_had_no_owner_is_added_up_over_partitions_and_time(clock: Clock) -> None:
    ownership = Ownership(3, clock)
    ownership.begin("a")
    clock.now += 2
    ownership.owns("a", of(0))
    clock.now += 1
    assert ownership.unowned_seconds == 3 * 2 + 2 * 1
    ownership.owns("a", of(0, 1, 2))
    clock.now += 10
    assert ownership.unowned_seconds == 8
    ownership.begin("a")
    assert ownership.unowned_seconds == 0


def test_a_partition_of_two_is_counted_also_when_the_first_gives_it_up_later(clock: Clock) -> None:
    ownership = Ownership(2, clock)
    ownership.begin("ab")
    ownership.owns("a", of(0, 1))
    ownership.owns("b", of(1))
    assert ownership.overlaps == 1
    ownership.owns("a", of(0))
    assert (ownership.unowned, ownership.overlaps) == (0, 1)


def test_members_that_leave_take_nothing_with_them_and_are_waited_for_no_more(clock: Clock) -> None:
    ownership = Ownership(4, clock)
    ownership.begin("abc")
    for member, numbers in (("a", of(0, 1)), ("b", of(2)), ("c", of(3))):
        ownership.owns(member, numbers)
    assert ownership.settled_at() is not None
    ownership.begin("ab")
    ownership.owns("c", of())
    assert (ownership.settled_at(), ownership.unowned) == (None, 1)
    ownership.owns("b", of(2, 3))
    assert ownership.settled_at() is not None


def test_more_members_than_partitions_settle_with_some_that_have_none(clock: Clock) -> None:
    ownership = Ownership(1, clock)
    ownership.begin("ab")
    ownership.owns("a", of(0))
    assert ownership.settled_at() is not None


# Memory.


def test_a_group_costs_what_came_since_the_smaller_count() -> None:
    assert bytes_per_group({500: 3_500, 100: 1_000, 200: 2_000}) == {200: 10, 500: 5}


def test_one_count_says_nothing() -> None:
    with pytest.raises(ValueError, match="two counts"):
        bytes_per_group({100: 1_000})


@pytest.mark.parametrize(("last", "expected"), [(GROWTH_MAX * 8, True), (GROWTH_MAX * 8 + 1, False), (1.0, True)])
def test_memory_is_linear_where_the_last_groups_cost_little_more_than_the_first(last: float, expected: bool) -> None:
    assert is_linear({200: 8.0, 400: 50.0, 800: last}) is expected


def test_the_table_has_the_median_of_the_rounds() -> None:
    rounds = [{50: 0, 100: 50 * 1024 * each, 200: 50 * 1024 * each + 100 * 1024 * each * 2} for each in (1, 9, 2)]
    table = growth_table({"classic": rounds})
    assert "| from 50 to 100 | 2.0 |" in table
    assert "| from 100 to 200 | 4.0 |" in table
    assert "**NOT linear**" in table
