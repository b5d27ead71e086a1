"""Leadership that comes and goes in any turn of loading, giving up, expiry and deletion, while members join and
commit.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from barnabas.coordinators.shard import ShardState
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember
from tests.unit.coordinators.group.turn_counting import group_name, partition_number, run_turns, seen, write_offsets

GROUPS, OFFSETS, MEMBERS = 30, 40, 12


def check(world: GroupWorld) -> None:
    """No group is here that is not in an active shard, and what is counted is there."""
    coordinator = world.coordinator
    shards = coordinator._runtime._shards
    contents = [shard.content for shard in shards.values() if shard.state is ShardState.ACTIVE]
    handle = {group_id: each for content in contents for group_id, each in content.items()}
    assert handle == coordinator._groups
    assert all(each.shard is shards[0] for each in handle.values())


@pytest.mark.parametrize("seed", range(15))
def test_nothing_of_an_older_epoch_is_left(world: GroupWorld, seed: int) -> None:
    chance = random.Random(seed)
    write_offsets(world, GROUPS, OFFSETS)
    coordinator = world.coordinator
    partition = world.partition_of(group_name(0))
    topic_id = Uuid(bytes([1] * 16))
    epoch = 0
    leads = False
    members = [TestMember(world, group_name(number % 4)) for number in range(MEMBERS)]
    joins = Counter[int]()
    for count in range(120):
        run_turns(world, chance.choice((0, 0, 1, 2, 5)))
        check(world)
        group = group_name(chance.randrange(GROUPS))
        some = [partition_number(number) for number in chance.sample(range(OFFSETS), 5)]
        world.log.holds_back = chance.random() < 0.5
        try:
            match chance.randrange(10):
                case 0 | 1:
                    epoch += 1
                    leads = True
                    world.log.leaders[partition] = epoch
                    if chance.random() < 0.2:
                        world.log.read_errors.append(
                            chance.choice((KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), ValueError("broken")))
                        )
                    coordinator.on_elected(0, epoch, topic_id)
                case 2:
                    epoch += 1
                    leads = False
                    world.log.leaders.pop(partition, None)
                    coordinator.on_resigned(0, chance.choice((epoch, None)), topic_id)
                case 3 if chance.random() < 0.2:
                    leads = False
                    world.log.delete(partition)
                    coordinator.on_deleted(0)
                    topic_id = Uuid(bytes([count + 2] * 16))
                    epoch = 0
                case 4:
                    coordinator.on_partitions_deleted(some)
                case 5:
                    world.pass_ms(chance.choice((1, 1_500, 12_000)))
                case 6:
                    world.log.release()
                case 7:
                    world.commit(group, dict.fromkeys(some, 100 + count))
                case _:
                    number = chance.randrange(MEMBERS)
                    member = members[number]
                    if joins[number] == len(member.joined):
                        joins[number] += 1
                        member.join()
        except KafkaError:
            pass
    world.log.holds_back = False
    world.log.release()
    world.log.read_errors.clear()
    if not leads:
        epoch += 1
        world.log.leaders[partition] = epoch
        coordinator.on_elected(0, epoch, topic_id)
    world.pass_ms(60_000)
    check(world)
    shown = seen(world, GROUPS, OFFSETS)
    epoch += 1
    coordinator.on_resigned(0, epoch, topic_id)
    run_turns(world, 50)
    assert coordinator._effects.heartbeats_awaited == coordinator._effects.rebalances_awaited == 0
    assert [len(member.joined) for member in members] == [joins[number] for number in range(MEMBERS)]
    world.log.leaders[partition] = epoch + 1
    coordinator.on_elected(0, epoch + 1, topic_id)
    world.pass_ms(100)
    assert seen(world, GROUPS, OFFSETS) == shown
