"""Members of a consumer group come and go, and own every partition once."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from barnabas.coordinators.consumer_group.states import ConsumerGroupState, MemberState
from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.consumer_group.consumer_world import (
    HEARTBEAT_MS,
    SESSION_MS,
    ConsumerWorld,
    NextMember,
    owners,
    settle,
)


def test_the_first_member_is_assigned_everything_with_its_first_heartbeat(world: ConsumerWorld) -> None:
    member = NextMember(world)
    answer = member.join()
    assert answer is not None
    assert (member.error, member.epoch, answer.heartbeat_interval_ms) == (ErrorCode.NONE, 1, HEARTBEAT_MS)
    assert member.numbers() == [0, 1, 2, 3, 4, 5]
    assert len(member.member_id) == 36
    assert world.hosted().state is ConsumerGroupState.STABLE


def test_a_second_member_waits_for_what_the_first_gives_up(world: ConsumerWorld) -> None:
    first, second = NextMember(world), NextMember(world)
    first.join()
    second.join()
    assert (second.epoch, second.numbers()) == (2, [])
    assert world.hosted().core.members[second.member_id].state is MemberState.UNRELEASED_PARTITIONS
    answer = first.beat()
    assert answer is not None
    assert answer.member_epoch == 1  # it keeps its epoch until it has given up
    assert len(first.numbers()) == 3
    second.beat()
    assert second.numbers() == []
    first.beat()
    assert first.epoch == 2
    second.beat()
    assert len(second.numbers()) == 3
    assert len(owners(first, second)) == 6
    assert world.hosted().state is ConsumerGroupState.STABLE


def test_who_waits_for_others_partitions_asks_as_often_as_it_may() -> None:
    with contextlib.closing(ConsumerWorld(consumer_min_heartbeat_interval_ms=700)) as world:
        first, second = NextMember(world), NextMember(world)
        first.join()
        told = [second.join(), first.beat(), second.beat(), first.beat(), second.beat()]
        assert [None if answer is None else answer.heartbeat_interval_ms for answer in told] == [
            700,
            HEARTBEAT_MS,  # it gives up, and says so when it has, without waiting
            700,
            HEARTBEAT_MS,
            HEARTBEAT_MS,
        ]


def test_nobody_is_told_to_ask_less_often_than_is_configured(world: ConsumerWorld) -> None:
    with contextlib.closing(ConsumerWorld(consumer_min_heartbeat_interval_ms=60_000)) as slow:
        for each in (world, slow):
            NextMember(each).join()
            answer = NextMember(each).join()
            assert answer is not None
            assert answer.heartbeat_interval_ms == HEARTBEAT_MS


def test_who_does_not_say_what_it_owns_has_not_given_it_up(world: ConsumerWorld) -> None:
    first, second = NextMember(world), NextMember(world)
    first.join()
    second.join()
    for _ in range(2):
        answer = first.beat(owned=None)
        assert answer is not None
        assert answer.member_epoch == 1
        second.beat()
        assert second.numbers() == []


def test_a_member_that_has_given_up_and_is_to_give_up_more_is_an_epoch_on(world: ConsumerWorld) -> None:
    """So that its rebalance time-out begins anew, and what it says of the former one is refused."""
    first, second, third = (NextMember(world) for _ in range(3))
    first.join()
    second.join()
    first.beat()
    assert (first.epoch, len(first.numbers())) == (1, 3)
    third.join()
    first.beat()
    assert (first.epoch, len(first.numbers())) == (2, 2)
    assert world.hosted().core.members[first.member_id].state is MemberState.UNREVOKED_PARTITIONS
    first.beat()
    assert first.epoch == 3


def test_an_answer_names_the_assignment_only_where_it_is_new_or_asked_for(world: ConsumerWorld) -> None:
    member = NextMember(world)
    member.join()
    for is_full in (False, True):
        answer = member.beat(is_full=is_full)
        assert answer is not None
        assert (answer.assignment is not None) is is_full


def test_a_member_that_leaves_frees_its_partitions_at_once(world: ConsumerWorld) -> None:
    members = [NextMember(world) for _ in range(3)]
    settle(*members)
    assert members[0].leave() is ErrorCode.NONE
    members[0].owned = {}
    settle(*members[1:])
    assert len(owners(*members[1:])) == 6
    assert sorted(len(member.numbers()) for member in members[1:]) == [3, 3]


def test_a_member_that_is_not_heard_of_is_fenced(world: ConsumerWorld) -> None:
    lost, other = NextMember(world), NextMember(world)
    settle(lost, other)
    for _ in range(SESSION_MS // HEARTBEAT_MS + 1):
        world.pass_ms(HEARTBEAT_MS)
        other.beat()
    settle(other, rounds=2)
    assert len(other.numbers()) == 6
    lost.beat()
    assert [lost.error] == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_member_that_gives_nothing_up_is_fenced_after_its_rebalance_time_out(world: ConsumerWorld) -> None:
    stubborn, other = NextMember(world, rebalance_ms=20_000), NextMember(world)
    stubborn.gives_up = False
    stubborn.join()
    other.join()
    stubborn.beat()
    for _ in range(3):
        world.pass_ms(HEARTBEAT_MS)
        stubborn.beat()
        other.beat()
        assert other.numbers() == []
    world.pass_ms(HEARTBEAT_MS + 1)
    stubborn.beat()
    assert [stubborn.error] == [ErrorCode.UNKNOWN_MEMBER_ID]
    other.beat()
    other.beat()
    assert other.numbers() == [0, 1, 2, 3, 4, 5]


def test_new_partitions_and_topics_are_assigned_with_the_next_heartbeat(world: ConsumerWorld) -> None:
    member = NextMember(world, "t", "later")
    member.join()
    world.make_topic("t", 8)
    member.beat()
    assert member.numbers() == list(range(8))
    world.make_topic("later", 2)
    member.beat()
    assert member.numbers("later") == [0, 1]
    assert member.epoch == 3


def test_a_deleted_topic_is_taken_away_and_one_of_its_name_is_another(world: ConsumerWorld) -> None:
    member = NextMember(world)
    member.join()
    world.delete_topic("t")
    member.beat()
    assert not member.owned
    world.make_topic("t", 2)
    settle(member, rounds=3)
    assert member.numbers() == [0, 1]


def test_a_changed_subscription_bumps_the_epoch(world: ConsumerWorld) -> None:
    world.make_topic("other", 2)
    member = NextMember(world)
    member.join()
    member.topics = frozenset({"other"})
    member.beat(is_full=True)
    settle(member, rounds=2)
    assert (member.epoch, member.numbers("other"), member.numbers("t")) == (2, [0, 1], [])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": {b"0" * 16: frozenset({1})}}, ErrorCode.INVALID_REQUEST),
        ({"subscribed": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed": frozenset()}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2, "member_id": "m"}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"epoch": 1, "member_id": "m"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1, "member_id": "m"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_id": "m" * 40_000}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_requests_that_cannot_be_are_refused_and_leave_nothing(
    world: ConsumerWorld, fields: dict[str, Any], error: ErrorCode
) -> None:
    member = NextMember(world)
    member.beat(**fields)
    assert member.error is error
    assert not world.coordinator._groups


@pytest.mark.parametrize("epoch", [1, 3, 9])
def test_a_member_of_another_epoch_is_fenced(world: ConsumerWorld, epoch: int) -> None:
    member = NextMember(world)
    member.join()
    for count in (7, 8, 9, 10):
        world.make_topic("t", count)
        member.beat()
    assert member.epoch == 5
    member.beat(epoch=epoch)
    assert [member.error] == [ErrorCode.FENCED_MEMBER_EPOCH]


def test_the_epoch_before_is_taken_from_a_member_that_missed_an_answer(world: ConsumerWorld) -> None:
    member = NextMember(world)
    member.join()
    world.make_topic("t", 7)
    member.beat()
    member.beat(epoch=1, owned={world.topics.id("t"): frozenset(range(6))})
    assert (member.error, member.epoch) == (ErrorCode.NONE, 2)
    member.beat(epoch=1, owned={world.topics.id("t"): frozenset(range(8))})
    assert [member.error] == [ErrorCode.FENCED_MEMBER_EPOCH]


def test_a_full_group_takes_no_more(world: ConsumerWorld) -> None:
    small = ConsumerWorld(consumer_size_max=1)
    first, second = NextMember(small), NextMember(small)
    first.join()
    second.join()
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED)
    small.close()


def test_members_choose_the_assignor_by_majority(world: ConsumerWorld) -> None:
    members = [NextMember(world, assignor=assignor) for assignor in ("range", "range", "uniform")]
    settle(*members)
    assert world.described().assignor_name == "range"
    by_id = sorted(members, key=lambda member: member.member_id)
    assert [member.numbers() for member in by_id] == [[0, 1], [2, 3], [4, 5]]
