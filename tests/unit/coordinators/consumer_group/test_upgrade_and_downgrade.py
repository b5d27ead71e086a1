"""Groups go over from one protocol to the other while they have members: nobody owns what another member owns, and all
is owned in the end. The cases are those of Apache Kafka's GroupMetadataManagerTest, and what it leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.coordinators.consumer_group import conversion
from barnabas.coordinators.consumer_group.classic_protocol import read_assignment
from barnabas.coordinators.consumer_group.states import ConsumerGroupState, MemberState
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.consumer_group.classic_consumer import CLASSIC_SESSION_MS, ClassicConsumer
from tests.unit.coordinators.consumer_group.consumer_world import (
    SESSION_MS,
    ConsumerWorld,
    NextMember,
    owners,
)
from tests.unit.coordinators.consumer_group.mixed_groups import (
    BEAT_MS,
    durable,
    is_classic,
    loaded,
    owned_in_all,
    settle,
)
from tests.unit.coordinators.memory_log import base_offset


@pytest.fixture
def world() -> Iterator[ConsumerWorld]:
    """Both ways, and no delay of first rebalances."""
    world = ConsumerWorld(migration_policy="bidirectional", initial_rebalance_delay_ms=0)
    yield world
    world.close()


# Upgrade.


@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "cooperative"])
def test_a_classic_group_goes_on_as_a_consumer_group_when_such_a_consumer_joins(
    world: ConsumerWorld, *, is_eager: bool
) -> None:
    a, b = ClassicConsumer(world, is_eager=is_eager), ClassicConsumer(world, is_eager=is_eager)
    settle(a, b)
    generation = a.epoch
    assert is_classic(world)
    assert (len(a.numbers()), len(b.numbers())) == (3, 3)
    c = NextMember(world)
    c.join()
    assert (c.error, c.epoch, c.numbers()) == (ErrorCode.NONE, generation + 1, [])
    assert durable(world) == loaded(world)
    settle(a, b, c)
    assert world.hosted().state is ConsumerGroupState.STABLE
    assert [len(member.numbers()) for member in (a, b, c)] == [2, 2, 2]
    assert {member.member_id for member in (a, b)} == {
        member.member_id for member in world.hosted().core.members.values() if member.classic is not None
    }
    assert not [what for member in (a, b) for what in member.errors if what[1] is not ErrorCode.REBALANCE_IN_PROGRESS]


def test_members_keep_their_partitions_until_they_join_again(world: ConsumerWorld) -> None:
    a = ClassicConsumer(world)
    settle(a)
    c = NextMember(world)
    for _ in range(5):
        c.beat() if c.epoch else c.join()
    assert (len(a.numbers()), c.numbers()) == (6, [])
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    settle(a, c)
    assert (len(a.numbers()), len(c.numbers())) == (3, 3)


@pytest.mark.parametrize("policy", ["disabled", "downgrade", "DISABLED"])
def test_no_group_is_upgraded_where_that_is_switched_off(policy: str) -> None:
    world = ConsumerWorld(migration_policy=policy, initial_rebalance_delay_ms=0)
    a, c = ClassicConsumer(world), NextMember(world)
    settle(a)
    c.join()
    assert c.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "the online upgrade is disabled" in (c.answers[-1].error_message or "")
    assert a.heartbeat() is ErrorCode.NONE
    world.close()


def test_a_group_of_others_than_consumers_is_not_upgraded(world: ConsumerWorld) -> None:
    a, c = ClassicConsumer(world, protocol_type="connect"), NextMember(world)
    settle(a)
    c.join()
    assert c.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert is_classic(world)


def test_a_group_whose_members_say_something_else_than_consumers_is_not_upgraded(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, c = ClassicConsumer(world), NextMember(world)
    monkeypatch.setattr(a, "_subscription", lambda: b"\x00\x01\x7f\xff")
    a.join()
    world.pass_ms(100)
    c.join()
    assert c.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert is_classic(world)


def test_a_group_of_which_two_members_have_a_partition_is_not_upgraded(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = ClassicConsumer(world), ClassicConsumer(world)
    everything = frozenset(("t", number) for number in range(6))
    for member in (a, b):
        monkeypatch.setattr(
            member, "_assign", lambda joined: dict.fromkeys((each.member_id for each in joined.members), everything)
        )
    for _ in range(6):
        for member in (a, b):
            member.beat()
            world.pass_ms(BEAT_MS)
    c = NextMember(world)
    c.join()
    assert c.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert is_classic(world)


def test_a_group_that_is_larger_than_consumer_groups_may_be_is_not_upgraded() -> None:
    world = ConsumerWorld(migration_policy="upgrade", initial_rebalance_delay_ms=0, consumer_size_max=1)
    a, b, c = ClassicConsumer(world), ClassicConsumer(world), NextMember(world)
    settle(a, b)
    c.join()
    assert c.error is ErrorCode.GROUP_ID_NOT_FOUND
    world.close()


def test_what_is_parked_in_a_rebalance_is_told_to_join_again(world: ConsumerWorld) -> None:
    """And nobody has lost his member id."""
    a, b = ClassicConsumer(world), ClassicConsumer(world)
    settle(a)
    b.beat()  # parked until `a` joins again
    assert b.is_waiting
    c = NextMember(world)
    c.join()
    assert b.errors == [("join", ErrorCode.REBALANCE_IN_PROGRESS)]
    before = a.member_id
    settle(a, b, c)
    assert a.member_id == before
    assert [len(member.numbers()) for member in (a, b, c)] == [2, 2, 2]


def test_a_sync_that_waits_for_the_leader_is_told_to_join_again(world: ConsumerWorld) -> None:
    a, b = ClassicConsumer(world), ClassicConsumer(world)
    settle(a, b)
    leader, follower = (a, b) if a.joined[-1].leader == a.member_id else (b, a)
    leader.topics = frozenset({"t", "u"})
    leader.needs_join = True
    leader.beat()
    world.log.holds_back = True  # so that what the leader assigns is not committed
    follower.beat()
    assert follower.is_waiting
    c = NextMember(world)
    c.join(waits=False)
    world.pass_ms(10)
    assert follower.errors[-1] == ("sync", ErrorCode.REBALANCE_IN_PROGRESS)
    world.log.holds_back = False
    world.log.release(ErrorCode.NONE)
    settle(a, b, c)
    assert owned_in_all(a, b, c) == 6


def test_a_member_that_gives_up_after_a_rebalance_keeps_that_until_it_joins_again(world: ConsumerWorld) -> None:
    """Its last assignment is without it, and nobody else has it: its subscription says so."""
    a, b = ClassicConsumer(world), ClassicConsumer(world)
    settle(a)
    b.beat()
    a.beat()
    world.pass_ms(10)
    assert (len(a.numbers()), len(b.numbers()), a.needs_join) == (3, 0, True)
    member = world.group("g").members.get(a.member_id)
    assert member is not None
    c = NextMember(world)
    c.join()
    members = world.hosted().core.members.values()
    assert [each.assigned for each in members if each.assigned] == [{world.topics.id("t"): frozenset(range(6))}]
    settle(a, b, c)
    assert [len(member.numbers()) for member in (a, b, c)] == [2, 2, 2]


def test_nothing_is_changed_where_the_log_refuses_the_upgrade(world: ConsumerWorld) -> None:
    a, c = ClassicConsumer(world), NextMember(world)
    settle(a)
    for refusal, told in (
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ):
        world.log.refusal = refusal
        c.join()
        assert c.error is told
        assert is_classic(world)
        assert a.heartbeat() is ErrorCode.NONE
    world.log.refusal = None
    settle(a, c)
    assert owned_in_all(a, c) == 6


@pytest.mark.parametrize("is_lost", [True, False], ids=["without the record", "with the record"])
def test_a_coordinator_that_falls_in_an_upgrade_is_followed_by_one_that_has_it_or_not(
    world: ConsumerWorld, *, is_lost: bool
) -> None:
    a, b = ClassicConsumer(world), ClassicConsumer(world)
    settle(a, b)
    world.log.holds_back = True
    c = NextMember(world)
    assert c.join() is None
    world.resign("g")
    if is_lost:
        partition = world.partition_of("g")
        committed = world.log.high_watermarks.get(partition, 0)
        while world.log.end_offsets[partition] > committed:
            world.log.end_offsets[partition] = base_offset(world.log.batches[partition].pop())
    world.log.holds_back = False
    world.log.held.clear()
    world.elect("g", 2)
    assert is_classic(world) is is_lost
    settle(a, b, c, rounds=12 if is_lost else SESSION_MS // BEAT_MS + 6)  # its first process is a member, too
    assert [len(member.numbers()) for member in (a, b, c)] == [2, 2, 2]


# Downgrade.


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_a_group_goes_on_as_a_classic_one_when_the_last_consumer_of_the_protocol_is_gone(
    world: ConsumerWorld, how: str
) -> None:
    a, b, c = ClassicConsumer(world), ClassicConsumer(world), NextMember(world)
    settle(a, b, c)
    epoch = world.hosted().core.epoch
    ids = a.member_id, b.member_id
    if how == "leaves":
        c.owned = {}
        answer = c.beat(epoch=-1, owned=None)
        assert answer is not None
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, -1)
    else:
        for _ in range(SESSION_MS // BEAT_MS + 1):
            world.pass_ms(BEAT_MS)
            a.heartbeat()
            b.heartbeat()
        c.owned = {}
    assert is_classic(world)
    group = world.group("g")
    assert (group.state, group.generation) == (GroupState.PREPARING_REBALANCE, epoch)
    assert durable(world) == loaded(world)
    settle(a, b)
    assert (a.member_id, b.member_id) == ids
    assert [len(member.numbers()) for member in (a, b)] == [3, 3]
    assert group.state is GroupState.STABLE


def test_no_group_is_downgraded_where_that_is_switched_off() -> None:
    world = ConsumerWorld(migration_policy="upgrade", initial_rebalance_delay_ms=0)
    a, c = ClassicConsumer(world), NextMember(world)
    settle(a, c)
    c.owned = {}
    assert c.leave() is ErrorCode.NONE
    assert not is_classic(world)
    settle(a)
    assert len(a.numbers()) == 6
    world.close()


def test_a_group_larger_than_classic_ones_may_be_stays_what_it_is() -> None:
    world = ConsumerWorld(migration_policy="bidirectional", initial_rebalance_delay_ms=0, size_max=1)
    c, a, b = NextMember(world), ClassicConsumer(world), ClassicConsumer(world)
    settle(c, a, b)
    c.owned = {}
    c.leave()
    assert not is_classic(world)
    settle(a, b)
    assert owned_in_all(a, b) == 6
    world.close()


def test_a_group_whose_record_is_too_large_stays_what_it_is(world: ConsumerWorld) -> None:
    a, c = ClassicConsumer(world), NextMember(world)
    settle(a, c)
    append, sizes = world.log.start_append, []

    def refuse_first(*arguments: Any, **named: Any) -> int:
        sizes.append(len(arguments[2]))
        if len(sizes) == 1:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE)
        return append(*arguments, **named)

    world.log.start_append = refuse_first  # type: ignore[method-assign]
    c.owned = {}
    assert c.leave() is ErrorCode.NONE
    assert len(sizes) >= 2
    assert not is_classic(world)
    settle(a)
    assert len(a.numbers()) == 6


def test_a_new_coordinator_of_a_downgraded_group_has_its_members_join_again(world: ConsumerWorld) -> None:
    """Nobody has what the one owned that left, until they have."""
    a, b, c = ClassicConsumer(world), ClassicConsumer(world), NextMember(world)
    settle(a, b, c)
    c.owned = {}
    c.leave()
    world.fail_over()
    assert world.group("g").state is GroupState.PREPARING_REBALANCE
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    settle(a, b)
    assert [len(member.numbers()) for member in (a, b)] == [3, 3]


def test_members_that_do_not_come_back_after_a_downgrade_are_removed(world: ConsumerWorld) -> None:
    a, b, c = ClassicConsumer(world), ClassicConsumer(world), NextMember(world)
    settle(a, b, c)
    c.owned = {}
    c.leave()
    world.fail_over()
    b.owned = {}
    settle(a, rounds=CLASSIC_SESSION_MS // BEAT_MS + 3)
    assert len(a.numbers()) == 6


def test_a_downgraded_group_takes_whom_its_members_understand(world: ConsumerWorld) -> None:
    """Though the group's record has one protocol."""
    protocols = ("range", "roundrobin")
    a, b = ClassicConsumer(world, protocols=protocols), ClassicConsumer(world, protocols=protocols)
    c = NextMember(world)
    settle(a, b, c)
    c.owned = {}
    c.leave()
    assert is_classic(world)
    d = ClassicConsumer(world, protocols=("roundrobin",))
    settle(d, a, b)
    assert {code for _, code in d.errors} <= {ErrorCode.REBALANCE_IN_PROGRESS}
    assert [len(member.numbers()) for member in (a, b, d)] == [2, 2, 2]


