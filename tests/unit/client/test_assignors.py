"""`barnabas.client.assignors`: the results of Kafka's assignors, and the guarantees of cooperative rebalancing."""

from __future__ import annotations

from random import Random

import pytest

from barnabas.client.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    ROUND_ROBIN,
    Assignment,
    MemberSubscription,
    assign_cooperative_sticky,
)
from barnabas.client.subscription_bytes import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition


def member(*topics: str, instance: str | None = None) -> MemberSubscription:
    return MemberSubscription(topics, instance)


def shown(assignment: Assignment) -> dict[str, str]:
    return {
        member_id: " ".join(f"{topic}{number}" for topic, number in partitions)
        for member_id, partitions in assignment.items()
    }


# Expected results are those that Kafka's documentation of the two assignors gives, and what follows from its rules.
@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ({"t": 3, "u": 3}, {"C0": member("t", "u"), "C1": member("t", "u")}, {"C0": "t0 t1 u0 u1", "C1": "t2 u2"}),
        ({"t": 2}, {"C0": member("t"), "C1": member("t"), "C2": member("t")}, {"C0": "t0", "C1": "t1", "C2": ""}),
        ({"t": 3, "u": 2}, {"C0": member("t"), "C1": member("t", "u")}, {"C0": "t0 t1", "C1": "t2 u0 u1"}),
        ({"t": 2}, {"a": member("t", instance="z"), "b": member("t", instance="y")}, {"a": "t1", "b": "t0"}),
        ({"t": 2}, {"a": member("t"), "b": member("t", instance="y")}, {"a": "t1", "b": "t0"}),
        ({}, {"a": member("gone")}, {"a": ""}),
    ],
)
def test_range(counts: dict[str, int], members: dict[str, MemberSubscription], expected: dict[str, str]) -> None:
    assert shown(RANGE.assign(counts, members)) == expected


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ({"t": 3, "u": 3}, {"C0": member("t", "u"), "C1": member("t", "u")}, {"C0": "t0 t2 u1", "C1": "t1 u0 u2"}),
        (
            {"t": 1, "u": 2, "v": 3},
            {"C0": member("t"), "C1": member("t", "u"), "C2": member("t", "u", "v")},
            {"C0": "t0", "C1": "u0", "C2": "u1 v0 v1 v2"},
        ),
        ({}, {"a": member("gone")}, {"a": ""}),
        ({"t": 1}, {}, {}),
    ],
)
def test_round_robin(counts: dict[str, int], members: dict[str, MemberSubscription], expected: dict[str, str]) -> None:
    assert shown(ROUND_ROBIN.assign(counts, members)) == expected


def settle(
    counts: dict[str, int], members: dict[str, MemberSubscription], generation: int
) -> tuple[dict[str, MemberSubscription], int]:
    """Rebalances until nobody has to give anything up; returns what members own then, and how many rounds it took."""
    for rounds in range(1, 4):
        before = {
            partition: member_id for member_id, subscription in members.items() for partition in subscription.owned
        }
        assignment = assign_cooperative_sticky(counts, members)
        given = [partition for partitions in assignment.values() for partition in partitions]
        assert len(given) == len(set(given)), "nothing has two owners"
        for member_id, partitions in assignment.items():
            for partition in partitions:
                assert before.get(partition, member_id) == member_id, "a partition is given up before it is given away"
                assert partition.topic in members[member_id].topics
        generation += 1
        members = {
            member_id: MemberSubscription(subscription.topics, None, tuple(assignment[member_id]), generation)
            for member_id, subscription in members.items()
        }
        if set(before) <= set(given) and len(given) == len({*given, *_all(counts, members)}):
            return members, rounds
    raise AssertionError("a rebalance takes two rounds at most")


def _all(counts: dict[str, int], members: dict[str, MemberSubscription]) -> set[TopicPartition]:
    topics = {topic for subscription in members.values() for topic in subscription.topics}
    return {TopicPartition(topic, number) for topic in topics for number in range(counts.get(topic, 0))}


@pytest.mark.parametrize("seed", range(60))
def test_cooperative_sticky_is_complete_balanced_and_moves_little(seed: int) -> None:
    random = Random(seed)
    counts = {topic: random.randrange(1, 9) for topic in "abcd"[: random.randrange(1, 5)]}
    members = {f"m{number}": MemberSubscription(tuple(counts)) for number in range(random.randrange(1, 6))}
    members, _ = settle(counts, members, 0)
    for generation in range(2, 8):
        owned = {name: set(subscription.owned) for name, subscription in members.items()}
        if random.random() < 0.5 or len(members) == 1:
            members[f"m{seed}-{generation}"] = MemberSubscription(tuple(counts))
        else:
            del members[random.choice(sorted(members))]
        members, rounds = settle(counts, members, generation * 10)
        assert rounds <= 2
        sizes = [len(subscription.owned) for subscription in members.values()]
        assert sum(sizes) == sum(counts.values())
        assert max(sizes) - min(sizes) <= 1
        for name, subscription in members.items():
            kept = len(owned.get(name, set()) & set(subscription.owned))
            fair = sum(counts.values()) // len(members)
            assert kept >= min(len(owned.get(name, set())), fair), "who had no more than its share keeps all of it"


def test_two_claims_to_a_partition_count_by_generation_and_cancel_out_within_one() -> None:
    partition = TopicPartition("t", 0)
    older = MemberSubscription(("t",), None, (partition,), 4)
    newer = MemberSubscription(("t",), None, (partition,), 5)
    assert shown(COOPERATIVE_STICKY.assign({"t": 1}, {"a": older, "b": newer})) == {"a": "", "b": "t0"}
    assert sorted(shown(COOPERATIVE_STICKY.assign({"t": 1}, {"a": newer, "b": newer})).values()) == ["", "t0"]


def test_what_is_owned_of_a_topic_that_shrank_or_was_left_is_nobodys() -> None:
    owner = MemberSubscription(("t",), None, (TopicPartition("t", 7), TopicPartition("u", 0)), 1)
    other = MemberSubscription(("u",), None)
    assert shown(COOPERATIVE_STICKY.assign({"t": 1, "u": 1}, {"a": owner, "b": other})) == {"a": "t0", "b": "u0"}


def test_subscriptions_and_assignments_come_back_from_their_bytes() -> None:
    owned = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))
    subscription = MemberSubscription(("a", "b"), "me", owned, 9)
    assert read_subscription(write_subscription(subscription, "rack"), "me") == subscription
    assert read_assignment(write_assignment(owned)) == owned
    assert read_assignment(b"") == ()
    with pytest.raises(ProtocolError):
        read_assignment(b"\0")


def test_the_bytes_are_those_of_the_java_consumer() -> None:
    # ConsumerProtocol of Kafka 3.9: version 3, topics, no user data, owned partitions, generation, no rack.
    expected = bytes.fromhex("0003 00000001 0001 74 ffffffff 00000001 0001 74 00000001 00000002 00000005 ffff")
    assert write_subscription(MemberSubscription(("t",), None, (TopicPartition("t", 2),), 5)) == expected
    assert write_assignment([TopicPartition("t", 2)]) == bytes.fromhex(
        "0003 00000001 0001 74 00000001 00000002 ffffffff"
    )
