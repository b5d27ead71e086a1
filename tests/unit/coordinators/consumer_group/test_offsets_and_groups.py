"""Offsets of consumer groups, and how such groups are listed, described, deleted, and make place for classic ones."""

from __future__ import annotations

import pytest

from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.records import CommittedOffset
from barnabas.kernel.steps import STEP_ELEMENTS, at_once
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.consumer_group.consumer_world import ConsumerWorld, NextMember, settle
from tests.unit.coordinators.group.group_world import TestMember, stable_group

T0 = TopicPartition("t", 0)


def refused(world: ConsumerWorld, epoch: int, member_id: str, version: int = 9, producer_id: int | None = None) -> int:
    """The code that a commit is refused with; 0 where it is taken."""
    offsets = {T0: CommittedOffset(5, 0, "", world.clock.time_ms())}
    transaction = None if producer_id is None else (producer_id, 0)
    try:
        world.coordinator.commit_prepared(
            group_id="g",
            generation=epoch,
            member_id=member_id,
            group_instance_id=None,
            prepared=at_once(world.coordinator.prepare_commit("g", offsets, transaction)),
            on_done=lambda _: None,
            producer_id=producer_id,
            version=version,
        )
    except KafkaError as error:
        return error.code
    return 0


def test_members_commit_with_their_epoch(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    assert refused(world, member.epoch, member.member_id) == 0
    assert world.offset("g", T0) == 5
    for epoch, member_id, version, producer_id, error in (
        (member.epoch + 1, member.member_id, 9, None, ErrorCode.STALE_MEMBER_EPOCH),
        (0, member.member_id, 9, None, ErrorCode.STALE_MEMBER_EPOCH),
        (member.epoch, "other", 9, None, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "", 9, None, ErrorCode.UNKNOWN_MEMBER_ID),
        (member.epoch, member.member_id, 8, None, ErrorCode.UNSUPPORTED_VERSION),
        (member.epoch + 1, member.member_id, 4, 7, ErrorCode.ILLEGAL_GENERATION),
        (member.epoch, member.member_id, 4, 7, 0),
    ):
        assert refused(world, epoch, member_id, version, producer_id) == error, (epoch, member_id, version)


def test_who_is_no_member_commits_while_there_is_none(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    member.leave()
    assert refused(world, -1, "") == 0
    assert refused(world, 1, "x") == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_fetch_with_their_epoch(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    world.coordinator.check_fetch("g", member.member_id, member.epoch)
    world.coordinator.check_fetch("g", None, -1)
    world.elect("none")
    world.coordinator.check_fetch("none", "x", 3)
    for member_id, epoch, error in (
        (member.member_id, member.epoch + 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", member.epoch, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as raised:
            world.coordinator.check_fetch("g", member_id, epoch)
        assert raised.value.code is error


def test_groups_of_both_kinds_are_listed_by_type_and_state(world: ConsumerWorld) -> None:
    settle(NextMember(world))
    world.elect("classic")
    stable_group(world, TestMember(world, "classic"))
    everything = world.coordinator.list_groups((), ())[1]
    assert {(group.group_id, group.group_type, group.group_state, group.protocol_type) for group in everything} == {
        ("g", "consumer", "Stable", "consumer"),
        ("classic", "classic", "Stable", "consumer"),
    }
    for states, types, found in (
        ((), ("Consumer",), ["g"]),
        (("empty",), (), []),
        (("stable",), ("classic",), ["classic"]),
    ):
        assert [group.group_id for group in world.coordinator.list_groups(states, types)[1]] == found


def test_a_group_is_described_with_what_members_own_and_are_to_own(world: ConsumerWorld) -> None:
    first, second = NextMember(world), NextMember(world, instance_id="b")
    first.join()
    second.join()
    group = world.described()
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Reconciling",
        2,
        2,
        "uniform",
    )
    by_id = {member.member_id: member for member in group.members}
    (owned,) = by_id[first.member_id].assignment.topic_partitions
    assert (owned.topic_name, owned.partitions) == ("t", [0, 1, 2, 3, 4, 5])
    assert not by_id[second.member_id].assignment.topic_partitions
    assert len(by_id[second.member_id].target_assignment.topic_partitions[0].partitions) == 3
    assert (by_id[second.member_id].instance_id, by_id[second.member_id].client_host) == ("b", "/10.0.0.1")
    assert world.coordinator.describe_group("g").group_state == "Dead"
    world.elect("none")
    assert world.described("none").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_only_an_empty_group_is_deleted_and_nothing_of_it_is_left(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    outcomes: list[dict[str, ErrorCode]] = []
    world.coordinator.delete_groups(["g"], outcomes.append)
    refused(world, member.epoch, member.member_id)
    member.leave()
    world.coordinator.delete_groups(["g"], outcomes.append)
    assert outcomes == [{"g": ErrorCode.NON_EMPTY_GROUP}, {"g": ErrorCode.NONE}]
    world.fail_over()
    assert not world.coordinator._groups
    last = {record.key: record.value for record in world.log.records(world.partition_of("g"))}
    assert set(last.values()) == {None}


def test_a_group_without_members_and_offsets_expires(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    member.leave()
    world.pass_ms(world.settings.retention_check_interval_ms)
    assert not world.coordinator._groups


def test_offsets_of_topics_that_nobody_is_subscribed_to_expire(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    now_ms = world.clock.time_ms()
    for partition, age_ms in ((T0, world.settings.retention_ms), (TopicPartition("u", 0), world.settings.retention_ms)):
        world.hosted().offsets.replay(partition, 10_000, _committed(now_ms - age_ms))
    world.loop.run_until_complete(world.coordinator._deletions.expire_offsets())
    assert list(world.hosted().offsets.partitions) == [T0]


def _committed(time_ms: int) -> CommittedOffset:
    return CommittedOffset(1, 0, "", time_ms)


def test_a_classic_group_that_has_members_stays_one_unless_that_is_switched_on(world: ConsumerWorld) -> None:
    world.elect("h")
    stable_group(world, TestMember(world, "h"))
    other = NextMember(world, group_id="h")
    other.join()
    assert [other.error] == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_an_empty_group_makes_place_for_one_of_the_other_kind(world: ConsumerWorld) -> None:
    world.commit("g", {T0: 7})
    classic = TestMember(world)
    stable_group(world, classic)
    classic.leave()
    world.pass_ms(60_000)
    member = NextMember(world)
    settle(member)
    assert len(member.numbers()) == 6
    world.fail_over()
    assert world.hosted().core.members
    assert world.offset("g", T0) == 7
    member.leave()
    again = TestMember(world)
    stable_group(world, again)
    world.fail_over(epoch=3)
    assert isinstance(world.group("g"), Group)
    assert world.offset("g", T0) == 7


def test_offsets_that_are_to_be_deleted_stay_where_a_consumer_has_come_meanwhile(world: ConsumerWorld) -> None:
    """They go in steps, between which the group has become one of the other kind."""
    classic = TestMember(world)
    stable_group(world, classic)
    classic.leave()
    partitions = [TopicPartition("t", number) for number in range(3 * STEP_ELEMENTS)]
    world.commit("g", dict.fromkeys(partitions, 7))
    world.pass_ms(10)
    assert world.group("g").is_empty
    outcomes: list[dict[TopicPartition, ErrorCode]] = []
    world.coordinator.delete_offsets("g", partitions, outcomes.append)
    member = NextMember(world)
    member.join(waits=False)
    world.pass_ms(10)
    ((*codes,),) = (each.values() for each in outcomes)
    assert codes[:STEP_ELEMENTS] == [ErrorCode.NONE] * STEP_ELEMENTS
    assert codes[STEP_ELEMENTS:] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2 * STEP_ELEMENTS
    assert [world.offset("g", partitions[number]) for number in (0, STEP_ELEMENTS, -1)] == [None, 7, 7]
