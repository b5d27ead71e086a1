"""Faults in what waits for the queue of a log directory: a plan that writes off the loop has to find each (0025)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.partition.queued_log import QueuedLogFlusher, QueuedLogState
from barnabas.testing.cluster_plans import FLUSHED, POWER
from tests.simulation.mutants import Mutant

if TYPE_CHECKING:
    import pytest


def sync_before_writing(patch: pytest.MonkeyPatch) -> None:
    """A sync does not wait until what it is of is in the files."""

    async def offload(_self: LogServices, *work: Any, directory: Any, order: Any = None) -> Any:
        return await directory.offload(*work, order=order)

    patch.setattr(LogServices, "offload", offload)


def acknowledge_before_writing(patch: pytest.MonkeyPatch) -> None:
    """acks=1 is answered when the record waits for the queue."""
    patch.setattr(QueuedLogFlusher, "must_sync", LogFlusher.must_sync)


def end_before_writing(patch: pytest.MonkeyPatch) -> None:
    """Readers, followers, the high watermark and so acks=all go by what waits for the queue, too; acks=1 does not."""
    unwritten = property(lambda self: self.log_end_offset, lambda _self, _offset: None)
    must_sync = property(lambda self: not self._state.log_directory.queue.is_idle or super(type(self), self).must_sync)
    patch.setattr(QueuedLogFlusher, "must_sync", must_sync)
    patch.setattr(QueuedLogState, "written_end_offset", unwritten)
    patch.setattr(QueuedLogState, "update_high_watermark", LogState.update_high_watermark)


def await_what_is_not_there(patch: pytest.MonkeyPatch) -> None:
    """A high watermark beyond the end counts for whatever gets those offsets later, without any follower."""

    def update(self: QueuedLogState, offset: int) -> int:
        found = LogState.update_high_watermark(self, min(offset, self.written_end_offset))
        self._awaited_high_watermark = offset
        return found

    patch.setattr(QueuedLogState, "update_high_watermark", update)


_OFF_THE_LOOP = dataclasses.replace(FLUSHED, writes=("offload",))
_POWER_OFF_THE_LOOP = dataclasses.replace(POWER, writes=("offload",))
QUEUE_MUTANTS = (
    Mutant("a sync before the write", _OFF_THE_LOOP, sync_before_writing),
    Mutant("acknowledged before it is written", _OFF_THE_LOOP, acknowledge_before_writing),
    Mutant("an end that is not written", _OFF_THE_LOOP, end_before_writing),
    Mutant("committed by what was said of others", _POWER_OFF_THE_LOOP, await_what_is_not_there),
)
