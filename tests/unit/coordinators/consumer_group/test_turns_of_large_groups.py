"""Groups of a thousand members and ten thousand partitions: a bounded piece of work in each turn of the loop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from barnabas.coordinators.consumer_group import coordinator, loading, targets
from barnabas.coordinators.consumer_group.heartbeats import RACKS_RECORDED_MAX, SUBSCRIBED_TOPICS_MAX
from barnabas.coordinators.consumer_group.records import RecordKind, Tombstone, encoded
from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from barnabas.coordinators.consumer_group.topics import TopicFacts
from barnabas.coordinators.group.loading import GroupLoader
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import STEP_ELEMENTS
from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.consumer_group.consumer_world import (
    SESSION_MS,
    ConsumerWorld,
    FakeTopics,
    NextMember,
    owners,
)
from tests.unit.coordinators.group.turn_counting import TurnCount, run_turns

MEMBERS = 300
PARTITIONS = 3_000
ALLOWED_PER_TURN = 2 * coordinator._MEMBERS_PER_STEP
ALLOWED_BYTES_PER_TURN = 2 * 64 * STEP_ELEMENTS


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_many_who_join_share_assignments_and_go_on_in_pieces(
    world: ConsumerWorld, assignor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_topic("t", PARTITIONS)
    answered = TurnCount(world.loop, monkeypatch, coordinator.ConsumerGroups, "reconcile")
    made = []
    assigned_anew = targets.assigned_anew

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return assigned_anew(*arguments)

    monkeypatch.setattr(coordinator, "assigned_anew", counted)
    members = [NextMember(world, assignor=assignor) for _ in range(MEMBERS)]
    for member in members:
        member.join(waits=False)
    world.pass_ms(100)
    assert len(made) < MEMBERS / 10
    assert (answered.total, answered.most_in_a_turn <= ALLOWED_PER_TURN) == (MEMBERS, True)
    for _ in range(3):
        for member in members:
            member.beat(waits=False)
        world.pass_ms(10)
    assert len(owners(*members)) == PARTITIONS
    assert world.hosted().state is ConsumerGroupState.STABLE


def test_very_many_sessions_that_end_at_once_end_in_pieces(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_topic("t", PARTITIONS)
    for _ in range(MEMBERS):
        NextMember(world).join(waits=False)
    world.pass_ms(100)
    fenced = TurnCount(world.loop, monkeypatch, coordinator, "remove")
    world.pass_ms(SESSION_MS + 100)
    assert (fenced.total, fenced.most_in_a_turn <= ALLOWED_PER_TURN) == (MEMBERS, True)
    assert world.hosted().is_empty


def test_members_may_leave_while_their_assignment_is_made(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_LOOKED_AT_PER_STEP", 3)
    world.make_topic("t", 60)
    members = [NextMember(world, instance_id=f"i{number}") for number in range(12)]
    for member in members:
        member.join()
    gone, stays = members[3:6], members[6:]
    for member in stays:
        member.topics = frozenset({"t", "later"})
        member.beat(is_full=True, waits=False)
    run_turns(world, 4)
    assert world.hosted().is_assigning
    for member in gone:
        member.beat(epoch=-1, owned=None, waits=False)
        member.owned = {}
    world.pass_ms(10)
    back = NextMember(world, instance_id="i6")
    stays[0].leave(-2)
    back.join()
    world.pass_ms(10)
    for _ in range(6):
        for member in (*members[:3], *stays[1:], back):
            member.beat()
        world.pass_ms(10)
    assert len(owners(*members[:3], *stays[1:], back)) == 60
    assert set(world.hosted().core.targets) == set(world.hosted().core.members)
    world.fail_over()
    assert world.hosted().state is ConsumerGroupState.STABLE


def test_records_of_thousands_of_topics_are_read_in_turns_of_their_own(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"topic-{number:04d}" for number in range(2_000)]
    for name in names:
        world.topics.make(name, 1)
    members = [NextMember(world, *names) for _ in range(4)]
    for member in members:
        member.join(waits=False)
    world.pass_ms(100)
    assert len(owners(*members)) == len(names)
    sizes: list[int] = []
    bytes_by_turn: Counter[int] = Counter()
    apply = GroupLoader._apply

    def counted(self: GroupLoader, key: bytes, latest: Any, *others: Any) -> None:
        sizes.append(len(latest.value or b""))
        bytes_by_turn[world.loop.turns] += sizes[-1]
        apply(self, key, latest, *others)

    monkeypatch.setattr(GroupLoader, "_apply", counted)
    replayed = TurnCount(world.loop, monkeypatch, loading, "_replay")
    world.fail_over()
    assert sum(sizes) > 3 * max(sizes)
    assert max(bytes_by_turn.values()) <= max(sizes) + ALLOWED_BYTES_PER_TURN
    assert replayed.most_in_a_turn < replayed.total
    assert world.hosted().state is ConsumerGroupState.STABLE


def test_a_group_has_so_many_topics_and_no_more(world: ConsumerWorld) -> None:
    most = [f"topic-{number}" for number in range(SUBSCRIBED_TOPICS_MAX)]
    first, second = NextMember(world, *most), NextMember(world, "one more")
    first.join()
    second.join()
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    second.topics = frozenset(most[:1])
    second.join()
    assert (second.error, len(world.hosted().core.members)) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("partitions", [RACKS_RECORDED_MAX, RACKS_RECORDED_MAX + 1])
def test_racks_are_recorded_of_so_many_partitions_and_no_more(partitions: int) -> None:
    topics = FakeTopics(t=partitions)
    racks = tuple((number, ("here",)) for number in range(partitions))
    topics._facts["t"] = TopicFacts(Uuid(bytes(range(16))), "t", partitions, racks)
    world = ConsumerWorld(topics)
    member = NextMember(world)
    member.join()
    recorded = world.hosted().core.topics["t"]
    assert (recorded.partition_count, bool(recorded.racks)) == (partitions, partitions <= RACKS_RECORDED_MAX)
    epoch = member.epoch
    world.coordinator.topics_changed()
    member.beat()
    assert member.epoch == epoch  # nothing has changed
    world.close()


@pytest.mark.parametrize("groups", [50])
def test_what_a_group_costs_goes_with_it(world: ConsumerWorld, groups: int) -> None:
    """No group, session or timer of it stays when its members have left and it has nothing committed."""
    world.coordinator.place(1)
    world.elect("g", 2)
    members = [NextMember(world, group_id=f"group-{number}") for number in range(groups)]
    for member in members:
        member.join()
    assert world.coordinator._effects.heartbeats_awaited == groups
    for member in members:
        member.leave()
    world.pass_ms(world.settings.retention_check_interval_ms + 100)
    assert not world.coordinator._groups
    assert world.coordinator._effects.heartbeats_awaited == 0


def test_a_target_of_a_member_that_left_while_it_was_made_does_not_stay(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_LOOKED_AT_PER_STEP", 1)
    members = [NextMember(world) for _ in range(6)]
    for member in members:
        member.join()
    world.make_topic("t", 60)
    members[0].beat(waits=False)
    run_turns(world, 4)
    assert world.hosted().is_assigning
    members[-1].beat(epoch=-1, owned=None, waits=False)
    world.pass_ms(10)
    assert set(world.hosted().core.targets) == set(world.hosted().core.members)
    key = encoded("g", Tombstone(RecordKind.TARGET, members[-1].member_id))[0]
    values = [record.value for record in world.log.records(world.partition_of("g")) if record.key == key]
    assert [value is None for value in values[-3:]] == [True, False, True]


def test_a_target_is_made_written_and_followed_in_turns_of_their_own(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a while for a member of thousands of topics."""
    counts = [
        TurnCount(world.loop, monkeypatch, targets, "NewTarget"),
        TurnCount(world.loop, monkeypatch, coordinator, "batch_in_steps"),
        TurnCount(world.loop, monkeypatch, coordinator.ConsumerGroups, "reconcile"),
    ]
    NextMember(world).join()
    turns = [set(count.by_turn) for count in counts]
    assert [len(each) for each in turns] == [1, 1, 1]
    assert len(set.union(*turns)) == 3
