"""DeleteGroups and OffsetDelete of very many offsets: a bounded piece in each turn of the loop, in batches that the
topic takes, answered when all are committed; the state is that of the log, whatever comes between two pieces.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from barnabas.coordinators.group import commits, deletions
from barnabas.coordinators.group.commits import Codes
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember
from tests.unit.coordinators.group.turn_counting import (
    ALLOWED_PER_TURN,
    TurnCount,
    elect,
    group_name,
    load,
    partition_number,
    run_turns,
)

MANY = 2_800
GROUPS, OFFSETS = 3, 600
FIRST = group_name(0)
PARTITIONS = [partition_number(number) for number in range(MANY)]


def seen(world: GroupWorld, group_id: str = FIRST) -> dict[TopicPartition, int]:
    fetched = world.coordinator.fetch_offsets(group_id, None, require_stable=False)
    return {each.partition: each.committed.offset for each in fetched if each.committed is not None}


def seen_anew(world: GroupWorld, epoch: int, group_id: str = FIRST) -> dict[TopicPartition, int]:
    """After another coordinator has replayed the log."""
    world.coordinator.on_resigned(0, epoch)
    elect(world, epoch + 1)
    return seen(world, group_id)


def delete_groups(world: GroupWorld, *group_ids: str) -> list[dict[str, ErrorCode]]:
    outcomes: list[dict[str, ErrorCode]] = []
    world.coordinator.delete_groups(group_ids, outcomes.append)
    return outcomes


def delete_offsets(world: GroupWorld, partitions: list[TopicPartition], group_id: str = FIRST) -> list[Codes]:
    outcomes: list[Codes] = []
    world.coordinator.delete_offsets(group_id, partitions, outcomes.append)
    return outcomes


@pytest.mark.parametrize(("groups", "offsets"), [(1, MANY), (700, 4)])
def test_groups_are_deleted_in_pieces(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch, groups: int, offsets: int
) -> None:
    load(world, groups, offsets)
    world.log.batch_bytes_max = 70_000
    written = TurnCount(world.loop, monkeypatch, deletions, "offset_key")
    outcomes = delete_groups(world, *(group_name(number) for number in range(groups)), "unknown")
    assert outcomes == []
    assert 0 < written.total <= ALLOWED_PER_TURN
    assert seen(world) == {}
    world.pass_ms(10)
    expected = dict.fromkeys((group_name(number) for number in range(groups)), ErrorCode.NONE)
    assert outcomes == [expected | {"unknown": ErrorCode.GROUP_ID_NOT_FOUND}]
    assert written.total == groups * offsets
    assert written.most_in_a_turn <= ALLOWED_PER_TURN
    assert seen_anew(world, 2) == {}


def test_offsets_are_deleted_in_pieces(world: GroupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    load(world, 1, MANY)
    world.log.batch_bytes_max = 70_000
    written = TurnCount(world.loop, monkeypatch, deletions, "offset_key")
    outcomes = delete_offsets(world, PARTITIONS[1:])
    assert outcomes == []
    world.pass_ms(10)
    assert outcomes == [dict.fromkeys(PARTITIONS[1:], ErrorCode.NONE)]
    assert (written.total, written.most_in_a_turn <= ALLOWED_PER_TURN) == (MANY - 1, True)
    assert seen(world) == seen_anew(world, 2) == {PARTITIONS[0]: 1}


def test_batches_are_as_small_as_the_topic_wants_them(world: GroupWorld) -> None:
    load(world, 2, 600)
    world.log.batch_bytes_max = 500
    assert delete_offsets(world, PARTITIONS[:100]) == [dict.fromkeys(PARTITIONS[:100], ErrorCode.NONE)]
    outcomes = delete_groups(world, FIRST)
    world.coordinator.on_partitions_deleted(PARTITIONS[:599])
    world.pass_ms(10)
    assert outcomes == [{FIRST: ErrorCode.NONE}]
    assert seen(world, group_name(1)) == {PARTITIONS[599]: 1}
    assert (seen_anew(world, 2), seen(world, group_name(1))) == ({}, {PARTITIONS[599]: 1})


def test_they_are_answered_when_all_is_committed(world: GroupWorld) -> None:
    load(world, 2, MANY)
    world.log.holds_back = True
    of_group, of_offsets = delete_groups(world, FIRST), delete_offsets(world, PARTITIONS, group_name(1))
    world.pass_ms(10)
    assert len(world.log.held) == 2 * 11
    last = world.log.held.pop()
    world.log.release()
    assert len(of_group) + len(of_offsets) == 1
    last(ErrorCode.REQUEST_TIMED_OUT)
    codes = {*of_group[0].values(), *of_offsets[0].values()}
    assert codes == {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_nobody_makes_a_group_whose_tombstones_are_still_to_come(world: GroupWorld) -> None:
    load(world, 1, MANY)
    outcomes = delete_groups(world, FIRST)
    with pytest.raises(KafkaError) as raised:
        world.commit(FIRST, {PARTITIONS[-1]: 7})
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    member = TestMember(world, FIRST)
    member.join()
    assert member.join_error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert delete_groups(world, FIRST) == [{FIRST: ErrorCode.GROUP_ID_NOT_FOUND}]
    world.pass_ms(10)
    assert outcomes == [{FIRST: ErrorCode.NONE}]
    world.commit(FIRST, {PARTITIONS[-1]: 8})
    assert seen(world) == seen_anew(world, 2) == {PARTITIONS[-1]: 8}


def test_a_group_that_cannot_be_deleted_to_its_end_is_there_with_what_is_left(world: GroupWorld) -> None:
    load(world, 1, MANY)
    outcomes = delete_groups(world, FIRST)
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_ms(10)
    world.log.refusal = None
    assert outcomes == [{FIRST: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    left = seen(world)
    assert 0 < len(left) < MANY
    assert left == seen_anew(world, 2)
    outcomes = delete_groups(world, FIRST)
    world.pass_ms(10)
    assert (outcomes, seen_anew(world, 4)) == ([{FIRST: ErrorCode.NONE}], {})


@pytest.mark.parametrize("deletes_group", [False, True])
def test_a_commit_under_way_outlives_a_deletion_that_is_refused(world: GroupWorld, deletes_group: bool) -> None:
    load(world, 1, 1)
    world.log.holds_back = True
    outcome = world.commit(FIRST, {PARTITIONS[0]: 7})
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    if deletes_group:
        assert delete_groups(world, FIRST) == [{FIRST: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    else:
        assert delete_offsets(world, PARTITIONS[:1]) == [{PARTITIONS[0]: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    world.log.refusal = None
    world.log.release()
    assert outcome == [{PARTITIONS[0]: ErrorCode.NONE}]
    assert seen(world) == seen_anew(world, 2) == {PARTITIONS[0]: 7}


def test_offsets_of_a_topic_that_is_subscribed_to_meanwhile_stay(world: GroupWorld) -> None:
    load(world, 1, MANY)
    outcomes = delete_offsets(world, PARTITIONS)
    group = world.group(FIRST)
    group.protocol_type, group.subscribed_topics = "consumer", frozenset({PARTITIONS[-1].topic})
    member = TestMember(world, FIRST)
    member.join_fully()
    world.pass_ms(10)
    subscribed = {each for each in PARTITIONS if each.topic == PARTITIONS[-1].topic}
    errors = {each for each, code in outcomes[0].items() if code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert errors == subscribed == set(seen(world))


@pytest.mark.parametrize("seed", range(40))
def test_the_state_is_that_of_the_log_whatever_comes_between(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Deletions, commits, refusals, replicas that lag and a change of coordinators, in any turn. When all is quiet,
    what is seen is what a replay of the log sees; nothing of before a deletion that was answered with NONE is seen
    again, and no commit is lost that came after all deletions were answered.
    """
    chance = random.Random(seed)
    load(world, GROUPS, OFFSETS)
    monkeypatch.setattr(commits, "_APPLIED_PER_STEP", 100)
    epoch = 1
    asked: list[tuple[int, str, list[TopicPartition] | None, list[Any]]] = []
    for count in range(2, chance.randrange(4, 40)):
        run_turns(world, chance.randrange(4))
        world.log.holds_back = chance.random() < 0.3
        if not world.log.holds_back:
            world.log.release()
        world.log.refusal = chance.choice((None, None, None, ErrorCode.NOT_ENOUGH_REPLICAS))
        world.log.batch_bytes_max = chance.choice((None, None, 2_000))
        group_id = group_name(chance.randrange(GROUPS))
        some = chance.sample(PARTITIONS[:OFFSETS], chance.choice((1, 5, OFFSETS)))
        action = chance.choice(("commit", "commit", "commit", "group", "offsets", "resign"))
        if action == "commit":
            with contextlib.suppress(KafkaError):  # the group is being deleted
                world.commit(group_id, dict.fromkeys(some, count))
        elif action == "group":
            asked.append((count, group_id, None, delete_groups(world, group_id)))
        elif action == "offsets":
            with contextlib.suppress(KafkaError):  # there is no such group
                asked.append((count, group_id, some, delete_offsets(world, some, group_id)))
        elif chance.random() < 0.3:
            world.coordinator.on_resigned(0, epoch + 1)
            run_turns(world, chance.randrange(3))
            epoch += 2
            elect(world, epoch)
    world.log.refusal, world.log.holds_back, world.log.batch_bytes_max = None, False, None
    world.log.release()
    world.pass_ms(10)
    last = 1_000
    world.commit(FIRST, {PARTITIONS[0]: last})
    before = [seen(world, group_name(number)) for number in range(GROUPS)]
    assert before[0][PARTITIONS[0]] == last
    for count, group_id, partitions, outcomes in asked:
        (outcome,) = outcomes
        there = seen(world, group_id)
        for key, code in outcome.items():
            if code is ErrorCode.NONE:
                gone = PARTITIONS[:OFFSETS] if partitions is None else [key]
                assert all(there.get(partition, last) > count for partition in gone)
    world.coordinator.on_resigned(0, epoch + 1)
    elect(world, epoch + 2)
    assert [seen(world, group_name(number)) for number in range(GROUPS)] == before
