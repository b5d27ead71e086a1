"""What an assignor gets and gives. `uniform` and `range` are the two that there are, as in Apache Kafka 3.9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from barnabas.coordinators.consumer_group.member import Partitions
from barnabas.kernel.ids import Uuid


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    subscribed: frozenset[Uuid]
    """The topics that exist."""
    owned: Partitions
    """What it was to own so far."""


@dataclass(frozen=True, slots=True)
class Assignable:
    """Members, and the number of partitions of each topic that one of them is subscribed to."""

    members: Sequence[AssignedMember]
    topics: Mapping[Uuid, int]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members are subscribed to the same topics."""
        return len({member.subscribed for member in self.members}) <= 1


Assignment = Mapping[str, Partitions]
"""What each member is to own, by member id."""
