"""What a coordinator makes of the records of another, and what it does when it leads no more."""

from __future__ import annotations

import pytest

from barnabas.coordinators.group.records import CommittedOffset, group_key, offset_key, offset_value
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.codec import encode_prefixed
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import GroupMetadataValue, OffsetCommitKey
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group

pytestmark = pytest.mark.usefixtures("leads_g")

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def write(world: GroupWorld, *records: tuple[bytes, bytes | None], producer_id: int = -1) -> int:
    is_transactional = producer_id >= 0
    builder = RecordBatchBuilder(
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
        is_transactional=is_transactional,
    )
    for key, value in records:
        builder.append(world.clock.time_ms(), key, value)
    return world.log.write(world.partition_of("g"), builder.build())


def decide(world: GroupWorld, producer_id: int, decision: ControlRecordType) -> None:
    marker = EndTransactionMarker(decision, 0)
    batch = end_transaction_batch(marker, timestamp_ms=1, producer_id=producer_id, producer_epoch=0)
    world.log.write(world.partition_of("g"), batch)


def committed(partition: TopicPartition, offset: int) -> tuple[bytes, bytes | None]:
    return offset_key("g", partition), offset_value(CommittedOffset(offset, -1, "", 1), 3)


def reload(world: GroupWorld, epoch: int = 5) -> None:
    world.resign("g")
    world.elect("g", epoch)


def test_members_go_on_with_another_coordinator(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a"), TestMember(world)
    stable_group(world, first, second)
    world.commit("g", {T0: 5, T1: 6}, generation=1, member_id=first.member_id, metadata="m")
    described = world.coordinator.describe_group("g")
    timestamp_ms = world.group("g").state_timestamp_ms
    world.resign("g")
    assert first.heartbeat() is ErrorCode.NOT_COORDINATOR
    world.elect("g", 2)
    assert world.coordinator.describe_group("g") == described
    assert world.group("g").subscribed_topics == frozenset({"t"})
    assert abs(world.group("g").state_timestamp_ms - timestamp_ms) < 100
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    second.sync()
    assert second.synced[-1].assignment == second.member_id.encode()
    assert (world.offset("g", T0), world.offset("g", T1)) == (5, 6)
    first.heartbeat()
    world.pass_ms(10_500)  # the sessions run here too
    assert world.group("g").state is GroupState.EMPTY


def test_parked_members_are_sent_to_the_next_coordinator(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    stable_group(world, first)
    second.join_fully()
    world.resign("g")
    assert second.join_error is ErrorCode.NOT_COORDINATOR
    world.elect("g", 2)
    third, fourth = TestMember(world), TestMember(world)
    first.join()
    third.join_fully()
    fourth.join_fully()
    first.join()
    follower = third if not third.is_leader else fourth
    world.pass_ms(40_000)
    follower.sync()
    world.resign("g")
    assert follower.sync_error in (ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_group_that_cannot_be_given_up_keeps_no_other_from_it(world: GroupWorld) -> None:
    def fail(_response: object) -> None:
        raise RuntimeError("unforeseen")

    first, second = TestMember(world), TestMember(world)
    stable_group(world, first)
    second.join_fully()  # parked, as a rebalance begins
    member = world.group("g").members.get(second.member_id)
    assert member is not None
    world.group("g").members.park_join(member, fail)
    world.log.holds_back = True
    outcome = world.commit("g", {T0: 5}, generation=1, member_id=first.member_id)
    world.resign("g")
    assert outcome == [{T0: ErrorCode.NOT_COORDINATOR}]
    assert first.heartbeat() is ErrorCode.NOT_COORDINATOR


def test_commits_under_way_are_answered_when_the_coordinator_goes(world: GroupWorld) -> None:
    world.log.holds_back = True
    outcome = world.commit("g", {T0: 5})
    world.resign("g")
    assert outcome == [{T0: ErrorCode.NOT_COORDINATOR}]
    world.log.release()  # too late
    assert len(outcome) == 1


def test_while_loading_members_are_put_off(world: GroupWorld) -> None:
    member = TestMember(world)
    stable_group(world, member)
    world.log.reading.clear()
    world.resign("g")
    world.elect("g", 2)
    assert member.heartbeat() is ErrorCode.NONE
    member.sync()
    assert member.sync_error is ErrorCode.REBALANCE_IN_PROGRESS
    member.join()
    assert member.join_error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaError) as raised:
        world.commit("g", {T0: 1}, generation=1, member_id=member.member_id)
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.coordinator.list_groups((), ())[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.log.reading.set()
    world.pass_ms(10)
    assert member.heartbeat() is ErrorCode.NONE
    assert world.coordinator.list_groups((), ())[0] is ErrorCode.NONE


def test_a_load_that_fails_is_tried_again(world: GroupWorld) -> None:
    world.commit("g", {T0: 5})
    world.log.read_errors = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), RuntimeError("disk")]
    reload(world)
    with pytest.raises(KafkaError) as raised:
        world.offset("g", T0)
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.pass_ms(3100)
    assert world.offset("g", T0) == 5


def test_an_election_that_is_over_changes_nothing(world: GroupWorld) -> None:
    world.commit("g", {T0: 5})
    partition = world.partition_of("g").partition
    world.elect("g", 7)  # the same leader in a later epoch
    assert world.log.reads == 0
    world.coordinator.on_resigned(partition, 6)
    assert world.offset("g", T0) == 5
    world.coordinator.on_resigned(partition, 8)
    world.coordinator.on_elected(partition, 7)
    with pytest.raises(KafkaError) as raised:
        world.offset("g", T0)
    assert raised.value.code is ErrorCode.NOT_COORDINATOR


def test_loads_in_chunks_of_the_buffer() -> None:
    world = GroupWorld(load_buffer_bytes=500)
    world.elect("g")
    for offset in range(100):
        world.commit("g", {T0: offset, TopicPartition("t", offset): offset})
    reload(world)
    assert world.log.reads > 20
    assert world.offset("g", T0) == 99
    assert world.offset("g", TopicPartition("t", 50)) == 50
    world.close()


def test_transactions_count_when_they_are_decided(world: GroupWorld) -> None:
    write(world, committed(T0, 1))
    write(world, committed(T0, 2), producer_id=10)
    write(world, committed(T1, 3), producer_id=11)
    reload(world)
    assert (world.offset("g", T0), world.offset("g", T1)) == (1, None)
    for partition in (T0, T1):
        (fetched,) = world.coordinator.fetch_offsets("g", [partition], require_stable=True)
        assert fetched.error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    decide(world, 10, ControlRecordType.COMMIT)
    decide(world, 11, ControlRecordType.ABORT)
    reload(world, 6)
    assert (world.offset("g", T0), world.offset("g", T1)) == (2, None)
    (fetched,) = world.coordinator.fetch_offsets("g", [T1], require_stable=True)
    assert fetched.error is ErrorCode.NONE


def test_what_was_written_last_counts_over_what_was_decided_last(world: GroupWorld) -> None:
    write(world, committed(T0, 2), producer_id=10)
    write(world, committed(T0, 1))
    decide(world, 10, ControlRecordType.COMMIT)
    reload(world)
    assert world.offset("g", T0) == 1


def test_reads_records_of_every_age(world: GroupWorld) -> None:
    oldest = encode_prefixed(OffsetCommitKey(group="g", topic="t", partition=0), 0)
    write(world, (oldest, offset_value(CommittedOffset(1, -1, "", 1), 0)))
    write(world, committed(T0, 2))
    write(world, (offset_key("g", T1), offset_value(CommittedOffset(3, -1, "", 1), 2)))
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        members=[
            GroupMetadataValue.MemberMetadata(member_id="m", client_id="c", client_host="/h", session_timeout=7000)
        ],
    )
    write(world, (group_key("g"), encode_prefixed(value, 0)))
    reload(world)
    assert (world.offset("g", T0), world.offset("g", T1)) == (2, 3)
    member = world.group("g").members.get("m")
    assert member is not None
    assert member.rebalance_timeout_ms == 7000
    assert world.group("g").generation == 4


