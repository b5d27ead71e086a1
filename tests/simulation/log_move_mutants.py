"""Faults put into moves between log directories, one at a time: the plan `log-moves` has to find each (0023)."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.follower.log_copier import LogCopier
from barnabas.log.manager import log_manager
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.replicas.log_moves import LogMoves
from barnabas.testing.cluster_plans import LOG_MOVES
from tests.simulation.mutants import Mutant


def replace_by_what_is_behind(patch: pytest.MonkeyPatch) -> None:
    """The copy takes the place of a log that has grown while the copy was made durable."""
    prepare = LogCopier._replace

    async def replace_at_once(self: LogCopier, move: Any, current: PartitionLog, future: PartitionLog) -> None:
        await prepare(self, move, current, future)
        if move.is_prepared and self._holds(move):
            await prepare(self, move, current, future)

    patch.setattr(LogCopier, "_replace", replace_at_once)
    patch.setattr(log_manager, "is_replaceable", lambda current, future: future.is_settled and not current.is_closed)


def go_on_with_no_copy(patch: pytest.MonkeyPatch) -> None:
    """What an earlier life of the broker has begun to copy stays where it is."""
    patch.setattr(LogMoves, "begin", lambda _self, _partitions: None)


def keep_the_replaced_log(patch: pytest.MonkeyPatch) -> None:
    """The partition does not learn that it has another log."""
    patch.setattr(LogMoves, "replaced", lambda _self, _partition, _log: None)


LOG_MOVE_MUTANTS = (
    Mutant("replaced by a copy that is behind", LOG_MOVES, replace_by_what_is_behind),
    Mutant("interrupted moves forgotten", LOG_MOVES, go_on_with_no_copy),
    Mutant("replaced logs kept in use", LOG_MOVES, keep_the_replaced_log),
)
