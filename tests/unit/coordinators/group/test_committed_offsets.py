"""Offsets: committing, fetching, deleting, expiring."""

from __future__ import annotations

import pytest

from barnabas.coordinators.group.commits import Codes
from barnabas.coordinators.group.records import GroupKey, OffsetKey, read_key, read_offset_value
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group

pytestmark = pytest.mark.usefixtures("leads_g")

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def test_a_consumer_without_a_group_commits(world: GroupWorld) -> None:
    assert world.commit("g", {T0: 5, U0: 7}, metadata="left off") == [{T0: ErrorCode.NONE, U0: ErrorCode.NONE}]
    assert world.offset("g", T0) == 5
    (fetched,) = world.coordinator.fetch_offsets("g", [U0], require_stable=True)
    assert fetched.committed is not None
    assert (fetched.committed.metadata, fetched.committed.leader_epoch) == ("left off", 1)
    assert {each.partition for each in world.coordinator.fetch_offsets("g", None, require_stable=True)} == {T0, U0}
    assert world.group("g").protocol_type is None


def test_what_was_never_committed_has_no_offset(world: GroupWorld) -> None:
    assert world.offset("g", T0) is None
    world.commit("g", {T0: 5})
    assert world.offset("g", T1) is None
    world.elect("other")
    assert world.coordinator.fetch_offsets("other", None, require_stable=False) == []


def test_the_empty_group_id_may_commit(world: GroupWorld) -> None:
    world.elect("")
    world.commit("", {T0: 3})
    assert world.offset("", T0) == 3


