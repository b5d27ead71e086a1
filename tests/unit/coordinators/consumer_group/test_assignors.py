"""The assignors: everything is assigned once, evenly, and as little moves as that allows."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from barnabas.coordinators.consumer_group.assignor import Assignable, AssignedMember, Assignment
from barnabas.coordinators.consumer_group.range import assign_ranges
from barnabas.coordinators.consumer_group.uniform import assign_uniformly
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import at_once

A, B, C = (Uuid(bytes([0] * 15 + [number])) for number in (1, 2, 3))


def members(subscriptions: Mapping[str, tuple[Uuid, ...]], owned: Assignment | None = None) -> list[AssignedMember]:
    return [
        AssignedMember(name, None, frozenset(topics), (owned or {}).get(name, {}))
        for name, topics in subscriptions.items()
    ]


def sizes(assignment: Assignment) -> list[int]:
    return sorted(sum(map(len, partitions.values())) for partitions in assignment.values())


def check_complete(assignment: Assignment, assignable: Assignable) -> None:
    found = [
        (topic_id, number)
        for partitions in assignment.values()
        for topic_id, numbers in partitions.items()
        for number in numbers
    ]
    subscribed = frozenset().union(*(member.subscribed for member in assignable.members))
    assert sorted(found) == sorted(
        (topic_id, number) for topic_id in subscribed for number in range(assignable.topics[topic_id])
    )
    by_id = {member.member_id: member for member in assignable.members}
    for member_id, partitions in assignment.items():
        assert partitions.keys() <= by_id[member_id].subscribed


def test_range_gives_runs_and_the_first_members_one_more() -> None:
    assignable = Assignable(members({"m2": (A, B), "m1": (A, B), "m3": (A, B)}), {A: 4, B: 2})
    assert at_once(assign_ranges(assignable)) == {
        "m1": {A: frozenset({0, 1}), B: frozenset({0})},
        "m2": {A: frozenset({2}), B: frozenset({1})},
        "m3": {A: frozenset({3})},
    }


def test_range_puts_static_members_first_by_their_names() -> None:
    static = AssignedMember("z", "a", frozenset({A}), {})
    assignable = Assignable([*members({"a": (A,)}), static], {A: 3})
    assert at_once(assign_ranges(assignable)) == {"z": {A: frozenset({0, 1})}, "a": {A: frozenset({2})}}


def test_range_counts_only_those_who_are_subscribed() -> None:
    assignable = Assignable(members({"m1": (A, B), "m2": (B,), "m3": (A,)}), {A: 2, B: 3})
    assert at_once(assign_ranges(assignable)) == {
        "m1": {A: frozenset({0}), B: frozenset({0, 1})},
        "m2": {B: frozenset({2})},
        "m3": {A: frozenset({1})},
    }


def test_uniform_moves_nothing_that_is_even_already() -> None:
    owned = {"m1": {A: frozenset({0, 3})}, "m2": {A: frozenset({1, 2, 4})}}
    assignable = Assignable(members({"m1": (A,), "m2": (A,)}, owned), {A: 5})
    assert at_once(assign_uniformly(assignable)) == owned


def test_uniform_moves_no_more_than_a_new_member_needs() -> None:
    owned: dict[str, dict[Uuid, frozenset[int]]] = {"m1": {A: frozenset(range(6))}, "m2": {B: frozenset(range(6))}}
    assignable = Assignable(members(dict.fromkeys(("m1", "m2", "m3"), (A, B)), owned), {A: 6, B: 6})
    found = at_once(assign_uniformly(assignable))
    assert sizes(found) == [4, 4, 4]
    assert all(found[name][topic_id] < owned[name][topic_id] for name, topic_id in (("m1", A), ("m2", B)))
    check_complete(found, assignable)


@pytest.mark.parametrize("seed", range(40))
def test_uniform_is_complete_balanced_and_sticky_whoever_subscribes_to_what(seed: int) -> None:
    chance = random.Random(seed)
    topics = {topic_id: chance.randint(0, 12) for topic_id in (A, B, C)}
    one = tuple(chance.sample((A, B, C), chance.randint(1, 3)))
    subscriptions = {
        f"m{number}": one if seed % 2 else tuple(chance.sample((A, B, C), chance.randint(0, 3)))
        for number in range(chance.randint(1, 6))
    }
    assignment: Assignment = {}
    for is_smaller in (False, False, True, False):
        if is_smaller and len(subscriptions) > 1:
            del subscriptions[next(iter(subscriptions))]
        wanted = {topic_id for subscribed in subscriptions.values() for topic_id in subscribed}
        there = {topic_id: count for topic_id, count in topics.items() if topic_id in wanted}
        assignable = Assignable(members(subscriptions, assignment), there)
        before, assignment = assignment, at_once(assign_uniformly(assignable))
        check_complete(assignment, assignable)
        check_balanced(assignment, subscriptions)
        assert assignment == before or not before or is_smaller


def check_balanced(assignment: Assignment, subscriptions: Mapping[str, tuple[Uuid, ...]]) -> None:
    """No partition could move to a subscriber that has at least two less."""
    loads = {name: sum(map(len, partitions.values())) for name, partitions in assignment.items()}
    for owner, partitions in assignment.items():
        for topic_id in partitions:
            for other, subscribed in subscriptions.items():
                assert topic_id not in subscribed or loads[owner] - loads[other] < 2


def test_members_that_are_subscribed_to_nothing_that_exists_get_nothing() -> None:
    for assign in (assign_ranges, assign_uniformly):
        assert at_once(assign(Assignable(members({"m": ()}), {}))) == {"m": {}}
        assert at_once(assign(Assignable([], {}))) == {}


def test_one_member_is_given_very_many_partitions_in_steps() -> None:
    topics = {Uuid(bytes([0] * 14 + [1, number])): 1_000 for number in range(20)}
    steps = assign_uniformly(Assignable(members({"m": tuple(topics)}), topics))
    assert sum(1 for _ in steps) >= 20_000 // 2_048
