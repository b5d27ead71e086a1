from __future__ import annotations

import itertools

import pytest

from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.leader.isr import ISR, IsrEvent, IsrPhase, IsrState, RefusalAction, refusal_action
from barnabas.wire.errors import ErrorCode

EXPANDING = IsrState((1, 2)).expand(3)
SHRINKING = IsrState((1, 2, 3)).shrink((2,))


def test_every_state_and_event() -> None:
    after_answer = {IsrEvent.CONFIRMED: IsrPhase.COMMITTED, IsrEvent.REFUSED: IsrPhase.COMMITTED}
    expected = {
        IsrPhase.COMMITTED: {IsrEvent.EXPAND: IsrPhase.EXPANDING, IsrEvent.SHRINK: IsrPhase.SHRINKING},
        IsrPhase.EXPANDING: {IsrEvent.UNDECIDED: IsrPhase.EXPANDING, **after_answer},
        IsrPhase.SHRINKING: {IsrEvent.UNDECIDED: IsrPhase.SHRINKING, **after_answer},
    }
    for phase, event in itertools.product(IsrPhase, IsrEvent):
        target = IsrPhase.COMMITTED if event is IsrEvent.REPLACED else expected[phase].get(event)
        assert ISR.transitions.get((phase, event)) is target, (phase, event)


def test_a_replica_that_is_being_added_counts_already() -> None:
    assert EXPANDING.committed == (1, 2)
    assert EXPANDING.maximal == (1, 2, 3)


def test_a_replica_that_is_being_removed_counts_still() -> None:
    assert SHRINKING.proposed == (1, 3)
    assert SHRINKING.maximal == (1, 2, 3)


def test_one_change_at_a_time() -> None:
    with pytest.raises(IllegalTransitionError):
        EXPANDING.expand(4)
    with pytest.raises(IllegalTransitionError):
        SHRINKING.shrink((3,))


@pytest.mark.parametrize("pending", [EXPANDING, SHRINKING])
def test_outcomes(pending: IsrState) -> None:
    assert pending.refuse() == IsrState(pending.committed)
    assert pending.confirm((1, 9)) == IsrState((1, 9))
    assert pending.replace((4,)) == IsrState((4,))
    assert pending.leave_undecided() is pending


def test_only_two_errors_say_that_nothing_was_changed() -> None:
    by_action = {action: {code for code in ErrorCode if refusal_action(code) is action} for action in RefusalAction}
    assert by_action[RefusalAction.ROLL_BACK] == {ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA}
    assert by_action[RefusalAction.WAIT] == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
