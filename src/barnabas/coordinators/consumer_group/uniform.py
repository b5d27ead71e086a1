"""The assignor `uniform`: members get as many partitions as each other, and keep as many of theirs as that allows.

Where all are subscribed to the same topics, each gets the quota, some one more, and what is over or free moves: near
linear. Otherwise free partitions go to the least loaded subscriber, and then partitions move, one at a time, from an
owner to a subscriber that has at least two less, until there is none: the balance that Apache Kafka's assignor ends
with. Who gets what may differ from Kafka's, whose order is that of hash maps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Final

from barnabas.coordinators.consumer_group.assignor import Assignable, AssignedMember, Assignment
from barnabas.coordinators.consumer_group.member import Partitions
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import Steps

_PER_STEP: Final = 2_048
"""Partitions and subscriptions; one costs a microsecond or two."""

_Owned = dict[Uuid, set[int]]


def assign_uniformly(assignable: Assignable) -> Steps[Assignment]:
    """The assignment, made in steps."""
    if not assignable.members:
        return {}
    pace = _Pace()
    if assignable.is_homogeneous:
        return (yield from _assign_equally(assignable, pace))
    return (yield from _assign_greedily(assignable, pace))


class _Pace:
    """Ends a step when so much was done in it."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _PER_STEP

    def count(self, elements: int) -> Steps[None]:
        self._left -= elements
        if self._left <= 0:
            self._left = _PER_STEP
            yield


def _kept(assignable: Assignable, member: AssignedMember) -> _Owned:
    """What the member owned of topics that it is still subscribed to."""
    kept: _Owned = {}
    for topic_id, numbers in member.owned.items():
        if topic_id in member.subscribed:
            count = assignable.topics[topic_id]
            there = {number for number in numbers if number < count}
            if there:
                kept[topic_id] = there
    return kept


