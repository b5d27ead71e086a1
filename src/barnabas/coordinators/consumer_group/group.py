"""A group of the consumer protocol, as its records say.

Everything here is durable, and changes by `replay` of records that are in the log, when they were just appended as when
they are loaded. What a heartbeat decides is in `heartbeats`, the target assignment in `targets`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from barnabas.coordinators.consumer_group.member import (
    NO_PARTITIONS,
    ConsumerMember,
    Partitions,
)
from barnabas.coordinators.consumer_group.records import (
    ConsumerGroupRecord,
    Current,
    GroupEpoch,
    MemberSaid,
    RecordKind,
    SubscribedTopics,
    Target,
    TargetEpoch,
    Tombstone,
)
from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from barnabas.coordinators.consumer_group.topics import TopicFacts
from barnabas.kernel.ids import Uuid

NEW_GROUP_EPOCH: Final = 0
"""Of a group that is new, and of its target assignment."""


class ConsumerGroup:
    """The durable state of one group. A new one has no members, and epoch 0.

    Invariant: a partition has one owner at a time, which is the member that has it among its assigned partitions, or
    among those that it has not given up yet.
    """

    __slots__ = (
        "_assignors",
        "_classic_protocols",
        "_owners",
        "_subscribers",
        "assignment_epoch",
        "classic_count",
        "epoch",
        "group_id",
        "is_recorded",
        "members",
        "static_members",
        "targets",
        "topics",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = NEW_GROUP_EPOCH
        self.assignment_epoch = NEW_GROUP_EPOCH
        self.is_recorded = False
        """Whether the log has a record of the group."""
        self.topics: Mapping[str, TopicFacts] = {}
        """The topics that members are subscribed to, as the epoch found them."""
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by the names of static members."""
        self.targets: dict[str, Partitions] = {}
        """What each member is to own."""
        self.classic_count = 0
        """How many members use the classic protocol."""
        self._classic_protocols: dict[str, int] = {}
        """How many of them offer each of their protocols."""
        self._owners: dict[Uuid, dict[int, str]] = {}
        self._subscribers: dict[str, int] = {}
        self._assignors: dict[str, int] = {}

    # What it is.

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled_to(epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def needs_assignment(self) -> bool:
        return self.epoch > self.assignment_epoch and bool(self.members)

    @property
    def subscribed_topics(self) -> Collection[str]:
        """The names that any member is subscribed to."""
        return self._subscribers.keys()

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._subscribers

    def is_owned(self, topic_id: Uuid, number: int) -> bool:
        owners = self._owners.get(topic_id)
        return owners is not None and number in owners

    def supports_classic(self, protocols: Iterable[str]) -> bool:
        """Whether one of the protocols is offered by all members that use the classic protocol."""
        return any(self._classic_protocols.get(name, 0) == self.classic_count for name in protocols)

    def is_all_classic_but(self, member: ConsumerMember) -> bool:
        """Whether all others, of which there are some, use the classic protocol, and this one does not."""
        return member.classic is None and 0 < self.classic_count == len(self.members) - 1

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether others own what the member is to own."""
        return any(
            self.is_owned(topic_id, number)
            for topic_id, numbers in self.target(member.member_id).items()
            for number in numbers - member.assigned.get(topic_id, frozenset())
        )

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def topics_with(self, before: ConsumerMember | None, after: ConsumerMember | None) -> set[str]:
        """The names that members are subscribed to, when a member is replaced by another one or none."""
        names = self.topics_without(() if before is None else (before,))
        if after is not None:
            names |= after.subscribed
        return names

    def topics_without(self, leaving: Iterable[ConsumerMember]) -> set[str]:
        """The names that members are subscribed to, when these are gone."""
        counts = Counter(name for member in leaving for name in member.subscribed)
        return {name for name, count in self._subscribers.items() if count > counts.get(name, 0)}

    def preferred_assignor(self) -> str | None:
        """The one that most members wish, the first by name of equals; None where nobody has a wish."""
        counts = self._assignors
        return min(counts, key=lambda name: (-counts[name], name)) if counts else None

    # What changes it.

    def replay(self, record: ConsumerGroupRecord) -> None:
        """The record is in the log. Raises ValueError for one that cannot come in that place: the group is as it was
        then.
        """
        _REPLAY[type(record)](self, record)

    def tombstones(self) -> list[Tombstone]:
        """The records that end the group, with its members if it has any, in Apache Kafka's order."""
        if not self.is_recorded:
            return []

        def of_members(kind: RecordKind) -> list[Tombstone]:
            return [Tombstone(kind, member_id) for member_id in self.members]

        return [
            *of_members(RecordKind.CURRENT),
            *of_members(RecordKind.TARGET),
            Tombstone(RecordKind.TARGET_EPOCH),
            *of_members(RecordKind.MEMBER),
            Tombstone(RecordKind.TOPICS),
            Tombstone(RecordKind.GROUP),
        ]

    def _replay_group(self, record: GroupEpoch) -> None:
        self.epoch = record.epoch
        self.is_recorded = True

    def _replay_topics(self, record: SubscribedTopics) -> None:
        self.topics = record.topics

    def _replay_target_epoch(self, record: TargetEpoch) -> None:
        self.assignment_epoch = record.epoch

    def _replay_target(self, record: Target) -> None:
        self.targets[record.member_id] = record.partitions

    def _replay_member(self, record: MemberSaid) -> None:
        said = record.member
        present = self.members.get(said.member_id)
        owning = ConsumerMember(said.member_id) if present is None else present
        said = dataclasses.replace(
            said,
            epoch=owning.epoch,
            previous_epoch=owning.previous_epoch,
            state=owning.state,
            assigned=owning.assigned,
            revoking=owning.revoking,
        )
        self._count(present, said)
        self.members[said.member_id] = said
        if present is not None and present.instance_id != said.instance_id:
            self._free_name(present)
        if said.instance_id is not None:
            self.static_members[said.instance_id] = said.member_id

    def _replay_current(self, record: Current) -> None:
        current = record.member
        present = self._known(current.member_id)
        self._own(present, current)
        self.members[present.member_id] = dataclasses.replace(
            present,
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=current.state,
            assigned=current.assigned,
            revoking=current.revoking,
        )

    def _replay_tombstone(self, record: Tombstone) -> None:
        _BURY[record.kind](self, record.member_id)

    def _bury_group(self, _member_id: str) -> None:
        if self.members:
            raise ValueError(f"group {self.group_id} has {len(self.members)} members and cannot go")
        self.is_recorded = False
        self.epoch = NEW_GROUP_EPOCH

    def _bury_topics(self, _member_id: str) -> None:
        self.topics = {}

    def _bury_target_epoch(self, _member_id: str) -> None:
        self.assignment_epoch = NEW_GROUP_EPOCH

    def _bury_target(self, member_id: str) -> None:
        self.targets.pop(member_id, None)

    def _bury_current(self, member_id: str) -> None:
        present = self.members.get(member_id)
        if present is not None:
            nothing = ConsumerMember(member_id)
            self._own(present, nothing)
            self.members[member_id] = dataclasses.replace(
                present, epoch=nothing.epoch, state=nothing.state, assigned=NO_PARTITIONS, revoking=NO_PARTITIONS
            )

    def _bury_member(self, member_id: str) -> None:
        present = self.members.get(member_id)
        if present is None:
            return
        self._own(present, ConsumerMember(member_id))
        self._count(present, None)
        del self.members[member_id]
        self._free_name(present)

    def _free_name(self, member: ConsumerMember) -> None:
        name = member.instance_id
        if name is not None and self.static_members.get(name) == member.member_id:
            del self.static_members[name]

    def _known(self, member_id: str) -> ConsumerMember:
        present = self.members.get(member_id)
        if present is None:
            raise ValueError(f"{member_id} is no member of group {self.group_id}")
        return present

    def _count(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        for member, step in ((before, -1), (after, 1)):
            if member is not None:
                for name in member.subscribed:
                    _add(self._subscribers, name, step)
                if member.assignor is not None:
                    _add(self._assignors, member.assignor, step)
                if member.classic is not None:
                    self.classic_count += step
                    for protocol, _ in member.classic.protocols:
                        _add(self._classic_protocols, protocol, step)

    def _own(self, before: ConsumerMember, after: ConsumerMember) -> None:
        """The member owns something else from now on. Raises ValueError where another one owns any of it."""
        member_id = before.member_id
        for partitions in (after.assigned, after.revoking):
            for topic_id, numbers in partitions.items():
                owners = self._owners.get(topic_id)
                if owners is None:
                    continue
                for number in numbers:
                    if owners.get(number, member_id) != member_id:
                        raise ValueError(
                            f"partition {number} of topic {topic_id} is owned by {owners[number]}, not by {member_id}"
                        )
        for partitions in (before.assigned, before.revoking):
            for topic_id, numbers in partitions.items():
                owners = self._owners[topic_id]
                for number in numbers:
                    del owners[number]
                if not owners:
                    del self._owners[topic_id]
        for partitions in (after.assigned, after.revoking):
            for topic_id, numbers in partitions.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member_id))


