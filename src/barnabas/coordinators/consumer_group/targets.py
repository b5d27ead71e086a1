"""The target assignment of a group, made in steps: long work for a large group, between which it goes on living."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from barnabas.coordinators.consumer_group.assignor import Assignable, AssignedMember, Assignment
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.member import NO_PARTITIONS, ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.range import assign_ranges
from barnabas.coordinators.consumer_group.records import Target
from barnabas.coordinators.consumer_group.topics import TopicFacts
from barnabas.coordinators.consumer_group.uniform import assign_uniformly
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import STEP_ELEMENTS, Steps

_LOOKED_AT_PER_STEP: Final = 4_096
"""Members and names of topics."""

Assignor = Callable[[Assignable], Steps[Assignment]]

UNIFORM: Final = "uniform"
RANGE: Final = "range"
ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: assign_uniformly, RANGE: assign_ranges}
ASSIGNOR_CLASSES: Final[Mapping[str, str]] = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": UNIFORM,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": RANGE,
}
"""By the names that `group.consumer.assignors` has for them."""


class NewTarget(NamedTuple):
    """What members are to own that were in the group in that epoch; those whose target changes."""

    epoch: int
    changed: list[Target]
    members: frozenset[str]
    """All members of that moment."""


def assigned_anew(group: ConsumerGroup, assignor: Assignor) -> Steps[NewTarget]:
    """The assignment for the group as it is now; it may be another one when this ends."""
    epoch, targets = group.epoch, dict(group.targets)
    assignable = yield from _assignable(list(group.members.values()), targets, group.topics)
    assignment = yield from assignor(assignable)
    changed: list[Target] = []
    for position, member in enumerate(assignable.members):
        partitions = assignment.get(member.member_id, {})
        if targets.get(member.member_id) != partitions:
            changed.append(Target(member.member_id, partitions))
        if position % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
    return NewTarget(epoch, changed, frozenset(member.member_id for member in assignable.members))


def _assignable(
    present: list[ConsumerMember], targets: Mapping[str, Partitions], topics: Mapping[str, TopicFacts]
) -> Steps[Assignable]:
    ids: dict[frozenset[str], frozenset[Uuid]] = {}
    """Of each set of names that members have; in most groups there is one."""
    counts: dict[Uuid, int] = {}
    members = []
    left = _LOOKED_AT_PER_STEP
    for member in present:
        subscribed = ids.get(member.subscribed)
        if subscribed is None:
            found = [topics[name] for name in member.subscribed if name in topics]
            counts.update((topic.topic_id, topic.partition_count) for topic in found)
            subscribed = ids[member.subscribed] = frozenset(topic.topic_id for topic in found)
            left -= len(member.subscribed)
        owned = targets.get(member.member_id, NO_PARTITIONS)
        members.append(AssignedMember(member.member_id, member.instance_id, subscribed, owned))
        left -= 1
        if left <= 0:
            yield
            left = _LOOKED_AT_PER_STEP
    return Assignable(members, counts)
