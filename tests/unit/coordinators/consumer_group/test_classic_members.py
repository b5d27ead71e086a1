"""Members of consumer groups that use the classic protocol, as Apache Kafka's GroupMetadataManagerTest has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.wire.codec import encode_prefixed
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ConsumerProtocolSubscription, HeartbeatRequest, LeaveGroupRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.consumer_group.classic_consumer import CLASSIC_SESSION_MS, ClassicConsumer
from tests.unit.coordinators.consumer_group.consumer_world import (
    HEARTBEAT_MS,
    REBALANCE_MS,
    ConsumerWorld,
    NextMember,
)
from tests.unit.coordinators.consumer_group.mixed_groups import (
    durable,
    is_classic,
    loaded,
    owned_in_all,
    settle,
)


@pytest.fixture
def world() -> Iterator[ConsumerWorld]:
    """Both ways, and no delay of first rebalances."""
    world = ConsumerWorld(migration_policy="bidirectional", initial_rebalance_delay_ms=0)
    yield world
    world.close()


def test_a_classic_member_joins_a_consumer_group_under_any_policy() -> None:
    world = ConsumerWorld(migration_policy="disabled")
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c)
    settle(c, a)
    assert a.joined[0].error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert (len(c.numbers()), len(a.numbers())) == (3, 3)
    assert a.joined[-1].leader == ""
    world.close()


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4], ids=lambda version: f"version {version}")
def test_a_member_is_told_its_assignment_in_the_version_of_its_subscription(world: ConsumerWorld, version: int) -> None:
    c = NextMember(world)
    a = ClassicConsumer(world, subscription_version=min(version, 3), is_eager=version == 0)
    if version > 3:
        made = a._subscription
        a._subscription = lambda: b"\x00\x04" + made()[2:] + b"\x01\x02"  # type: ignore[method-assign]
    settle(c, a)
    assert len(a.numbers()) == 3
    assert a.synced[-1].assignment[:2] == bytes([0, min(version, 3)])


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00",
        b"\x00\x01\x00\x00",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x7f\xff\xff\xff",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x01" + bytes(1 << 20),
    ],
    ids=lambda garbage: f"{garbage[:6].hex()} of {len(garbage)}",
)
def test_a_member_that_says_something_else_than_consumers_is_refused(world: ConsumerWorld, garbage: bytes) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c)
    a._subscription = lambda: garbage  # type: ignore[method-assign]
    a.join()
    assert a.errors == [("join", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    assert len(world.hosted().core.members) == 1


def test_a_member_whose_protocols_are_too_large_together_is_refused(world: ConsumerWorld) -> None:
    """They are one record, which is written in one turn."""
    c, a = NextMember(world), ClassicConsumer(world, protocols=("range", "roundrobin", "sticky"))
    settle(c)
    half = encode_prefixed(ConsumerProtocolSubscription(topics=["t"], user_data=bytes(1 << 19)), 0)
    a._subscription = lambda: half  # type: ignore[method-assign]
    a.join()
    assert a.errors == [("join", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    a.protocols = ("range",)
    a.beat()
    world.pass_ms(10)
    assert len(world.hosted().core.members) == 2


def test_a_member_needs_a_protocol_that_all_classic_members_have(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world, protocols=("range", "roundrobin"))
    settle(c, a)
    other = ClassicConsumer(world, protocols=("sticky",))
    other.beat()
    assert other.errors == [("join", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    connect = ClassicConsumer(world, protocol_type="connect")
    connect.beat()
    assert connect.errors == [("join", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    third = ClassicConsumer(world, protocols=("roundrobin",))
    settle(c, a, third)
    assert owned_in_all(c, a, third) == 6


def test_a_full_group_takes_no_classic_member() -> None:
    world = ConsumerWorld(consumer_size_max=1)
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c)
    a.beat()
    assert a.errors == [("join", ErrorCode.GROUP_MAX_SIZE_REACHED)]
    world.close()


def test_who_is_no_classic_member_is_told_so(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    stranger = ClassicConsumer(world)
    for member_id, epoch, expected in (
        ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (c.member_id, c.epoch, ErrorCode.UNKNOWN_MEMBER_ID),
        (a.member_id, a.epoch + 1, ErrorCode.ILLEGAL_GENERATION),
        (a.member_id, a.epoch - 1, ErrorCode.ILLEGAL_GENERATION),
    ):
        stranger.member_id, stranger.epoch = member_id, epoch
        assert stranger.heartbeat() is expected
        stranger.member_id, stranger.epoch = member_id, epoch
        stranger._sync(a.joined[-1])
        assert stranger.errors[-1] == ("sync", expected)


def test_a_sync_names_the_protocol_that_it_was_told(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    joined = a.joined[-1]
    joined.protocol_name = "roundrobin"
    a._sync(joined)
    assert a.errors[-1] == ("sync", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def test_a_member_that_joined_before_another_bump_is_told_by_its_sync(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c)
    monkeypatch.setattr(a, "_sync", lambda _joined: None)
    a.beat()
    world.pass_ms(10)
    monkeypatch.undo()
    world.make_topic("u", 1)
    c.topics = frozenset({"t", "u"})
    c.beat(is_full=True)
    a._sync(a.joined[-1])
    assert a.errors == [("sync", ErrorCode.REBALANCE_IN_PROGRESS)]
    settle(c, a)
    assert owned_in_all(c, a) == 7


def test_a_classic_member_lives_by_its_own_session(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    assert a.heartbeat() is ErrorCode.NONE
    for _ in range(3):
        world.pass_ms(CLASSIC_SESSION_MS - 100)
        assert a.heartbeat() is ErrorCode.NONE
        c.beat()
    world.pass_ms(CLASSIC_SESSION_MS + 100)
    c.beat()
    assert world.hosted().core.members.keys() == {c.member_id}
    assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(c.numbers()) == 6


def test_members_that_nobody_leads_are_told_of_topics_that_change() -> None:
    """Java's consumer looks at its topics where it leads."""
    world = ConsumerWorld(migration_policy="upgrade", initial_rebalance_delay_ms=0)
    c, a, b = NextMember(world), ClassicConsumer(world, "t", "u"), ClassicConsumer(world, is_eager=True)
    settle(c, a, b)
    c.owned = {}
    c.leave()
    settle(a, b)
    assert owned_in_all(a, b) == 6
    world.make_topic("t", 8)
    world.make_topic("u", 2)
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert a.heartbeat() is ErrorCode.NONE
    world.log.refusal = None
    settle(a, b)
    assert owned_in_all(a, b) == 10
    world.delete_topic("u")
    epoch = world.hosted().core.epoch
    settle(a, b)
    assert (owned_in_all(a, b), world.hosted().core.epoch) == (8, epoch + 1)
    assert durable(world) == loaded(world)
    world.close()


