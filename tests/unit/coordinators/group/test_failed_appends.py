"""What a group is after an append that failed: what the log says, as whoever loads it next finds. Nothing where the log
refused the records, and all of them where they were written and not committed in time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import (
    REBALANCE_MS,
    GroupWorld,
    TestMember,
    durable,
    loaded,
    stable_group,
)
from tests.unit.coordinators.memory_log import nothing

pytestmark = pytest.mark.usefixtures("leads_g")

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BEFORE = {T0: 1, T1: 2, U0: 3}
MONTH_MS = 31 * 24 * 60 * 60 * 1000
REFUSALS = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.MESSAGE_TOO_LARGE]
OUTCOMES = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NONE]


def commit(world: GroupWorld) -> None:
    world.commit("g", {T0: 7, U0: 8})


def delete_offsets(world: GroupWorld) -> None:
    world.coordinator.delete_offsets("g", [T0, U0], nothing)


def delete_group(world: GroupWorld) -> None:
    world.coordinator.delete_groups(["g"], nothing)


def delete_topic(world: GroupWorld) -> None:
    world.coordinator.on_partitions_deleted([T0, T1])


def expire(world: GroupWorld) -> None:
    world.loop.time_passes(MONTH_MS / 1000)
    world.loop.run_until_complete(world.coordinator._deletions.expire_offsets())


OF_OFFSETS = [commit, delete_offsets, delete_group, delete_topic, expire]


def had_members(world: GroupWorld) -> None:
    """The group has been through a generation, and is empty."""
    member = TestMember(world)
    stable_group(world, member)
    member.leave()
    world.commit("g", BEFORE)


@pytest.mark.parametrize("has_record", [False, True])
@pytest.mark.parametrize("act", OF_OFFSETS)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_offsets_that_are_refused_change_nothing(
    world: GroupWorld, has_record: bool, act: Callable[[GroupWorld], None], refusal: ErrorCode
) -> None:
    if has_record:
        had_members(world)
    else:
        world.commit("g", BEFORE)
    before = durable(world)
    records = len(world.log.records(world.partition_of("g")))
    world.log.refusal = refusal
    act(world)
    world.pass_ms(10)
    assert len(world.log.records(world.partition_of("g"))) == records
    assert durable(world) == before == loaded(world)


@pytest.mark.parametrize("has_record", [False, True])
@pytest.mark.parametrize("act", OF_OFFSETS)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_offsets_that_are_written_are_there_whatever_comes_of_them(
    world: GroupWorld, has_record: bool, act: Callable[[GroupWorld], None], outcome: ErrorCode
) -> None:
    if has_record:
        had_members(world)
    else:
        world.commit("g", BEFORE)
    before = durable(world)
    world.log.holds_back = True
    act(world)
    world.log.release(outcome)
    world.pass_ms(10)
    if act is commit and outcome is ErrorCode.REQUEST_TIMED_OUT:
        assert durable(world) == before != loaded(world)
        world.log.release_late()
    assert durable(world) == loaded(world) != before


class Act:
    """Something that has the group's record written: `begin` comes before, `do` writes it."""

    def begin(self, world: GroupWorld) -> None:
        raise NotImplementedError

    def do(self) -> None:
        raise NotImplementedError


class Assign(Act):
    """The leader brings the assignment of the second generation."""

    def begin(self, world: GroupWorld) -> None:
        self.first, self.second = TestMember(world), TestMember(world)
        stable_group(world, self.first)
        self.second.join_fully()
        self.first.join()

    def do(self) -> None:
        (self.first if self.first.is_leader else self.second).assign()


class AssignFirst(Act):
    """The leader brings the assignment of a group that has no record yet."""

    def begin(self, world: GroupWorld) -> None:
        self.member = TestMember(world)
        self.member.join_fully()
        while not self.member.is_leader:
            world.pass_ms(500)

    def do(self) -> None:
        self.member.assign()