def _add(counts: dict[str, int], name: str, step: int) -> None:
    count = counts.get(name, 0) + step
    if count:
        counts[name] = count
    else:
        counts.pop(name, None)


_REPLAY: Final[Mapping[type, Callable[[ConsumerGroup, Any], None]]] = {
    GroupEpoch: ConsumerGroup._replay_group,  # noqa: SLF001 - the table of its own methods
    SubscribedTopics: ConsumerGroup._replay_topics,  # noqa: SLF001
    MemberSaid: ConsumerGroup._replay_member,  # noqa: SLF001
    TargetEpoch: ConsumerGroup._replay_target_epoch,  # noqa: SLF001
    Target: ConsumerGroup._replay_target,  # noqa: SLF001
    Current: ConsumerGroup._replay_current,  # noqa: SLF001
    Tombstone: ConsumerGroup._replay_tombstone,  # noqa: SLF001
}
_BURY: Final[Mapping[RecordKind, Callable[[ConsumerGroup, str], None]]] = {
    RecordKind.GROUP: ConsumerGroup._bury_group,  # noqa: SLF001
    RecordKind.TOPICS: ConsumerGroup._bury_topics,  # noqa: SLF001
    RecordKind.MEMBER: ConsumerGroup._bury_member,  # noqa: SLF001
    RecordKind.TARGET_EPOCH: ConsumerGroup._bury_target_epoch,  # noqa: SLF001
    RecordKind.TARGET: ConsumerGroup._bury_target,  # noqa: SLF001
    RecordKind.CURRENT: ConsumerGroup._bury_current,  # noqa: SLF001
}
