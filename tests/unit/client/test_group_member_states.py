"""The states of a member of a group: every state with every event."""

from __future__ import annotations

import itertools

import pytest

from barnabas.client.group_member import MEMBER, MemberEvent, MemberState
from barnabas.kernel.transitions import IllegalTransitionError

U, J, S, L = MemberState.UNJOINED, MemberState.JOINING, MemberState.STABLE, MemberState.LEFT
FOLLOWING = {
    MemberEvent.JOIN: {U: J, J: J, S: J},
    MemberEvent.ASSIGNED: {J: S},
    MemberEvent.LOST: {U: U, J: J, S: U},
    MemberEvent.LEAVE: {U: L, J: L, S: L},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(MemberState, MemberEvent)))
def test_every_state_and_event(state: MemberState, event: MemberEvent) -> None:
    following = FOLLOWING[event].get(state)
    if following is not None:
        assert MEMBER.advance("m", state, event) is following
    else:
        with pytest.raises(IllegalTransitionError):
            MEMBER.advance("m", state, event)
