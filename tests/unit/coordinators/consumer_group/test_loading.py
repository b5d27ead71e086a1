"""`barnabas.coordinators.consumer_group.loading`: groups from what is left of their log; members of other builds."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace

import pytest

from barnabas.coordinators.consumer_group import coordinator as coordinator_module
from barnabas.coordinators.consumer_group import heartbeats
from barnabas.coordinators.consumer_group.committed import Loaded
from barnabas.coordinators.consumer_group.loading import LastRecords, keep, restored
from barnabas.coordinators.consumer_group.member import ConsumerMember
from barnabas.coordinators.consumer_group.reconciliation import reconciled
from barnabas.coordinators.consumer_group.records import (
    ConsumerGroupKey,
    Current,
    GroupEpoch,
    MemberSaid,
    RecordKind,
    Target,
)
from barnabas.coordinators.consumer_group.states import MemberState
from barnabas.coordinators.consumer_group.timeouts import MemberTimeouts
from barnabas.coordinators.group.effect_runner import GroupHandle
from barnabas.coordinators.group.effects import TimerKey
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import STEP_ELEMENTS, at_once
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.coordinators.consumer_group.consumer_world import (
    HEARTBEAT_MS,
    SESSION_MS,
    ConsumerWorld,
    NextMember,
    settle,
)

LOGGER = logging.getLogger("tests")
TOPIC = Uuid(bytes(15) + b"\1")


def records_of(*members: str, owned: dict[str, set[int]]) -> LastRecords:
    """Of a group in epoch 3 with these members, and what is said to be owned."""
    records: dict[str, LastRecords] = {}
    keep(records, ConsumerGroupKey(RecordKind.GROUP, "g"), GroupEpoch(3))
    for name in members:
        keep(records, ConsumerGroupKey(RecordKind.MEMBER, "g", name), MemberSaid(ConsumerMember(name)))
    for name, numbers in owned.items():
        member = ConsumerMember(name, epoch=3, assigned={TOPIC: frozenset(numbers)})
        keep(records, ConsumerGroupKey(RecordKind.CURRENT, "g", name), Current(member))
        target = Target(name, {TOPIC: frozenset(numbers)})
        keep(records, ConsumerGroupKey(RecordKind.TARGET, "g", name), target)
    return records["g"]


def test_records_without_the_epoch_of_their_group_are_no_group(caplog: pytest.LogCaptureFixture) -> None:
    records = records_of("a", owned={"a": {0}})
    del records[RecordKind.GROUP]
    assert at_once(restored("g", records, None, Loaded(), LOGGER)) is None
    assert "Records of group g without its epoch are ignored" in caplog.text


def test_what_is_left_of_a_member_that_is_gone_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    hosted = at_once(restored("g", records_of("a", owned={"a": {0}, "gone": {1}}), None, Loaded(), LOGGER))
    assert hosted is not None
    assert hosted.core.members.keys() == hosted.core.targets.keys() == {"a"}
    assert hosted.core.members["a"].assigned == {TOPIC: {0}}
    assert "A record of group g is left out" in caplog.text


def test_two_members_that_own_one_partition_are_not_both_believed(caplog: pytest.LogCaptureFixture) -> None:
    hosted = at_once(restored("g", records_of("a", "b", owned={"a": {0, 1}, "b": {1}}), None, Loaded(), LOGGER))
    assert hosted is not None
    owned = [member.assigned.get(TOPIC, frozenset()) for member in hosted.core.members.values()]
    assert owned == [{0, 1}, frozenset()]
    assert hosted.core.members["b"].epoch == 0, "it is fenced by its epoch"
    assert "A record of group g is left out" in caplog.text


def test_a_large_group_is_restored_in_pieces() -> None:
    names = [f"m{number}" for number in range(STEP_ELEMENTS)]
    steps = restored(
        "g", records_of(*names, owned={name: {at} for at, name in enumerate(names)}), None, Loaded(), LOGGER
    )
    assert sum(1 for _ in steps) == 4, "a member is one element, its target too, and what it owns two"


@pytest.mark.parametrize("reported", [None, {TOPIC: frozenset({0})}])
def test_a_member_in_a_state_of_a_newer_broker_is_fenced_until_it_owns_nothing(
    reported: dict[Uuid, frozenset[int]] | None,
) -> None:
    member = ConsumerMember("a", epoch=2, state=MemberState.of(3), assigned={TOPIC: frozenset({0})})
    target = {TOPIC: frozenset({1})}
    with pytest.raises(KafkaError) as refused:
        reconciled(member, 3, target, lambda _topic, _number: False, reported)
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    joined = dataclasses.replace(member, assigned={})
    after = reconciled(joined, 3, target, lambda _topic, _number: False, {})
    assert (after.state, after.epoch, after.assigned) == (MemberState.STABLE, 3, target)


@pytest.mark.parametrize(
    ("topics", "owned", "is_taken"),
    [
        (heartbeats.SUBSCRIBED_TOPICS_MAX, [], True),
        (heartbeats.SUBSCRIBED_TOPICS_MAX + 1, [], False),
        (1, [heartbeats.OWNED_PARTITIONS_MAX], True),
        (1, [heartbeats.OWNED_PARTITIONS_MAX, 1], False),
        (1, [0] * (heartbeats.OWNED_PARTITIONS_MAX + 1), False),
    ],
)
def test_a_heartbeat_names_no_more_than_a_turn_takes(topics: int, owned: list[int], is_taken: bool) -> None:
    entries = [SimpleNamespace(partitions=[0] * count) for count in owned]
    if is_taken:
        heartbeats.check_size(range(topics), entries)
        return
    with pytest.raises(KafkaError) as refused:
        heartbeats.check_size(range(topics), entries)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_an_assignor_that_fails_is_told_to_who_waits_and_tried_again(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object) -> None:
        raise ZeroDivisionError

    member = NextMember(world)
    with monkeypatch.context() as patched:
        patched.setattr(coordinator_module, "assigned_anew", fails)
        member.join()
        assert [member.error] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert not world.hosted().is_assigning
    member.join()
    assert [member.error] == [ErrorCode.NONE]
    # The member of the first answer, whose id nobody knows, has its share until its session is over.
    for _ in range(SESSION_MS // HEARTBEAT_MS + 1):
        world.pass_ms(HEARTBEAT_MS)
        member.beat()
    assert member.numbers() == [0, 1, 2, 3, 4, 5]


def test_a_member_that_cannot_be_fenced_does_not_keep_others_from_it(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [NextMember(world) for _ in range(3)]
    settle(*members)
    fence = MemberTimeouts._fence_if_overdue
    tried: list[TimerKey] = []

    def fails_first(self: MemberTimeouts, handle: GroupHandle, key: TimerKey) -> None:
        tried.append(key)
        if len(tried) == 1:
            raise ZeroDivisionError
        fence(self, handle, key)

    monkeypatch.setattr(MemberTimeouts, "_fence_if_overdue", fails_first)
    world.pass_ms(SESSION_MS + HEARTBEAT_MS)
    assert len(tried) == 3
    assert len(world.hosted().core.members) == 1
