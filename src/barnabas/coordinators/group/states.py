"""The states of a classic group and the moves between them, as Apache Kafka 3.9 has them."""

from __future__ import annotations

import enum
from typing import Final

from barnabas.kernel.transitions import TransitionTable


class GroupState(enum.Enum):
    """The value is the name that DescribeGroups and ListGroups give."""

    EMPTY = "Empty"
    """No members; lives on for its offsets. Also the state of groups that only ever commit offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for the members to join again."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Waits for the leader's assignment, and for that to be stored."""
    STABLE = "Stable"
    """Every member has, or can fetch by SyncGroup, its assignment of the generation."""
    DEAD = "Dead"
    """Deleted, expired, or handed over to another broker."""


GROUP: Final = TransitionTable.from_valid_previous_states(
    "group",
    start=(GroupState.EMPTY, GroupState.STABLE, GroupState.PREPARING_REBALANCE),
    valid_previous_states={
        GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
        GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
        GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
        GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
        GroupState.DEAD: {
            GroupState.EMPTY,
            GroupState.PREPARING_REBALANCE,
            GroupState.COMPLETING_REBALANCE,
            GroupState.STABLE,
        },
    },
    final=(GroupState.DEAD,),
)
"""A group that is loaded from its record begins Stable if it has members, and waits for these to join again if it was a
consumer group before.
"""