class Leave(Act):
    """The last member leaves."""

    def begin(self, world: GroupWorld) -> None:
        self.member = TestMember(world)
        stable_group(world, self.member)

    def do(self) -> None:
        self.member.leave()


class ComeBack(Act):
    """A static member comes back without its member id; it leads, or does not."""

    def __init__(self, *, leads: bool) -> None:
        self.leads = leads

    def begin(self, world: GroupWorld) -> None:
        first, second = TestMember(world, instance_id="a"), TestMember(world, instance_id="b")
        leader = stable_group(world, first, second)
        other = second if leader is first else first
        self.member, self.left = (leader, other) if self.leads else (other, leader)
        self.again = TestMember(world, instance_id=self.member.instance_id, session_ms=9_000, rebalance_ms=70_000)

    def do(self) -> None:
        self.again.join()


OF_GROUPS = [Assign, AssignFirst, Leave, lambda: ComeBack(leads=True), lambda: ComeBack(leads=False)]


@pytest.mark.parametrize("new_act", OF_GROUPS)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_record_of_a_group_that_is_refused_changes_nothing(
    world: GroupWorld, new_act: Callable[[], Act], refusal: ErrorCode
) -> None:
    act = new_act()
    act.begin(world)
    before = durable(world)
    records = len(world.log.records(world.partition_of("g")))
    world.log.refusal = refusal
    act.do()
    assert len(world.log.records(world.partition_of("g"))) == records
    assert durable(world) == before
    assert durable(world)["g"] == loaded(world).get("g", (None, {}))


@pytest.mark.parametrize("new_act", OF_GROUPS)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_record_of_a_group_that_is_written_stands_whatever_comes_of_it(
    world: GroupWorld, new_act: Callable[[], Act], outcome: ErrorCode
) -> None:
    act = new_act()
    act.begin(world)
    before = durable(world)
    world.log.holds_back = True
    act.do()
    assert len(world.log.held) == 1
    assert durable(world) == loaded(world) != before
    world.log.release(outcome)
    assert durable(world) == loaded(world) != before


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_who_is_not_replaced_is_who_it_was(world: GroupWorld, leads: bool, refusal: ErrorCode) -> None:
    act = ComeBack(leads=leads)
    act.begin(world)
    group = world.group("g")
    described, leader_id = group.described(), group.members.leader_id
    world.log.refusal = refusal
    act.do()
    assert act.again.joined[-1].error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert (group.described(), group.members.leader_id) == (described, leader_id)
    assert group.members.rebalance_timeout_ms == REBALANCE_MS
    assert act.member.heartbeat() is ErrorCode.NONE
    world.pass_ms(9_500)
    assert act.member.heartbeat() is ErrorCode.NONE
    assert act.left.heartbeat() is ErrorCode.NONE
    world.log.refusal = None
    act.do()
    assert act.again.joined[-1].error_code == ErrorCode.NONE
    assert durable(world) == loaded(world)


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("comes_again", [False, True])
def test_a_replacement_that_is_not_committed_in_time_stands(world: GroupWorld, leads: bool, comes_again: bool) -> None:
    act = ComeBack(leads=leads)
    act.begin(world)
    group = world.group("g")
    world.log.holds_back = True
    act.do()
    world.log.release(ErrorCode.REQUEST_TIMED_OUT)
    world.log.holds_back = False
    assert act.again.joined[-1].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert act.member.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert group.state is GroupState.STABLE
    assert len(group.members) == 2
    if comes_again:
        act.do()
        assert act.again.joined[-1].error_code == ErrorCode.NONE
        assert act.again.generation == 1
        assert act.again.heartbeat() is ErrorCode.NONE
    else:
        world.pass_ms(9_500)
        assert group.members.static_member_id(act.again.instance_id or "") is None
        assert act.left.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert durable(world) == loaded(world)


