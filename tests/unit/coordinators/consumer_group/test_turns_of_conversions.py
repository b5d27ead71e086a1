"""A group that goes over to the other protocol does so in one turn of the loop: as much of it as that takes, no more.

Processor time of such a turn is measured by `python -m benchmarks.groups.turns`; here the pieces are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.coordinators.consumer_group import conversion
from barnabas.coordinators.consumer_group.conversion import CONVERTED_MEMBERS_MAX
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.group.member import Member
from barnabas.wire.codec import encode_prefixed
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ConsumerProtocolSubscription
from tests.unit.coordinators.consumer_group.classic_consumer import ClassicConsumer
from tests.unit.coordinators.consumer_group.consumer_world import ConsumerWorld, FakeTopics, NextMember
from tests.unit.coordinators.consumer_group.mixed_groups import is_classic, owned_in_all
from tests.unit.coordinators.group.turn_counting import TurnCount

NAMES_ALLOWED = 2 * conversion.CONVERTED_NAMES_MAX
"""Those of one member more are read than go over."""


@pytest.fixture
def world() -> Iterator[ConsumerWorld]:
    """Topic `t` has a partition for each of so many members."""
    topics = FakeTopics(t=CONVERTED_MEMBERS_MAX)
    world = ConsumerWorld(topics, migration_policy="bidirectional", initial_rebalance_delay_ms=3_000)
    yield world
    world.close()


def classic_group(world: ConsumerWorld, count: int, *topics: str) -> list[ClassicConsumer]:
    """So many members that have what they are to own."""
    members = [ClassicConsumer(world, *topics) for _ in range(count)]
    for member in members:
        member.join()
    world.pass_ms(7_000)
    assert len({member.epoch for member in members}) == 1
    return members


def test_as_many_members_as_one_turn_takes_go_over_in_it_and_back(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = classic_group(world, CONVERTED_MEMBERS_MAX)
    subscriptions = TurnCount(world.loop, monkeypatch, conversion, "read_subscription")
    replayed = TurnCount(world.loop, monkeypatch, ConsumerGroup, "replay")
    recorded = TurnCount(world.loop, monkeypatch, Member, "recorded")
    last = NextMember(world)
    last.join()
    assert not is_classic(world)
    assert subscriptions.by_turn == {min(subscriptions.by_turn): CONVERTED_MEMBERS_MAX}
    assert 3 * CONVERTED_MEMBERS_MAX <= replayed.most_in_a_turn <= 3 * CONVERTED_MEMBERS_MAX + 10
    assert owned_in_all(*members) == CONVERTED_MEMBERS_MAX
    last.owned = {}
    assert last.leave() is ErrorCode.NONE
    assert is_classic(world)
    assert recorded.by_turn == {min(recorded.by_turn): CONVERTED_MEMBERS_MAX}


def test_one_member_more_and_nothing_is_even_read(world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    classic_group(world, CONVERTED_MEMBERS_MAX + 1)
    subscriptions = TurnCount(world.loop, monkeypatch, conversion, "read_subscription")
    member = NextMember(world)
    member.join()
    assert (member.error, subscriptions.total) == (ErrorCode.GROUP_ID_NOT_FOUND, 0)
    assert is_classic(world)


def test_members_of_thousands_of_topics_do_not_go_over_however_few_they_are(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more of them is read than would have gone."""
    topics = [f"topic-{number:04d}" for number in range(2_000)]
    classic_group(world, 30, *topics)
    subscriptions = TurnCount(world.loop, monkeypatch, conversion, "read_subscription")
    member = NextMember(world)
    member.join()
    assert member.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert is_classic(world)
    assert 0 < subscriptions.total * len(topics) <= NAMES_ALLOWED


def test_a_topic_that_is_named_again_and_again_counts_each_time(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read each time."""
    said = encode_prefixed(ConsumerProtocolSubscription(topics=["t"] * 5_000), 3)
    monkeypatch.setattr(ClassicConsumer, "_subscription", lambda _: said)
    classic_group(world, 10)
    subscriptions = TurnCount(world.loop, monkeypatch, conversion, "read_subscription")
    member = NextMember(world)
    member.join()
    assert member.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert 0 < subscriptions.total * 5_000 <= NAMES_ALLOWED


def test_members_that_have_said_very_much_do_not_go_over(world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would all be copied; nothing of it is read."""
    said = encode_prefixed(ConsumerProtocolSubscription(topics=["t"], user_data=bytes(300_000)), 3)
    monkeypatch.setattr(ClassicConsumer, "_subscription", lambda _: said)
    classic_group(world, 4)
    subscriptions = TurnCount(world.loop, monkeypatch, conversion, "read_subscription")
    member = NextMember(world)
    member.join()
    assert (member.error, subscriptions.total) == (ErrorCode.GROUP_ID_NOT_FOUND, 0)


def test_a_group_whose_members_own_too_much_stays_a_consumer_group(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = classic_group(world, 2)
    last = NextMember(world)
    last.join()
    for _ in range(4):
        for member in members:
            member.beat()
        last.beat()
        world.pass_ms(1_000)
    monkeypatch.setattr(conversion, "CONVERTED_NAMES_MAX", CONVERTED_MEMBERS_MAX // 2)
    recorded = TurnCount(world.loop, monkeypatch, Member, "recorded")
    last.owned = {}
    assert last.leave() is ErrorCode.NONE
    assert not is_classic(world)
    assert recorded.total == 0
