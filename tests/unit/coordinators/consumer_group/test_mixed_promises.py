"""What members of both kinds are told before and behind an upgrade or a downgrade, and how long they are waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.coordinators.group.effects import TimerKind
from barnabas.wire.codec import encode_prefixed
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ConsumerProtocolSubscription
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.consumer_group.classic_consumer import CLASSIC_SESSION_MS, ClassicConsumer
from tests.unit.coordinators.consumer_group.consumer_world import REBALANCE_MS, ConsumerWorld, NextMember
from tests.unit.coordinators.consumer_group.mixed_groups import BEAT_MS, is_classic, settle


@pytest.fixture
def world() -> Iterator[ConsumerWorld]:
    """Both ways, and no delay of first rebalances."""
    world = ConsumerWorld(migration_policy="bidirectional", initial_rebalance_delay_ms=0)
    yield world
    world.close()


def downgraded(world: ConsumerWorld) -> tuple[ClassicConsumer, ClassicConsumer]:
    """Two classic members, whose group became a classic one just now; one of them has been told to join again."""
    a, b, c = ClassicConsumer(world), ClassicConsumer(world), NextMember(world)
    settle(a, b, c)
    c.topics = frozenset({"t", "u"})
    c.beat(is_full=True)
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    c.owned = {}
    c.leave()
    assert is_classic(world)
    return a, b


def test_who_joins_and_who_synchronizes_is_told_when_that_is_committed(world: ConsumerWorld) -> None:
    c, a, b = NextMember(world), ClassicConsumer(world), ClassicConsumer(world)
    settle(c, a, b)
    before = len(b.joined)
    world.log.holds_back = True
    b.session_ms += 1_000  # which is recorded, and bumps no epoch
    b.join()
    world.pass_ms(10)
    a._sync(a.joined[-1])
    world.pass_ms(10)
    assert (a.is_waiting, b.is_waiting, len(b.joined)) == (True, True, before)
    world.log.holds_back = False
    world.log.release(ErrorCode.NONE)
    world.pass_ms(10)
    assert (a.is_waiting, b.is_waiting, len(b.joined)) == (False, False, before + 1)


def test_members_of_a_group_that_a_consumer_only_touched_commit_what_they_have_done(world: ConsumerWorld) -> None:
    """Its coming bumped the epoch, of which they have not heard."""
    a, b, c = ClassicConsumer(world), ClassicConsumer(world, is_eager=True), NextMember(world)
    settle(a, b)
    partition = TopicPartition("t", 0)
    for offset in (5, 6):
        before = a.epoch
        c.join()
        c.leave()
        assert is_classic(world)
        assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        codes = world.commit("g", {partition: offset}, generation=a.epoch, member_id=a.member_id)
        assert codes[0][partition] is ErrorCode.NONE
        world.fail_over(epoch=offset)
        settle(a, b)
        assert a.epoch > before
        assert world.offset("g", partition) == offset
    assert {code for member in (a, b) for _, code in member.errors} == {ErrorCode.REBALANCE_IN_PROGRESS}


def test_the_timers_of_a_consumer_group_end_with_it(world: ConsumerWorld) -> None:
    """Or they would fence members of the next one of its kind."""
    _, b = downgraded(world)
    timers = world.coordinator._groups["g"].timers
    assert {key.kind for key in timers if key.member_id == b.member_id} == {TimerKind.SESSION}
    assert {key.kind for key in timers if not key.member_id} == {TimerKind.JOIN}


@pytest.mark.parametrize("falls", [False, True], ids=["goes on", "falls"])
def test_who_only_beats_after_a_downgrade_is_waited_for_so_long(world: ConsumerWorld, *, falls: bool) -> None:
    a, b = downgraded(world)
    if falls:
        world.fail_over()
    member_id, generation = b.member_id, world.group("g").generation

    def beats(duration_ms: int) -> set[str]:
        for _ in range(duration_ms // BEAT_MS):
            a.beat()
            b.member_id, b.epoch = member_id, generation
            b.heartbeat()
            world.pass_ms(BEAT_MS)
        return set(world.group("g").members.ids)

    assert beats(REBALANCE_MS - 2_000) == {a.member_id, member_id}
    assert beats(4_000) == {a.member_id}
    assert len(a.numbers()) == 6


def test_who_is_silent_after_a_downgrade_is_waited_for_while_its_session_lasts(world: ConsumerWorld) -> None:
    a, _ = downgraded(world)
    for _ in range((CLASSIC_SESSION_MS + 2_000) // BEAT_MS):
        a.beat()
        world.pass_ms(BEAT_MS)
    assert set(world.group("g").members.ids) == {a.member_id}


def test_the_session_of_a_member_that_goes_over_to_the_classic_protocol_is_its_new_one(world: ConsumerWorld) -> None:
    c, other, over = NextMember(world), NextMember(world), ClassicConsumer(world)
    settle(c, other)
    over.member_id = c.member_id
    over.beat()
    world.pass_ms(CLASSIC_SESSION_MS - 100)
    other.beat()
    assert over.member_id in world.hosted().core.members
    world.pass_ms(200)
    assert world.hosted().core.members.keys() - {other.member_id} == set()


def test_a_group_as_large_as_classic_ones_may_be_is_downgraded() -> None:
    world = ConsumerWorld(migration_policy="downgrade", initial_rebalance_delay_ms=0, size_max=2)
    c, a, b = NextMember(world), ClassicConsumer(world), ClassicConsumer(world)
    settle(c, a, b)
    c.leave()
    assert is_classic(world)
    world.close()


def test_members_fetch_offsets_with_their_epoch(world: ConsumerWorld) -> None:
    c, a = NextMember(world), ClassicConsumer(world)
    settle(c, a)
    fetch = world.hosted().accept_fetch
    assert [fetch(a.member_id, a.epoch), fetch(c.member_id, c.epoch)] == [ErrorCode.NONE] * 2
    assert fetch(a.member_id, a.epoch - 1) is ErrorCode.ILLEGAL_GENERATION
    assert fetch(c.member_id, c.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH


def test_of_two_that_say_they_own_a_partition_the_one_of_the_later_generation_does(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither has been assigned anything yet."""
    members = []
    for numbers, generation in (([0, 1], 3), ([1, 2], 4)):
        member = ClassicConsumer(world)
        said = ConsumerProtocolSubscription(
            topics=["t"],
            owned_partitions=[ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=numbers)],
            generation_id=generation,
        )
        monkeypatch.setattr(member, "_subscription", lambda said=said: encode_prefixed(said, 3))
        monkeypatch.setattr(member, "_sync", lambda _joined: None)
        members.append(member)
    for member in (*members, members[0]):
        member.join()
        world.pass_ms(10)
    NextMember(world).join()
    topic_id = world.topics.id("t")
    owned = [world.hosted().core.members[member.member_id].assigned for member in members]
    assert owned == [{topic_id: frozenset({0})}, {topic_id: frozenset({1, 2})}]
