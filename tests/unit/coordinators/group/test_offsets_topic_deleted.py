"""`__consumer_offsets` is deleted while groups are active, and made anew: leader epochs begin from 0 again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group

T0 = TopicPartition("t", 0)
OLD = Uuid(bytes(15) + b"\x01")
NEW = Uuid(bytes(15) + b"\x02")


@pytest.fixture
def world() -> Iterator[GroupWorld]:
    made = GroupWorld()
    yield made
    made.close()


def elect(world: GroupWorld, epoch: int, topic_id: Uuid) -> None:
    partition = world.partition_of("g")
    world.log.leaders[partition] = epoch
    world.coordinator.on_elected(partition.partition, epoch, topic_id)
    world.pass_ms(10)


def code_of_offset(world: GroupWorld) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        world.offset("g", T0)
    return raised.value.code


def test_a_group_works_again_under_the_new_topic_in_a_lower_epoch(world: GroupWorld) -> None:
    elect(world, 7, OLD)
    leader, other = TestMember(world), TestMember(world)
    stable_group(world, leader)
    world.commit("g", {T0: 5}, generation=leader.generation, member_id=leader.member_id)
    other.join_fully()  # waits for the rebalance
    partition = world.partition_of("g")
    world.coordinator.on_deleted(partition.partition)
    assert other.join_error is ErrorCode.NOT_COORDINATOR
    assert leader.heartbeat() is ErrorCode.NOT_COORDINATOR
    assert code_of_offset(world) is ErrorCode.NOT_COORDINATOR
    world.log.delete(partition)

    elect(world, 0, NEW)
    assert world.offset("g", T0) is None
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    again = TestMember(world)
    stable_group(world, again)
    outcome = world.commit("g", {T0: 9}, generation=again.generation, member_id=again.member_id)
    assert outcome == [{T0: ErrorCode.NONE}]


def test_a_topic_with_another_id_takes_the_place_of_one_whose_deletion_was_missed(world: GroupWorld) -> None:
    elect(world, 7, OLD)
    world.commit("g", {T0: 5})
    world.log.delete(world.partition_of("g"))
    elect(world, 0, NEW)
    assert world.offset("g", T0) is None
    world.commit("g", {T0: 6})
    elect(world, 3, NEW)
    world.coordinator.on_resigned(world.partition_of("g").partition, 2, NEW)
    assert world.offset("g", T0) == 6


def test_a_broker_that_followed_in_the_old_topic_leads_in_the_new_one(world: GroupWorld) -> None:
    partition = world.partition_of("g").partition
    world.coordinator.on_resigned(partition, 9, OLD)
    world.coordinator.on_resigned(partition, None)  # as its replica is stopped, before it is deleted
    elect(world, 0, NEW)
    assert world.offset("g", T0) is None


def test_an_election_of_the_same_topic_that_is_over_changes_nothing(world: GroupWorld) -> None:
    elect(world, 7, OLD)
    partition = world.partition_of("g").partition
    world.coordinator.on_resigned(partition, 8, OLD)
    world.coordinator.on_elected(partition, 7, OLD)
    assert code_of_offset(world) is ErrorCode.NOT_COORDINATOR


def test_nothing_is_placed_while_it_is_not_known_how_many_partitions_there_are(world: GroupWorld) -> None:
    elect(world, 1, OLD)
    world.commit("g", {T0: 5})
    before = world.partition_of("h").partition
    world.coordinator.place(None)
    assert world.offset("g", T0) == 5
    with pytest.raises(KafkaError) as raised:
        world.commit("h", {T0: 5})
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.coordinator.place(7)
    assert (before, world.partition_of("h").partition) == (4, 6)
