"""Groups with members of both protocols, and what is to hold of them at any time."""

from __future__ import annotations

from typing import Any

from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.group.group import Group
from tests.unit.coordinators.consumer_group.classic_consumer import ClassicConsumer
from tests.unit.coordinators.consumer_group.consumer_world import ConsumerWorld, NextMember, owners

BEAT_MS = 1_000


def settle(*members: ClassicConsumer | NextMember, rounds: int = 12) -> None:
    """Heartbeats of all, in their order; no partition is owned twice at any time."""
    for _ in range(rounds):
        for member in members:
            if isinstance(member, ClassicConsumer) or member.epoch:
                member.beat()
            else:
                member.join()
            members[0].world.pass_ms(10)
            owners(*members)  # type: ignore[arg-type]
        members[0].world.pass_ms(BEAT_MS)


def owned_in_all(*members: ClassicConsumer | NextMember) -> int:
    return len(owners(*members))  # type: ignore[arg-type]


def is_classic(world: ConsumerWorld) -> bool:
    return isinstance(world.coordinator._groups["g"].group, Group)


def durable(world: ConsumerWorld) -> Any:
    """What there is of the group that a coordinator that loads it has too."""
    group = world.coordinator._groups["g"].group
    if isinstance(group, HostedConsumerGroup):
        return {name: getattr(group.core, name) for name in group.core.__slots__}
    return group.recorded


def loaded(world: ConsumerWorld) -> Any:
    """The same of another coordinator, from the same log."""
    other = ConsumerWorld(world.topics)
    other.resign("g")
    other.log.batches, other.log.end_offsets = world.log.batches, world.log.end_offsets
    other.elect("g", 99)
    found = durable(other)
    other.close()
    return found
