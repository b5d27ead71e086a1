"""`barnabas.coordinators.group.states`: every pair of states."""

from __future__ import annotations

import pytest

from barnabas.coordinators.group.states import GROUP, GroupState
from barnabas.coordinators.shard import SHARD, ShardEvent, ShardState
from barnabas.kernel.transitions import IllegalTransitionError

E, P, C, S, D = GroupState
ALLOWED = {(E, P), (S, P), (C, P), (P, C), (C, S), (P, E), (E, D), (P, D), (C, D), (S, D)}


@pytest.mark.parametrize("source", GroupState)
@pytest.mark.parametrize("target", GroupState)
def test_group_moves(source: GroupState, target: GroupState) -> None:
    assert GROUP.allows(source, target) is ((source, target) in ALLOWED)
    if (source, target) in ALLOWED:
        assert GROUP.advance("g", source, target) is target
    else:
        with pytest.raises(IllegalTransitionError):
            GROUP.advance("g", source, target)


SHARD_MOVES = {
    (ShardState.LOADING, ShardEvent.LOADED): ShardState.ACTIVE,
    (ShardState.LOADING, ShardEvent.LOAD_FAILED): ShardState.FAILED,
    (ShardState.FAILED, ShardEvent.RETRIED): ShardState.LOADING,
    (ShardState.LOADING, ShardEvent.RESIGNED): ShardState.CLOSED,
    (ShardState.ACTIVE, ShardEvent.RESIGNED): ShardState.CLOSED,
    (ShardState.FAILED, ShardEvent.RESIGNED): ShardState.CLOSED,
}


@pytest.mark.parametrize("source", ShardState)
@pytest.mark.parametrize("event", ShardEvent)
def test_shard_moves(source: ShardState, event: ShardEvent) -> None:
    if (source, event) in SHARD_MOVES:
        assert SHARD.advance("s", source, event) is SHARD_MOVES[source, event]
    else:
        with pytest.raises(IllegalTransitionError):
            SHARD.advance("s", source, event)
