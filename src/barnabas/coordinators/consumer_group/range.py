"""The assignor `range`: of each topic, each member gets a run of partitions, the first ones one more if need be.

Members come by the names of static members, and then by member id; so members that are subscribed to topics with as
many partitions get those of the same numbers, which is what joins want. It does not look at who owned what.
"""

from __future__ import annotations

from barnabas.coordinators.consumer_group.assignor import Assignable, AssignedMember, Assignment
from barnabas.coordinators.consumer_group.member import Partitions
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import Steps

_PER_STEP = 2_048
"""Runs of partitions; one costs some 2 us."""


def assign_ranges(assignable: Assignable) -> Steps[Assignment]:
    """The assignment, made in steps."""
    members = sorted(assignable.members, key=_order)
    subscribers: dict[Uuid, int] = {}
    left = _PER_STEP
    for member in members:
        for topic_id in member.subscribed:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
        left -= 1 + len(member.subscribed)
        if left <= 0:
            yield
            left = _PER_STEP
    following = dict.fromkeys(subscribers, (0, 0))
    """How many subscribers of the topic were served, and where the next run begins."""
    assigned: dict[str, Partitions] = {}
    for member in members:
        runs: dict[Uuid, frozenset[int]] = {}
        for topic_id in member.subscribed:
            served, start = following[topic_id]
            least, extra = divmod(assignable.topics[topic_id], subscribers[topic_id])
            end = start + least + (served < extra)
            following[topic_id] = (served + 1, end)
            if start < end:
                runs[topic_id] = frozenset(range(start, end))
                left -= (end - start) // 8
        assigned[member.member_id] = runs
        left -= 1 + len(member.subscribed)
        if left <= 0:
            yield
            left = _PER_STEP
    return assigned


def _order(member: AssignedMember) -> tuple[bool, str]:
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.member_id
