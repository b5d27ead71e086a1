"""The states of a group of the consumer protocol, and those of a member on the way to its target assignment."""

from __future__ import annotations

import enum
from typing import Final

from barnabas.kernel.transitions import TransitionTable


class ConsumerGroupState(enum.Enum):
    """The value is the name that ConsumerGroupDescribe and ListGroups give. It follows from what the group has: nobody
    moves it.
    """

    EMPTY = "Empty"
    """No members."""
    ASSIGNING = "Assigning"
    """The target assignment is of an older epoch than the group."""
    RECONCILING = "Reconciling"
    """A member does not own what it is to own."""
    STABLE = "Stable"


class MemberState(enum.IntEnum):
    """The value is what `ConsumerGroupCurrentMemberAssignmentValue` has."""

    STABLE = 0
    """Owns all of the target assignment of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """Is to give up partitions, and keeps its epoch until it has."""
    UNRELEASED_PARTITIONS = 2
    """Waits for partitions that others have not given up."""
    UNKNOWN = 127
    """Of a newer broker's log. The member is to give up everything and to join again."""

    @classmethod
    def of(cls, value: int) -> MemberState:
        """UNKNOWN for a number that is none of these."""
        try:
            return cls(value)
        except ValueError:
            return cls.UNKNOWN


class MemberEvent(enum.Enum):
    """How a member compares with its target assignment."""

    MUST_REVOKE = "must revoke"
    """It owns partitions that it is not to own."""
    MUST_WAIT = "must wait"
    """Others own partitions that it is to own."""
    RECONCILED = "reconciled"
    """It has all that it is to own."""


MEMBER: Final = TransitionTable(
    "member of a consumer group",
    start=(MemberState.STABLE, MemberState.UNKNOWN),
    transitions={
        (MemberState.STABLE, MemberEvent.MUST_REVOKE): MemberState.UNREVOKED_PARTITIONS,
        (MemberState.STABLE, MemberEvent.MUST_WAIT): MemberState.UNRELEASED_PARTITIONS,
        (MemberState.STABLE, MemberEvent.RECONCILED): MemberState.STABLE,
        (MemberState.UNREVOKED_PARTITIONS, MemberEvent.MUST_REVOKE): MemberState.UNREVOKED_PARTITIONS,
        (MemberState.UNREVOKED_PARTITIONS, MemberEvent.MUST_WAIT): MemberState.UNRELEASED_PARTITIONS,
        (MemberState.UNREVOKED_PARTITIONS, MemberEvent.RECONCILED): MemberState.STABLE,
        (MemberState.UNRELEASED_PARTITIONS, MemberEvent.MUST_REVOKE): MemberState.UNREVOKED_PARTITIONS,
        (MemberState.UNRELEASED_PARTITIONS, MemberEvent.MUST_WAIT): MemberState.UNRELEASED_PARTITIONS,
        (MemberState.UNRELEASED_PARTITIONS, MemberEvent.RECONCILED): MemberState.STABLE,
        (MemberState.UNKNOWN, MemberEvent.MUST_REVOKE): MemberState.UNREVOKED_PARTITIONS,
        (MemberState.UNKNOWN, MemberEvent.MUST_WAIT): MemberState.UNRELEASED_PARTITIONS,
        (MemberState.UNKNOWN, MemberEvent.RECONCILED): MemberState.STABLE,
    },
)
"""One that is loaded begins as its record says."""
