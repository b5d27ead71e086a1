"""The in-sync replicas of a partition, as its leader sees them: what the controller has confirmed, and the one change
that may be under way (KIP-497).

Invariant: whatever becomes of a change, the ISR that the controller has in force lies within the maximal ISR, from the
moment the change is asked for until its outcome is known. So a high watermark that waits for the maximal ISR is never
ahead of what a future leader has.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from barnabas.kernel.transitions import TransitionTable
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping


class IsrPhase(enum.Enum):
    """Whether a change is under way."""

    COMMITTED = "committed"
    EXPANDING = "expanding"
    SHRINKING = "shrinking"


class IsrEvent(enum.Enum):
    """What happens to an ISR."""

    EXPAND = "expand"
    SHRINK = "shrink"
    CONFIRMED = "confirmed"
    """The controller has the new ISR."""
    REFUSED = "refused"
    """The controller says that it has not made the change, and that what we know is right."""
    UNDECIDED = "undecided"
    """The change may have been made or not; the controller will tell by LeaderAndIsr."""
    REPLACED = "replaced"
    """The controller has told a new state."""


ISR: Final = TransitionTable(
    "ISR",
    start=IsrPhase.COMMITTED,
    transitions={
        (IsrPhase.COMMITTED, IsrEvent.EXPAND): IsrPhase.EXPANDING,
        (IsrPhase.COMMITTED, IsrEvent.SHRINK): IsrPhase.SHRINKING,
        (IsrPhase.COMMITTED, IsrEvent.REPLACED): IsrPhase.COMMITTED,
        (IsrPhase.EXPANDING, IsrEvent.CONFIRMED): IsrPhase.COMMITTED,
        (IsrPhase.EXPANDING, IsrEvent.REFUSED): IsrPhase.COMMITTED,
        (IsrPhase.EXPANDING, IsrEvent.UNDECIDED): IsrPhase.EXPANDING,
        (IsrPhase.EXPANDING, IsrEvent.REPLACED): IsrPhase.COMMITTED,
        (IsrPhase.SHRINKING, IsrEvent.CONFIRMED): IsrPhase.COMMITTED,
        (IsrPhase.SHRINKING, IsrEvent.REFUSED): IsrPhase.COMMITTED,
        (IsrPhase.SHRINKING, IsrEvent.UNDECIDED): IsrPhase.SHRINKING,
        (IsrPhase.SHRINKING, IsrEvent.REPLACED): IsrPhase.COMMITTED,
    },
)


@dataclass(frozen=True, slots=True)
class IsrState:
    """The ISR of one partition. Every change makes a new one, so that an answer can be told to be out of date."""

    committed: tuple[int, ...] = ()
    """What the controller has confirmed, in its order."""
    phase: IsrPhase = IsrPhase.COMMITTED
    proposed: tuple[int, ...] = ()
    """The ISR asked for, while a change is under way."""

    @property
    def maximal(self) -> tuple[int, ...]:
        """Everybody who may be in the ISR: a replica that is being added counts already, one that is being removed
        still."""
        return self.proposed if self.phase is IsrPhase.EXPANDING else self.committed

    @property
    def is_pending(self) -> bool:
        return self.phase is not IsrPhase.COMMITTED

    def expand(self, broker_id: int) -> IsrState:
        """Asks for one more. Raises IllegalTransitionError while a change is under way."""
        phase = ISR.advance(self, self.phase, IsrEvent.EXPAND)
        return IsrState(self.committed, phase, (*self.committed, broker_id))

    def shrink(self, out_of_sync: tuple[int, ...]) -> IsrState:
        """Asks for these to leave. Raises IllegalTransitionError while a change is under way."""
        phase = ISR.advance(self, self.phase, IsrEvent.SHRINK)
        return IsrState(self.committed, phase, tuple(member for member in self.committed if member not in out_of_sync))

    def confirm(self, committed: tuple[int, ...]) -> IsrState:
        """The controller has this ISR in force: the one asked for, or another that it knows of."""
        return IsrState(committed, ISR.advance(self, self.phase, IsrEvent.CONFIRMED))

    def refuse(self) -> IsrState:
        """The change was not made."""
        return IsrState(self.committed, ISR.advance(self, self.phase, IsrEvent.REFUSED))

    def leave_undecided(self) -> IsrState:
        """Nobody knows whether the change was made: it stays under way, which is the careful side."""
        ISR.advance(self, self.phase, IsrEvent.UNDECIDED)
        return self

    def replace(self, committed: tuple[int, ...]) -> IsrState:
        """The controller has told this ISR; a change under way is of no interest any more."""
        return IsrState(committed, ISR.advance(self, self.phase, IsrEvent.REPLACED))


class RefusalAction(enum.Enum):
    """What a leader does when the controller answers AlterPartition with an error."""

    ROLL_BACK = "roll back"
    WAIT = "wait for the controller to tell the state"
    RETRY = "ask again"


REFUSAL_ACTIONS: Final[Mapping[ErrorCode, RefusalAction]] = MappingProxyType(
    {
        # Only these two say that no controller, past or future, has made the change: the epochs were right.
        ErrorCode.OPERATION_NOT_ATTEMPTED: RefusalAction.ROLL_BACK,
        ErrorCode.INELIGIBLE_REPLICA: RefusalAction.ROLL_BACK,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RefusalAction.WAIT,
        ErrorCode.UNKNOWN_TOPIC_ID: RefusalAction.WAIT,
        ErrorCode.FENCED_LEADER_EPOCH: RefusalAction.WAIT,
        ErrorCode.INVALID_UPDATE_VERSION: RefusalAction.WAIT,
        ErrorCode.INVALID_REQUEST: RefusalAction.WAIT,
        ErrorCode.NEW_LEADER_ELECTED: RefusalAction.WAIT,
    }
)
"""By error of one partition; every error that is not here may pass: RETRY."""


def refusal_action(error: ErrorCode) -> RefusalAction:
    return REFUSAL_ACTIONS.get(error, RefusalAction.RETRY)