@pytest.mark.parametrize("misses", ["join", "sync"])
def test_a_member_that_only_beats_is_fenced_after_its_rebalance_timeout(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, misses: str
) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c)
    if misses == "sync":
        monkeypatch.setattr(a, "_sync", lambda _joined: None)
        a.beat()
        world.pass_ms(10)
    else:
        settle(c, a)
        c.topics = frozenset({"t", "u"})
        c.beat(is_full=True)
    for _ in range(REBALANCE_MS // HEARTBEAT_MS):
        told = world.coordinator.heartbeat(_heartbeat(a))
        assert told is ErrorCode.REBALANCE_IN_PROGRESS or (misses == "sync" and told is ErrorCode.NONE)
        world.pass_ms(HEARTBEAT_MS)
        c.beat()
    world.pass_ms(10)
    assert world.hosted().core.members.keys() == {c.member_id}
    assert any(f"failed to {misses}" in line for line in world.lines)


def test_a_member_that_goes_over_to_the_consumer_protocol_is_waited_for_no_more(world: ConsumerWorld) -> None:
    """In its JoinGroup or SyncGroup, which do not come."""
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    c.topics = frozenset({"t", "u"})
    c.beat(is_full=True)
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    over = NextMember(world)
    over.member_id, over.epoch, over.owned = a.member_id, a.epoch, dict(a.owned)
    for _ in range(REBALANCE_MS // HEARTBEAT_MS + 2):
        for member in (over, c):
            member.beat()
        world.pass_ms(HEARTBEAT_MS)
    assert world.hosted().core.members.keys() == {c.member_id, over.member_id}
    assert owned_in_all(c, over) == 6


def _heartbeat(member: ClassicConsumer) -> Any:
    return HeartbeatRequest(group_id="g", generation_id=member.epoch, member_id=member.member_id)


def test_members_commit_and_are_fenced_by_the_generation_that_is_their_epoch(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    partition = TopicPartition("t", 0)
    assert world.commit("g", {partition: 5}, generation=a.epoch, member_id=a.member_id)[0][partition] is ErrorCode.NONE
    for generation, code in ((a.epoch - 1, ErrorCode.ILLEGAL_GENERATION), (a.epoch + 1, ErrorCode.ILLEGAL_GENERATION)):
        with pytest.raises(KafkaError) as failure:
            world.commit("g", {partition: 6}, generation=generation, member_id=a.member_id)
        assert failure.value.code is code
    with pytest.raises(KafkaError) as failure:
        world.commit("g", {partition: 6}, generation=c.epoch - 1, member_id=c.member_id)
    assert failure.value.code is ErrorCode.STALE_MEMBER_EPOCH
    assert world.offset("g", partition) == 5


def test_a_member_that_was_fenced_does_not_come_back_with_what_it_had(world: ConsumerWorld) -> None:
    """It would commit what it has done since, when it gives that up, behind whoever has it now."""
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    fenced, partitions = a.member_id, a.numbers()
    world.pass_ms(CLASSIC_SESSION_MS + 100)
    c.beat()
    c.beat()
    assert set(partitions) <= set(c.numbers())
    a.join()
    assert a.errors[-1] == ("join", ErrorCode.UNKNOWN_MEMBER_ID)
    assert a.numbers() == []
    assert world.hosted().core.members.keys() == {c.member_id}
    settle(c, a)
    assert a.member_id != fenced
    assert owned_in_all(c, a) == 6


def test_a_member_leaves_with_others_and_each_is_told(world: ConsumerWorld) -> None:
    c, a, b = NextMember(world), ClassicConsumer(world), ClassicConsumer(world, instance_id="one")
    settle(c, a, b)
    identity = LeaveGroupRequest.MemberIdentity
    epoch = world.hosted().core.epoch
    outcomes = world.coordinator.leave_group(
        "g",
        [
            identity(member_id=a.member_id),
            identity(member_id="", group_instance_id="one"),
            identity(member_id="nobody"),
            identity(member_id=c.member_id),
            identity(member_id=a.member_id, group_instance_id="one"),
            identity(member_id="", group_instance_id="two"),
        ],
    )
    assert [outcome.error_code for outcome in outcomes] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert outcomes[1].member_id == b.member_id
    assert world.hosted().core.epoch == epoch + 1
    settle(c)
    assert len(c.numbers()) == 6
    assert durable(world) == loaded(world)


def test_who_leaves_is_told_when_that_is_committed(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    world.log.holds_back = True
    assert a.leave() is ErrorCode.NONE
    known: list[ErrorCode] = []
    world.coordinator.when_known("g", known.append)
    assert known == []
    world.log.holds_back = False
    world.log.release(ErrorCode.NONE)
    assert known == [ErrorCode.NONE]


def test_a_static_member_comes_back_and_the_former_process_is_fenced(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world, instance_id="one")
    settle(c, a)
    before = a.numbers()
    back = ClassicConsumer(world, instance_id="one")
    epoch = world.hosted().core.epoch
    back.beat()
    world.pass_ms(10)
    assert (back.numbers(), world.hosted().core.epoch) == (before, epoch)
    assert back.member_id != a.member_id
    assert a.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert durable(world) == loaded(world)


def test_a_static_name_in_use_by_a_classic_member_is_not_given_to_a_consumer(world: ConsumerWorld) -> None:
    a = ClassicConsumer(world, instance_id="one")
    settle(a)
    c = NextMember(world, instance_id="one")
    c.join()
    assert c.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert is_classic(world), "what is refused changes nothing"
    a.leave(by_name=True)
    answer = c.join()
    assert answer is not None
    assert answer.error_code == ErrorCode.NONE


def test_a_member_that_loses_its_coordinator_goes_on_at_the_next_one(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    world.fail_over()
    assert a.heartbeat() is ErrorCode.NONE
    world.pass_ms(CLASSIC_SESSION_MS + 100)
    world.pass_ms(10)
    assert world.hosted().core.members.keys() == {c.member_id}
