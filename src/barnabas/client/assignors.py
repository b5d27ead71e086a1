"""Who reads what: assignors, pure functions run by the leader of a group, with the results of Kafka's own.

All members of a group must come to the same results whichever of them leads, so `range` and `roundrobin` do exactly
what Apache Kafka's do without racks. `cooperative-sticky` keeps Kafka's guarantees (balanced, few moves, a partition
leaves its old owner before it gets a new one, KIP-429), not its very choices: only the leader's result counts.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping

from barnabas.kernel.facts import fact
from barnabas.wire.topics import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id."""


@fact
class MemberSubscription:
    """What a member says when it joins. `owned` is what it owns still, and `generation` since when."""

    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1


@fact
class Assignor:
    """A way to assign, under the name that members agree on. A cooperative one lets members keep what they have
    while they join again.
    """

    name: str
    is_cooperative: bool
    assign: Callable[[Mapping[str, int], Mapping[str, MemberSubscription]], Assignment]
    """(partition count by topic, subscription by member id) -> assignment"""

    def __repr__(self) -> str:
        return f"Assignor({self.name!r})"


def assign_range(partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
    """Each topic on its own: its partitions in one run for each subscriber, the first runs longer by one."""
    assignment: Assignment = {member: [] for member in members}
    subscribers: dict[str, list[str]] = {}
    for member in _in_kafkas_order(members):
        for topic in members[member].topics:
            subscribers.setdefault(topic, []).append(member)
    for topic in sorted(subscribers):
        count = partition_counts.get(topic, 0)
        each, longer = divmod(count, len(subscribers[topic]))
        start = 0
        for place, member in enumerate(subscribers[topic]):
            length = each + (place < longer)
            assignment[member] += [TopicPartition(topic, number) for number in range(start, start + length)]
            start += length
    return assignment


def assign_round_robin(partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
    """All partitions of all topics in order, dealt to the members in turn; who does not subscribe is passed over."""
    assignment: Assignment = {member: [] for member in members}
    order = _in_kafkas_order(members)
    if not order:
        return assignment
    turn = 0
    for topic in sorted({topic for subscription in members.values() for topic in subscription.topics}):
        for number in range(partition_counts.get(topic, 0)):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            assignment[order[turn % len(order)]].append(TopicPartition(topic, number))
            turn += 1
    return assignment


def assign_cooperative_sticky(
    partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> Assignment:
    """Balanced with few moves; a partition that changes hands is left out until its owner has given it up and joins
    again.
    """
    owners = _owners(partition_counts, members)
    balanced = _balance_stickily(partition_counts, members, owners)
    assignment: Assignment = {}
    for member, partitions in balanced.items():
        assignment[member] = sorted(partition for partition in partitions if owners.get(partition, member) == member)
    return assignment


def _owners(
    partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> dict[TopicPartition, str]:
    """Who owns what: the claim of the latest generation counts, and nobody's where two claim the same in it."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in sorted(members):
        subscription = members[member]
        for partition in subscription.owned:
            known = partition.partition < partition_counts.get(partition.topic, 0)
            if not known or partition.topic not in subscription.topics:
                continue
            generation, _ = claims.get(partition, (-2, None))
            if subscription.generation > generation:
                claims[partition] = (subscription.generation, member)
            elif subscription.generation == generation:
                claims[partition] = (generation, None)
    return {partition: member for partition, (_, member) in claims.items() if member is not None}


def _balance_stickily(
    partition_counts: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    owners: Mapping[TopicPartition, str],
) -> dict[str, set[TopicPartition]]:
    """Gives unowned partitions to the member with the fewest, then moves partitions from the richest to the poorest
    while that helps.
    """
    shares: dict[str, set[TopicPartition]] = {member: set() for member in sorted(members)}
    subscribers = {
        topic: [member for member in shares if topic in members[member].topics]
        for topic in sorted({topic for subscription in members.values() for topic in subscription.topics})
    }
    for topic in subscribers:
        for number in range(partition_counts.get(topic, 0)):
            partition = TopicPartition(topic, number)
            owner = owners.get(partition)
            if owner is not None:
                shares[owner].add(partition)
    # What fewest may have is given first, so that the rest can even it out.
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        for number in range(partition_counts.get(topic, 0)):
            partition = TopicPartition(topic, number)
            if partition not in owners:
                poorest = min(subscribers[topic], key=lambda member: (len(shares[member]), member))
                shares[poorest].add(partition)
    while True:
        move = _best_move(shares, members)
        if move is None:
            return shares
        giver, taker, partition = move
        shares[giver].remove(partition)
        shares[taker].add(partition)


def _best_move(
    shares: Mapping[str, set[TopicPartition]], members: Mapping[str, MemberSubscription]
) -> tuple[str, str, TopicPartition] | None:
    """A partition of the richest member from which somebody with at least two fewer can take one."""
    by_wealth = sorted(shares, key=lambda member: (len(shares[member]), member))
    wealth = [len(shares[member]) for member in by_wealth]
    for giver in reversed(by_wealth):
        poor_enough = bisect.bisect_right(wealth, len(shares[giver]) - 2)
        for taker in by_wealth[:poor_enough]:
            takable = [partition for partition in shares[giver] if partition.topic in members[taker].topics]
            if takable:
                return giver, taker, max(takable)
    return None


def _in_kafkas_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Static members by their names ahead of dynamic ones by their ids."""
    return sorted(
        members,
        key=lambda member: (members[member].group_instance_id is None, members[member].group_instance_id or "", member),
    )


RANGE = Assignor("range", is_cooperative=False, assign=assign_range)
ROUND_ROBIN = Assignor("roundrobin", is_cooperative=False, assign=assign_round_robin)
COOPERATIVE_STICKY = Assignor("cooperative-sticky", is_cooperative=True, assign=assign_cooperative_sticky)
