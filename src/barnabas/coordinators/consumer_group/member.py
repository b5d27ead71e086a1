"""One member of a group of the consumer protocol, as its records say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from barnabas.coordinators.consumer_group.states import MemberState
from barnabas.kernel.ids import Uuid

Partitions = Mapping[Uuid, frozenset[int]]
"""Numbers of partitions by topic id. No topic is without a partition; never changed."""

NO_PARTITIONS: Final[Partitions] = MappingProxyType({})
JOINING_EPOCH: Final = 0
LEFT_EPOCH: Final = -1
LEFT_FOR_A_WHILE_EPOCH: Final = -2
"""Of a static member that is gone and may come back within its session."""
NO_TIMEOUT: Final = -1


def includes(partitions: Partitions, some: Partitions) -> bool:
    """Whether all of `some` are among the partitions."""
    return all(numbers <= partitions.get(topic_id, frozenset()) for topic_id, numbers in some.items())


@dataclass(frozen=True, slots=True)
class ClassicSaid:
    """What a member says beside that joins with JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata of each protocol that it offers, the best first; there is one at least."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member; it is replaced, never changed. A new one owns nothing, at epoch 0."""

    member_id: str
    instance_id: str | None = None
    """The name of a static member."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed: frozenset[str] = frozenset()
    """Names of topics, which may not exist."""
    subscribed_regex: str | None = ""
    """Empty, as Apache Kafka 3.9 writes it; no request of version 0 has one."""
    rebalance_timeout_ms: int = NO_TIMEOUT
    assignor: str | None = None
    """Which assignor of the broker it wishes."""
    classic: ClassicSaid | None = None
    """Of a member that uses the classic protocol, to which the group is a classic one; None for all others."""
    epoch: int = JOINING_EPOCH
    previous_epoch: int = LEFT_EPOCH
    """The epoch before, which is taken from a member that missed the answer with its present one."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    """What it owns and may keep."""
    revoking: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    """What it owns, too, until it says that it has given it up."""

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch
