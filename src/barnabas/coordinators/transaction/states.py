"""The states of a transactional id and the moves between them, as Apache Kafka 3.9 has them."""

from __future__ import annotations

import enum
from typing import Final

from barnabas.kernel.transitions import TransitionTable


class TransactionState(enum.Enum):
    """The value is the name that DescribeTransactions and ListTransactions give."""

    EMPTY = "Empty"
    """A producer was given its id and epoch, and has not begun a transaction."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """The outcome is decided; the markers are on their way."""
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    """All markers are written."""
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """Expired: its tombstone is written and not committed yet. Never in a record."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """On the way from Ongoing to PrepareAbort under a higher epoch. Never in a record."""


_S: Final = TransactionState

TRANSACTION: Final = TransitionTable.from_valid_previous_states(
    "transaction",
    start=(_S.EMPTY, _S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
    valid_previous_states={
        _S.EMPTY: {_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT},
        _S.ONGOING: {_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT},
        _S.PREPARE_COMMIT: {_S.ONGOING},
        _S.PREPARE_ABORT: {_S.ONGOING, _S.PREPARE_EPOCH_FENCE},
        _S.COMPLETE_COMMIT: {_S.PREPARE_COMMIT},
        _S.COMPLETE_ABORT: {_S.PREPARE_ABORT},
        _S.DEAD: {_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT},
        _S.PREPARE_EPOCH_FENCE: {_S.ONGOING},
    },
    final=(_S.DEAD,),
)
"""An id that is loaded begins in the state of its last record."""

STATE_OF_STATUS: Final = dict(enumerate(TransactionState))
"""By the `transaction_status` of a record."""
STATUS_OF_STATE: Final = {state: status for status, state in STATE_OF_STATUS.items()}
TRANSIENT: Final = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})
"""States that are never in a record."""
