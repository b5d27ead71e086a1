"""Static members of a consumer group come back to their partitions, and only one has a name at a time."""

from __future__ import annotations

from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.consumer_group.consumer_world import (
    HEARTBEAT_MS,
    SESSION_MS,
    ConsumerWorld,
    NextMember,
    settle,
)


def test_a_static_member_that_comes_back_gets_its_partitions_without_a_rebalance(world: ConsumerWorld) -> None:
    static, other = NextMember(world, instance_id="a"), NextMember(world)
    settle(static, other)
    before, epoch = static.numbers(), static.epoch
    assert static.leave(-2) is ErrorCode.NONE
    other.beat()
    assert len(other.numbers()) == 3
    back = NextMember(world, instance_id="a")
    back.join()
    assert (back.numbers(), back.epoch) == (before, epoch)
    assert back.member_id != static.member_id
    static.beat(epoch=epoch)
    assert [static.error] == [ErrorCode.FENCED_INSTANCE_ID]


def test_a_name_that_is_in_use_is_not_given_away(world: ConsumerWorld) -> None:
    static, thief = NextMember(world, instance_id="a"), NextMember(world, instance_id="a")
    settle(static)
    thief.join()
    assert [thief.error] == [ErrorCode.UNRELEASED_INSTANCE_ID]


def test_a_static_member_that_does_not_come_back_is_removed(world: ConsumerWorld) -> None:
    static, other = NextMember(world, instance_id="a"), NextMember(world)
    settle(static, other)
    static.leave(-2)
    for _ in range(SESSION_MS // HEARTBEAT_MS + 1):
        world.pass_ms(HEARTBEAT_MS)
        other.beat()
    settle(other, rounds=2)
    assert len(other.numbers()) == 6
    assert not world.hosted().core.static_members


def test_a_name_nobody_has_is_unknown(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    for epoch in (member.epoch, -1, -2):
        member.beat(instance_id="a", epoch=epoch)
        assert [member.error] == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_static_member_survives_a_failover_while_it_is_away(world: ConsumerWorld) -> None:
    static, other = NextMember(world, instance_id="a"), NextMember(world)
    settle(static, other)
    before = static.numbers()
    static.leave(-2)
    world.fail_over()
    back = NextMember(world, instance_id="a")
    back.join()
    assert back.numbers() == before


def test_a_member_that_leaves_for_a_while_is_gone_though_it_waits_for_an_assignment(world: ConsumerWorld) -> None:
    """On two connections, of which one was given up."""
    static, other = NextMember(world, instance_id="a"), NextMember(world)
    settle(static, other)
    before = static.numbers()
    static.topics = frozenset({"t", "later"})
    answers = len(static.answers)
    static.beat(is_full=True, waits=False)
    static.beat(epoch=-2, owned=None)
    world.pass_ms(10)
    assert [answer.error_code for answer in static.answers[answers:]] == [
        ErrorCode.NONE,
        ErrorCode.FENCED_MEMBER_EPOCH,
    ]
    assert world.hosted().core.members[world.hosted().core.static_members["a"]].epoch == -2
    back = NextMember(world, "t", "later", instance_id="a")
    back.join()
    assert (back.error, back.numbers()) == (ErrorCode.NONE, before)


def test_a_heartbeat_that_comes_twice_moves_the_member_once(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    world.make_topic("t", 8)
    for _ in range(2):
        member.beat(waits=False)
    world.pass_ms(10)
    assert (member.epoch, member.error, len(member.numbers())) == (2, ErrorCode.NONE, 8)


def test_a_member_has_one_name_at_a_time(world: ConsumerWorld) -> None:
    member = NextMember(world, instance_id="a")
    settle(member)
    for name in ("b", "c"):
        member.instance_id = name
        member.beat(epoch=0, owned={}, is_full=True, subscribed=member.topics, rebalance_timeout_ms=1_000)
        assert [member.error] == [ErrorCode.NONE]
        assert world.hosted().core.static_members == {name: member.member_id}
    world.fail_over()
    assert world.hosted().core.static_members == {"c": member.member_id}
    thief = NextMember(world, instance_id="a")
    thief.join()
    assert [thief.error] == [ErrorCode.NONE]


def test_what_a_static_member_was_to_give_up_is_free_when_it_leaves_for_a_while(world: ConsumerWorld) -> None:
    static, other = NextMember(world, instance_id="a"), NextMember(world)
    static.join()
    other.join()
    static.beat()
    kept = static.numbers()
    assert (len(kept), other.numbers()) == (3, [])
    static.leave(-2)
    other.beat()
    assert len(other.numbers()) == 3
    back = NextMember(world, instance_id="a")
    back.join()
    assert back.numbers() == kept