@pytest.mark.parametrize("act", OF_OFFSETS[1:])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("refusal", [None, *REFUSALS])
def test_a_commit_on_its_way_beside_a_deletion(
    world: GroupWorld, act: Callable[[GroupWorld], None], outcome: ErrorCode, refusal: ErrorCode | None
) -> None:
    world.commit("g", BEFORE)
    world.log.holds_back = True
    world.commit("g", {T0: 7, T1: 8})
    world.log.refusal = refusal
    act(world)
    world.log.refusal = None
    world.log.release(outcome)
    world.log.release_late()
    world.pass_ms(10)
    assert durable(world) == loaded(world)


def test_a_piece_of_a_deletion_that_is_refused(world: GroupWorld) -> None:
    partitions = [TopicPartition("t", number) for number in range(600)]
    world.commit("g", dict.fromkeys(partitions, 1))
    world.pass_ms(10)
    delete_group(world)
    world.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    world.pass_ms(10)
    assert 0 < len(durable(world)["g"][1]) < len(partitions)
    assert durable(world) == loaded(world)


def test_an_append_of_a_shard_that_has_resigned_is_refused(world: GroupWorld) -> None:
    world.commit("g", BEFORE)
    shard = world.coordinator._groups["g"].shard
    world.resign("g", 2)
    replayed: list[int] = []
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        shard.append([(b"key", b"value")], 0, replayed.append, nothing)
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        shard.append_unacknowledged([(b"key", b"value")], 0, replayed.append)
    assert not replayed


@pytest.mark.parametrize("holds_back", [False, True])
def test_records_are_replayed_before_their_outcome_is_told(world: GroupWorld, holds_back: bool) -> None:
    world.commit("g", BEFORE)
    shard = world.coordinator._groups["g"].shard
    told: list[object] = []
    world.log.holds_back = holds_back
    shard.append([(b"key", b"value")], 0, told.append, told.append)
    assert told == ([3] if holds_back else [3, ErrorCode.NONE])
    world.log.release(ErrorCode.NONE)
    assert told == [3, ErrorCode.NONE]


@pytest.mark.parametrize("leads", [False, True])
def test_the_record_of_a_replacement_has_the_members_as_they_are(world: GroupWorld, leads: bool) -> None:
    act = ComeBack(leads=leads)
    act.begin(world)
    act.do()
    group = world.group("g")
    assert group.recorded is not None
    assert [member.member_id for member in group.recorded.members] == list(group.members.ids)
    assert group.recorded.leader == group.members.leader_id
    assert (group.members.leader_id == act.again.member_id) is leads


def test_a_group_that_never_had_a_record_gets_no_tombstone(world: GroupWorld) -> None:
    act = AssignFirst()
    act.begin(world)
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    act.do()
    act.member.leave()
    assert world.group("g").generation == 2
    world.log.refusal = None
    expire(world)
    assert durable(world) == {}
    assert world.log.records(world.partition_of("g")) == []


def test_a_group_that_is_gone_has_no_record(world: GroupWorld) -> None:
    had_members(world)
    group = world.group("g")
    delete_group(world)
    assert durable(world) == {} == loaded(world)
    assert group.recorded is None
    assert list(group.offsets.partitions) == []


def test_a_group_of_which_only_a_commit_on_its_way_is_left_goes_with_it(world: GroupWorld) -> None:
    world.log.holds_back = True
    world.commit("g", {T0: 7})
    delete_topic(world)
    assert durable(world) == {} == loaded(world)
    world.log.release()
    assert durable(world) == {}


def test_an_offset_of_which_the_write_failed_is_never_seen(world: GroupWorld) -> None:
    world.commit("g", BEFORE)
    world.log.holds_back = True
    outcome = world.commit("g", {T0: 7})
    world.log.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert outcome == [{T0: ErrorCode.NOT_COORDINATOR}]
    assert world.offset("g", T0) == BEFORE[T0]
