"""The whole table of the session's states."""

from __future__ import annotations

import itertools

import pytest

from barnabas.coordination.session_state import SESSION, SessionEvent, SessionState
from barnabas.kernel.transitions import IllegalTransitionError

S, E = SessionState, SessionEvent
LEGAL = {
    (S.CONNECTING, E.ESTABLISHED): S.CONNECTED,
    (S.CONNECTING, E.DECLARED_EXPIRED): S.EXPIRED,
    (S.CONNECTING, E.CLOSED): S.CLOSED,
    (S.CONNECTING, E.CREDENTIALS_REFUSED): S.AUTH_FAILED,
    (S.CONNECTED, E.CONNECTION_LOST): S.SUSPENDED,
    (S.CONNECTED, E.CREDENTIALS_REFUSED): S.AUTH_FAILED,
    (S.CONNECTED, E.CLOSED): S.CLOSED,
    (S.SUSPENDED, E.ESTABLISHED): S.CONNECTED,
    (S.SUSPENDED, E.DECLARED_EXPIRED): S.EXPIRED,
    (S.SUSPENDED, E.CLOSED): S.CLOSED,
    (S.SUSPENDED, E.CREDENTIALS_REFUSED): S.AUTH_FAILED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(SessionState, SessionEvent)))
def test_every_state_meets_every_event(state: SessionState, event: SessionEvent) -> None:
    if (state, event) in LEGAL:
        assert SESSION.advance("s", state, event) is LEGAL[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            SESSION.advance("s", state, event)


def test_final_states() -> None:
    assert [state for state in SessionState if state.is_final] == [S.EXPIRED, S.AUTH_FAILED, S.CLOSED]