def _taken_once(assignable: Assignable, pace: _Pace) -> Steps[tuple[list[_Owned], dict[Uuid, set[int]]]]:
    """What each member keeps, in their order, and which partitions of each topic are free; of two that own the same
    partition the first keeps it.
    """
    free: dict[Uuid, set[int]] = {}
    for topic_id, count in assignable.topics.items():
        free[topic_id] = set(range(count))
        yield from pace.count(1 + count // 8)
    owned: list[_Owned] = []
    for member in assignable.members:
        kept = _kept(assignable, member)
        size = 1
        for topic_id, numbers in list(kept.items()):
            numbers &= free[topic_id]
            free[topic_id] -= numbers
            size += len(numbers)
            if not numbers:
                del kept[topic_id]
        owned.append(kept)
        yield from pace.count(size)
    return owned, free


def _frozen(members: Iterable[AssignedMember], owned: Iterable[_Owned], pace: _Pace) -> Steps[Assignment]:
    assignment: dict[str, Partitions] = {}
    for member, kept in zip(members, owned, strict=True):
        assignment[member.member_id] = {topic_id: frozenset(numbers) for topic_id, numbers in kept.items() if numbers}
        yield from pace.count(1 + len(kept))
    return assignment


def _assign_equally(assignable: Assignable, pace: _Pace) -> Steps[Assignment]:
    members = assignable.members
    owned, free = yield from _taken_once(assignable, pace)
    sizes = [sum(map(len, kept.values())) for kept in owned]
    quota, extra = divmod(sum(assignable.topics.values()), len(members))
    quotas = [quota] * len(members)
    # One more is for those that have more than the quota already, and then for the others in their order.
    for position in sorted(range(len(members)), key=lambda position: sizes[position] <= quota)[:extra]:
        quotas[position] += 1
    yield from pace.count(len(members))
    for position, kept in enumerate(owned):
        over = sizes[position] - quotas[position]
        if over > 0:
            yield from _give_up(kept, over, free, pace)
    left = ((topic_id, number) for topic_id in sorted(free) for number in sorted(free[topic_id]))
    for position, kept in enumerate(owned):
        missing = quotas[position] - sizes[position]
        while missing > 0:
            some = min(missing, _PER_STEP)
            for topic_id, number in islice(left, some):
                kept.setdefault(topic_id, set()).add(number)
            yield from pace.count(some)
            missing -= some
    return (yield from _frozen(members, owned, pace))


def _give_up(kept: _Owned, over: int, free: dict[Uuid, set[int]], pace: _Pace) -> Steps[None]:
    """The member gives up so many partitions, those of the last topics first."""
    yield from pace.count(over)
    for topic_id in sorted(kept, reverse=True):
        numbers = kept[topic_id]
        given = set(sorted(numbers, reverse=True)[:over])
        numbers -= given
        free[topic_id] |= given
        over -= len(given)
        if not numbers:
            del kept[topic_id]
        if not over:
            return


class _Loads:
    """How many partitions each member has, and who owns each partition; members go by their position."""

    def __init__(self, assignable: Assignable, owned: list[_Owned]) -> None:
        self.owned = owned
        self.sizes = [sum(map(len, kept.values())) for kept in owned]
        self.subscribers: dict[Uuid, list[int]] = {topic_id: [] for topic_id in assignable.topics}
        for position, member in enumerate(assignable.members):
            for topic_id in member.subscribed:
                self.subscribers[topic_id].append(position)

    def give(self, topic_id: Uuid, number: int, position: int) -> None:
        self.owned[position].setdefault(topic_id, set()).add(number)
        self.sizes[position] += 1

    def take_one(self, topic_id: Uuid, position: int) -> int:
        """A partition of the topic that the member has."""
        numbers = self.owned[position][topic_id]
        number = numbers.pop()
        if not numbers:
            del self.owned[position][topic_id]
        self.sizes[position] -= 1
        return number


def _assign_greedily(assignable: Assignable, pace: _Pace) -> Steps[Assignment]:
    owned, free = yield from _taken_once(assignable, pace)
    loads = _Loads(assignable, owned)
    yield from pace.count(sum(map(len, loads.subscribers.values())))
    # Topics with the fewest who could have a partition come first, as in Apache Kafka.
    topics = sorted(
        (topic_id for topic_id, subscribers in loads.subscribers.items() if subscribers),
        key=lambda topic_id: (
            -assignable.topics[topic_id] / len(loads.subscribers[topic_id]),
            len(loads.subscribers[topic_id]),
            topic_id,
        ),
    )
    for topic_id in topics:
        least = [(loads.sizes[position], position) for position in loads.subscribers[topic_id]]
        heapq.heapify(least)
        yield from pace.count(1 + len(least))
        for number in sorted(free[topic_id]):
            size, position = least[0]
            loads.give(topic_id, number, position)
            heapq.heapreplace(least, (size + 1, position))
            yield from pace.count(1)
    has_moved = True
    while has_moved:
        has_moved = False
        for topic_id in topics:
            if (yield from _level(loads, topic_id, pace)):
                has_moved = True
    return (yield from _frozen(assignable.members, owned, pace))


def _level(loads: _Loads, topic_id: Uuid, pace: _Pace) -> Steps[bool]:
    """Moves partitions of the topic from its most to its least loaded subscribers while that evens them out; whether
    any has moved. Every move makes the sum of the squares of the loads smaller, so there is an end of it.
    """
    subscribers = loads.subscribers[topic_id]
    least = [(loads.sizes[position], position) for position in subscribers]
    most = [(-loads.sizes[position], position) for position in subscribers if topic_id in loads.owned[position]]
    heapq.heapify(least)
    heapq.heapify(most)
    yield from pace.count(1 + len(subscribers))
    has_moved = False
    while most:
        negative_size, source = most[0]
        if -negative_size != loads.sizes[source] or topic_id not in loads.owned[source]:
            heapq.heappop(most)
            if topic_id in loads.owned[source]:
                heapq.heappush(most, (-loads.sizes[source], source))
            continue
        size, target = least[0]
        if size != loads.sizes[target]:
            heapq.heapreplace(least, (loads.sizes[target], target))
            continue
        if loads.sizes[source] - size < 2:
            break
        loads.give(topic_id, loads.take_one(topic_id, source), target)
        heapq.heapreplace(least, (size + 1, target))
        heapq.heappush(most, (-(size + 1), target))
        has_moved = True
        yield from pace.count(4)
    return has_moved