def test_passes_over_what_it_cannot_read(world: GroupWorld) -> None:
    write(
        world,
        (b"\0\x03\0\0\0\1g", b"\0\0\0"),  # of a group of the consumer protocol
        (b"\0", b""),
        (offset_key("g", T1), b"\0\x09"),
        (b"\0\1\0\xff", b"\0\0"),
        committed(T0, 4),
    )
    reload(world)
    assert (world.offset("g", T0), world.offset("g", T1)) == (4, None)
    assert sum("left out" in line or "ignored" in line for line in world.lines) == 4


def test_a_group_that_was_deleted_stays_deleted(world: GroupWorld) -> None:
    member = TestMember(world)
    stable_group(world, member)
    member.leave()
    write(world, (group_key("g"), None))
    reload(world)
    assert world.coordinator.describe_group("g").group_state == "Dead"


def test_a_group_that_is_too_large_by_now_rebalances() -> None:
    world = GroupWorld()
    world.elect("g")
    members = [TestMember(world) for _ in range(3)]
    stable_group(world, *members)
    smaller = GroupWorld(size_max=2)
    smaller.log = world.log
    smaller.coordinator._runtime._log = world.log
    smaller.elect("g")
    for member in members:
        member.world = smaller
    assert members[0].heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    for member in members:
        member.join()
    assert [member.join_error for member in members].count(ErrorCode.GROUP_MAX_SIZE_REACHED) == 1
    for each in (smaller, world):
        each.close()


def test_after_the_stop_nothing_is_coordinated(world: GroupWorld) -> None:
    first = TestMember(world)
    first.join_fully()
    world.loop.run_until_complete(world.coordinator.stop())
    assert first.join_error is ErrorCode.NOT_COORDINATOR
    assert first.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.list_groups((), ())[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("decision", [ControlRecordType.COMMIT, ControlRecordType.ABORT])
def test_a_marker_that_comes_to_the_new_coordinator_decides(world: GroupWorld, decision: ControlRecordType) -> None:
    """And what was shown then is shown by who loads the log."""
    world.commit("g", {T0: 5, T1: 6})
    write(world, committed(T0, 50), producer_id=7)
    write(world, committed(T1, 60), producer_id=8)
    reload(world)
    assert world.group("g").offsets.is_unstable(T0)
    decide(world, 7, decision)
    done: list[None] = []
    world.coordinator.complete_transaction(
        world.partition_of("g").partition,
        7,
        lambda: done.append(None),
        is_commit=decision is ControlRecordType.COMMIT,
    )
    expected = 50 if decision is ControlRecordType.COMMIT else 5
    assert (done, world.offset("g", T0), world.offset("g", T1)) == ([None], expected, 6)
    assert not world.group("g").offsets.is_unstable(T0)
    assert world.group("g").offsets.is_unstable(T1)
    reload(world, 6)
    assert (world.offset("g", T0), world.offset("g", T1)) == (expected, 6)


def test_a_marker_for_groups_that_are_not_here_is_answered_at_once(world: GroupWorld) -> None:
    world.resign("g")
    done: list[None] = []
    world.coordinator.complete_transaction(
        world.partition_of("g").partition, 7, lambda: done.append(None), is_commit=True
    )
    assert done == [None]