@pytest.mark.parametrize("way", ["upgrade", "downgrade"])
def test_a_member_that_joined_before_and_syncs_after_is_told_to_join_again(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Though a group of the other kind would have told it another protocol: clients take that for the end."""
    protocols = ("range", "roundrobin")
    a, d = ClassicConsumer(world, protocols=protocols), ClassicConsumer(world, protocols=protocols)
    b = ClassicConsumer(world, protocols=protocols[::-1], is_eager=True)
    c = NextMember(world)
    settle(a, d, b, *([c] if way == "downgrade" else []))
    joined: list[Any] = []
    monkeypatch.setattr(b, "_sync", joined.append)
    for member in (a, d, b):
        member.needs_join = True
        member.beat()
    world.pass_ms(10)
    monkeypatch.undo()
    if way == "upgrade":
        c.join()
    else:
        c.owned = {}
        c.leave()
    assert is_classic(world) is (way == "downgrade")
    b._sync(joined[0])
    world.pass_ms(10)
    assert b.errors[-1] == ("sync", ErrorCode.REBALANCE_IN_PROGRESS)
    settle(a, d, b)
    assert {code for _, code in b.errors} == {ErrorCode.REBALANCE_IN_PROGRESS}


def test_a_join_that_waits_for_an_assignment_is_told_to_come_again_after_a_downgrade(world: ConsumerWorld) -> None:
    a, c = ClassicConsumer(world), NextMember(world)
    settle(a, c)
    b = ClassicConsumer(world)
    b.beat()
    c.owned = {}
    c.beat(epoch=-1, owned=None, waits=False)
    world.pass_ms(10)
    assert is_classic(world)
    assert b.errors == [("join", ErrorCode.REBALANCE_IN_PROGRESS)]
    settle(a, b)
    assert owned_in_all(a, b) == 6


def test_a_group_goes_to_and_fro(world: ConsumerWorld) -> None:
    """Before its members have joined again, too: what one of them has yet to give up nobody else gets."""
    a, b = ClassicConsumer(world), ClassicConsumer(world)
    settle(a, b)
    for _ in range(3):
        c = NextMember(world)
        c.join()
        a.beat()
        world.pass_ms(10)
        c.beat()
        c.owned = {}
        c.leave()
        assert is_classic(world)
        d = NextMember(world)
        d.join()
        for _ in range(4):
            d.beat()
            owners(a, b, d)  # type: ignore[arg-type]
        settle(a, b, d)
        assert [len(member.numbers()) for member in (a, b, d)] == [2, 2, 2]
        d.owned = {}
        d.leave()
        settle(a, b)
        assert [len(member.numbers()) for member in (a, b)] == [3, 3]


def test_offsets_stay_through_both(world: ConsumerWorld) -> None:
    a, c = ClassicConsumer(world), NextMember(world)
    partition = TopicPartition("t", 0)
    settle(a)
    world.commit("g", {partition: 7}, generation=a.epoch, member_id=a.member_id)
    settle(a, c)
    assert world.offset("g", partition) == 7
    world.commit("g", {partition: 8}, generation=c.epoch, member_id=c.member_id)
    c.owned = {}
    c.leave()
    settle(a)
    assert world.offset("g", partition) == 8
    world.fail_over()
    assert world.offset("g", partition) == 8


def test_a_member_between_states_is_recorded_with_all_that_it_may_own(world: ConsumerWorld) -> None:
    a, c = ClassicConsumer(world), NextMember(world)
    settle(a)
    c.join()
    a.heartbeat()
    a.join()
    world.pass_ms(10)
    assert world.hosted().core.members[a.member_id].state is MemberState.UNREVOKED_PARTITIONS
    c.owned = {}
    c.leave()
    recorded = world.group("g").recorded
    assert recorded is not None
    assert recorded.leader is None
    (member,) = recorded.members
    assert read_assignment(member.assignment, world.topics).partitions == {world.topics.id("t"): frozenset(range(6))}


def test_a_group_of_more_members_than_one_turn_takes_stays_what_it_is(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = ClassicConsumer(world), ClassicConsumer(world), NextMember(world)
    settle(a, b)
    monkeypatch.setattr(conversion, "CONVERTED_MEMBERS_MAX", 1)
    c.join()
    assert c.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert is_classic(world)
    monkeypatch.undo()
    settle(a, b, c)
    monkeypatch.setattr(conversion, "CONVERTED_MEMBERS_MAX", 1)
    c.owned = {}
    c.leave()
    assert not is_classic(world)
    settle(a, b)
    assert owned_in_all(a, b) == 6


@pytest.mark.parametrize("what", ["partitions", "topics", "protocols", "bytes"])
def test_a_group_that_has_more_than_one_turn_takes_stays_what_it_is(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    topics, protocols = {"t"}, ["range"]
    if what == "partitions":
        world.make_topic("t", 110)
    elif what == "topics":
        topics |= {f"absent-{number}" for number in range(100)}
    elif what == "protocols":
        protocols += [f"p{number}" for number in range(100)]
    else:
        topics.add("x" * 100 * 256)
    a, c = ClassicConsumer(world, *topics, protocols=tuple(protocols)), NextMember(world)
    settle(a)
    monkeypatch.setattr(conversion, "CONVERTED_NAMES_MAX", 120)
    monkeypatch.setattr(conversion, "CONVERTED_BYTES_MAX", 20_000)
    c.join()
    assert c.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert is_classic(world)
    monkeypatch.undo()
    settle(a, c)
    monkeypatch.setattr(conversion, "CONVERTED_NAMES_MAX", 70 if what == "partitions" else 120)
    monkeypatch.setattr(conversion, "CONVERTED_BYTES_MAX", 20_000)
    c.owned = {}
    c.leave()
    assert not is_classic(world)
    settle(a)
    assert owned_in_all(a) == world.topics.counts()["t"]


def test_small_members_go_over_as_many_as_there_may_be(world: ConsumerWorld) -> None:
    """What they say and have leaves room for all of them."""
    count = conversion.CONVERTED_MEMBERS_MAX
    world.make_topic("t", count * 10)
    members = [ClassicConsumer(world, protocols=("range", "cooperative-sticky"), is_eager=True) for _ in range(count)]
    for _ in range(2):
        for member in members:
            if not member.is_waiting:
                member.beat()
        world.pass_ms(100)
    assert sum(len(member.numbers()) for member in members) == count * 10
    c = NextMember(world)
    c.join()
    assert not is_classic(world)
    c.leave()
    assert is_classic(world)
