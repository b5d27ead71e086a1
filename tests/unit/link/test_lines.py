"""`barnabas.link.lines`: whose turn it is, of those who wait."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from barnabas.link.lines import Lines


@dataclass(eq=False)
class One:
    address: str
    number: int


A1, A2, A3 = (One("a", number) for number in (1, 2, 3))
B1, C1 = One("b", 1), One("c", 1)


def lines_of(*waiting: One, is_last_first: bool = False) -> Lines[One]:
    lines: Lines[One] = Lines(is_last_first=is_last_first)
    for one in waiting:
        lines.add(one)
    return lines


def all_of(lines: Lines[One]) -> list[One]:
    return [lines.pop() for _ in range(len(lines))]


def test_one_of_each_address_in_turn_who_came_first_of_each() -> None:
    assert all_of(lines_of(A1, A2, A3, B1, C1)) == [A1, B1, C1, A2, A3]


def test_of_one_address_the_last_may_come_first() -> None:
    assert all_of(lines_of(A1, A2, A3, B1, is_last_first=True)) == [A3, B1, A2, A1]


@pytest.mark.parametrize("is_last_first", [False, True])
def test_who_is_put_back_is_the_next_again(is_last_first: bool) -> None:
    lines = lines_of(A1, A2, A3, B1, C1, is_last_first=is_last_first)
    for _ in range(4):
        one = lines.pop()
        lines.put_back(one)
        assert len(lines) == 5
        assert lines.pop() is one
        lines.add(one)


def test_who_leaves_is_gone_and_an_address_with_nobody_too() -> None:
    lines = lines_of(A1, A2, B1)
    assert lines.discard(A1)
    assert not lines.discard(A1)
    assert not lines.discard(C1)
    assert lines.discard(B1)
    assert (len(lines), all_of(lines), bool(lines)) == (1, [A2], False)