def test_members_commit_in_their_generation(world: GroupWorld) -> None:
    member = TestMember(world)
    stable_group(world, member)
    assert world.commit("g", {T0: 5}, generation=member.generation, member_id=member.member_id) == [
        {T0: ErrorCode.NONE}
    ]
    for generation, member_id, instance_id, error in (
        (-1, "", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (member.generation, "stranger", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (member.generation + 1, member.member_id, None, ErrorCode.ILLEGAL_GENERATION),
        (member.generation, member.member_id, "nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, member.member_id, None, ErrorCode.ILLEGAL_GENERATION),
    ):
        with pytest.raises(KafkaError) as raised:
            world.commit("g", {T0: 6}, generation=generation, member_id=member_id, group_instance_id=instance_id)
        assert code_of(raised) is error
    assert world.offset("g", T0) == 5


def test_a_generation_of_a_group_that_does_not_exist_is_refused(world: GroupWorld) -> None:
    with pytest.raises(KafkaError) as raised:
        world.commit("g", {T0: 5}, generation=3, member_id="m")
    assert code_of(raised) is ErrorCode.ILLEGAL_GENERATION


def test_commits_during_a_rebalance(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    stable_group(world, first)
    second.join_fully()
    assert world.group("g").state is GroupState.PREPARING_REBALANCE
    assert world.commit("g", {T0: 5}, generation=1, member_id=first.member_id) == [{T0: ErrorCode.NONE}]
    first.join()
    assert world.group("g").state is GroupState.COMPLETING_REBALANCE
    with pytest.raises(KafkaError) as raised:
        world.commit("g", {T0: 6}, generation=2, member_id=first.member_id)
    assert code_of(raised) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_is_a_sign_of_life(world: GroupWorld) -> None:
    member = TestMember(world)
    stable_group(world, member)
    for _ in range(5):
        world.pass_ms(9_000)
        world.commit("g", {T0: 5}, generation=1, member_id=member.member_id)
    assert member.heartbeat() is ErrorCode.NONE


def test_a_commit_under_way_is_not_seen_and_is_unstable(world: GroupWorld) -> None:
    world.commit("g", {T0: 5})
    world.log.holds_back = True
    outcome = world.commit("g", {T0: 6})
    assert outcome == []
    assert world.offset("g", T0) == 5
    (fetched,) = world.coordinator.fetch_offsets("g", [T0], require_stable=True)
    assert fetched.error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.log.release()
    assert outcome == [{T0: ErrorCode.NONE}]
    assert world.offset("g", T0) == 6


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_fails_leaves_the_offset_before(world: GroupWorld, failure: ErrorCode, told: ErrorCode) -> None:
    world.commit("g", {T0: 5})
    world.log.refusal = failure
    assert world.commit("g", {T0: 6}) == [{T0: told}]
    assert world.offset("g", T0) == 5
    (fetched,) = world.coordinator.fetch_offsets("g", [T0], require_stable=True)
    assert fetched.error is ErrorCode.NONE


def test_the_later_of_two_commits_under_way_counts(world: GroupWorld) -> None:
    world.log.holds_back = True
    world.commit("g", {T0: 6})
    world.commit("g", {T0: 4})
    world.log.release()
    assert world.offset("g", T0) == 4


def test_refuses_metadata_that_is_too_long_in_javas_counting() -> None:
    world = GroupWorld(offset_metadata_max=4)
    world.elect("g")
    assert world.commit("g", {T0: 1}, metadata="😀😀") == [{T0: ErrorCode.NONE}]
    assert world.commit("g", {T0: 2}, metadata="😀😀.") == [{T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}]
    assert world.offset("g", T0) == 1
    world.close()


# Deleting.


def delete(world: GroupWorld, *group_ids: str) -> list[dict[str, ErrorCode]]:
    outcomes: list[dict[str, ErrorCode]] = []
    world.coordinator.delete_groups(group_ids, outcomes.append)
    return outcomes


def test_deletes_empty_groups_with_tombstones(world: GroupWorld) -> None:
    member = TestMember(world)
    stable_group(world, member)
    world.commit("g", {T0: 5, U0: 6}, generation=1, member_id=member.member_id)
    assert delete(world, "g", "unknown") == [
        {"g": ErrorCode.NON_EMPTY_GROUP, "unknown": delete_error_of_unknown(world)}
    ]
    member.leave()
    assert delete(world, "g") == [{"g": ErrorCode.NONE}]
    tombstones = [read_key(record.key or b"") for record in world.log.records(world.partition_of("g"))[-3:]]
    assert tombstones == [OffsetKey("g", T0), OffsetKey("g", U0), GroupKey("g")]
    assert delete(world, "g") == [{"g": ErrorCode.GROUP_ID_NOT_FOUND}]
    assert world.coordinator.describe_group("g").group_state == "Dead"
    world.resign("g")
    world.elect("g", 2)
    assert world.offset("g", T0) is None


def delete_error_of_unknown(world: GroupWorld) -> ErrorCode:
    is_led = world.partition_of("unknown") == world.partition_of("g")
    return ErrorCode.GROUP_ID_NOT_FOUND if is_led else ErrorCode.NOT_COORDINATOR


def test_a_group_whose_tombstones_cannot_be_written_is_there_again(world: GroupWorld) -> None:
    world.commit("g", {T0: 5})
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert delete(world, "g") == [{"g": ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert world.offset("g", T0) == 5


def test_deleting_a_group_takes_a_commit_under_way_with_it(world: GroupWorld) -> None:
    world.log.holds_back = True
    world.commit("g", {T0: 5})
    outcome = delete(world, "g")
    assert outcome == []
    world.log.release()
    assert outcome == [{"g": ErrorCode.NONE}]
    world.resign("g")
    world.elect("g", 2)
    assert world.offset("g", T0) is None


def test_deletes_offsets_of_topics_that_are_not_consumed(world: GroupWorld) -> None:
    member = TestMember(world, topics=("t",))
    stable_group(world, member)
    world.commit("g", {T0: 5, U0: 6}, generation=1, member_id=member.member_id)
    outcomes: list[dict[TopicPartition, ErrorCode]] = []
    world.coordinator.delete_offsets("g", [T0, U0, T1], outcomes.append)
    subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert outcomes == [{T0: subscribed, U0: ErrorCode.NONE, T1: subscribed}]
    assert (world.offset("g", T0), world.offset("g", U0)) == (5, None)
    world.log.refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
    member.leave()
    world.coordinator.delete_offsets("g", [T0], outcomes.append)
    assert outcomes[-1] == {T0: ErrorCode.NOT_COORDINATOR}
    assert world.offset("g", T0) == 5


def test_deletes_no_offsets_of_members_that_are_no_consumers(world: GroupWorld) -> None:
    member = TestMember(world, protocol_type="connect")
    stable_group(world, member)
    with pytest.raises(KafkaError) as raised:
        world.coordinator.delete_offsets("g", [T0], print)
    assert code_of(raised) is ErrorCode.NON_EMPTY_GROUP
    world.elect("h")
    with pytest.raises(KafkaError) as raised:
        world.coordinator.delete_offsets("h", [T0], print)
    assert code_of(raised) is ErrorCode.GROUP_ID_NOT_FOUND


def test_the_offsets_of_deleted_topics_go(world: GroupWorld) -> None:
    world.commit("g", {T0: 5, U0: 6})
    world.coordinator.on_partitions_deleted([U0, TopicPartition("v", 0)])
    assert (world.offset("g", T0), world.offset("g", U0)) == (5, None)
    world.coordinator.on_partitions_deleted([T0])
    assert world.coordinator.describe_group("g").group_state == "Dead"  # nothing is left of it


# Expiring.


def test_offsets_of_a_lone_consumer_expire_since_their_commit(world: GroupWorld) -> None:
    world.commit("g", {T0: 5})
    world.pass_ms(WEEK_MS - DAY_MS)
    world.commit("g", {T1: 6})
    world.pass_ms(DAY_MS + 1_000_000)
    assert (world.offset("g", T0), world.offset("g", T1)) == (None, 6)
    world.pass_ms(WEEK_MS)
    assert world.coordinator.list_groups((), ())[1] == []


def test_offsets_of_an_empty_group_expire_since_it_became_empty(world: GroupWorld) -> None:
    member = TestMember(world, session_ms=1_800_000)
    stable_group(world, member)
    world.commit("g", {T0: 5}, generation=1, member_id=member.member_id)
    for _ in range(2 * WEEK_MS // 1_000_000):
        world.pass_ms(1_000_000)
        member.heartbeat()
    assert world.offset("g", T0) == 5
    member.leave()
    world.pass_ms(WEEK_MS - 1_000_000)
    assert world.offset("g", T0) == 5
    world.pass_ms(2_000_000)
    assert world.offset("g", T0) is None
    tombstones = world.log.records(world.partition_of("g"))[-2:]
    assert [record.value for record in tombstones] == [None, None]


def test_a_stable_group_loses_offsets_of_topics_it_left(world: GroupWorld) -> None:
    member = TestMember(world, topics=("t",), session_ms=1_800_000)
    stable_group(world, member)
    world.commit("g", {T0: 5, U0: 6}, generation=1, member_id=member.member_id)
    for _ in range(WEEK_MS // 1_000_000 + 2):
        world.pass_ms(1_000_000)
        member.heartbeat()
    assert (world.offset("g", T0), world.offset("g", U0)) == (5, None)


def test_an_expiration_of_its_own_counts(world: GroupWorld) -> None:
    world.commit("g", {T0: 5}, expire_timestamp_ms=world.clock.time_ms() + 1000)
    record = world.log.records(world.partition_of("g"))[-1]
    assert read_offset_value(record.value or b"").expire_timestamp_ms == world.clock.time_ms() + 1000
    assert (record.value or b"")[:2] == b"\0\1"
    world.pass_ms(700_000)
    assert world.offset("g", T0) is None


def test_what_cannot_be_written_off_expires_the_next_time(world: GroupWorld) -> None:
    world.commit("g", {T0: 5})
    world.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    world.pass_ms(WEEK_MS + 1_000_000)
    assert world.offset("g", T0) == 5
    world.log.refusal = None
    world.pass_ms(700_000)
    assert world.offset("g", T0) is None


# Asking.


def test_lists_groups_by_state_and_type(world: GroupWorld) -> None:
    world.elect("h")
    stable_group(world, TestMember(world))
    world.commit("h", {T0: 1})

    def listed(*states: str, types: tuple[str, ...] = ()) -> set[str]:
        error, groups = world.coordinator.list_groups(states, types)
        assert error is ErrorCode.NONE
        return {group.group_id for group in groups}

    assert listed() == {"g", "h"}
    assert listed("stable") == listed("STABLE", "Dead") == {"g"}
    assert listed("Empty", types=("Classic",)) == {"h"}
    assert listed(types=("consumer",)) == set()


def test_describes_a_stable_group_and_less_of_others(world: GroupWorld) -> None:
    member = TestMember(world, instance_id="i")
    stable_group(world, member)
    described = world.coordinator.describe_group("g")
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (shown,) = described.members
    assert (shown.member_id, shown.group_instance_id, shown.client_id) == (member.member_id, "i", "client")
    assert (shown.client_host, shown.member_assignment) == ("/10.0.0.1", member.member_id.encode())
    assert shown.member_metadata == member.metadata()
    TestMember(world).join_fully()
    described = world.coordinator.describe_group("g")
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [each.member_assignment for each in described.members] == [b"", b""]


def test_a_group_without_members_and_offsets_goes_when_kafkas_does(world: GroupWorld) -> None:
    newcomer = TestMember(world)
    newcomer.join()  # gets a member id, and has not joined yet
    assert world.group("g").members.pending
    outcomes: list[Codes] = []
    world.coordinator.delete_offsets("g", [T0], outcomes.append)
    assert outcomes == [{T0: ErrorCode.NONE}]
    assert world.coordinator.describe_group("g").group_state == "Dead"
    newcomer.join()
    assert newcomer.join_error is ErrorCode.UNKNOWN_MEMBER_ID

    newcomer.join()
    world.commit("g", {U0: 1})
    world.coordinator.on_partitions_deleted([TopicPartition("elsewhere", 0)])
    assert world.offset("g", U0) == 1
    world.coordinator.on_partitions_deleted([U0])
    assert world.coordinator.describe_group("g").group_state == "Dead"
    newcomer.join(member_id="")
    world.coordinator.on_partitions_deleted([TopicPartition("elsewhere", 0)])
    assert world.coordinator.describe_group("g").group_state == "Dead"
