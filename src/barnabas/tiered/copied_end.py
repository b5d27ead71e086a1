"""How far a log is copied: up to where everything from its local start on can be read from remote storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.kernel.steps import Steps
from barnabas.tiered.lineage import agreed_end_offset
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache

if TYPE_CHECKING:
    from barnabas.log.directories.checkpoints import EpochEntry
    from barnabas.log.partition.partition_log import PartitionLog

_LOOKED_AT_PER_STEP: Final = 200
_ATTEMPTS: Final = 3


class _Stamp(NamedTuple):
    """What an answer rests on: as long as it is the same, the answer can only go up."""

    log: PartitionLog
    truncations: int
    epochs: tuple[EpochEntry, ...]
    cache: RemoteLogMetadataCache
    removals: int

    @classmethod
    def of(cls, log: PartitionLog, cache: RemoteLogMetadataCache) -> _Stamp:
        return cls(log, log.truncations, log.leader_epochs.entries, cache, cache.removals)


class CopiedEnd:
    """That of one log, which goes on from what it found last, so that each segment is looked at once."""

    def __init__(self) -> None:
        self._known: tuple[_Stamp, int] | None = None

    def find(self, log: PartitionLog, cache: RemoteLogMetadataCache) -> Steps[int]:
        """The offset, by the log's leader epochs.

        Invariant: a local segment that ends there or before has no record that is not in a segment which is whole, at
        the time when this returns. (What was once said to be copied is not enough: whoever has not heard of it may have
        deleted it since; and a segment may go on with records that the log has lost, in whose place it has others.)
        """
        for _ in range(_ATTEMPTS):
            stamp = _Stamp.of(log, cache)
            end_offset = log.local_log_start_offset
            if self._known is not None and self._known[0] == stamp:
                end_offset = max(end_offset, self._known[1])
            looked_at = 0
            while end_offset < log.log_end_offset:
                segment = cache.find(log.leader_epochs.epoch_for_offset(end_offset), end_offset)
                if segment is None:
                    break
                agreed = agreed_end_offset(segment, log.leader_epochs, log.log_end_offset, end_offset)
                if agreed <= end_offset:
                    break
                end_offset = agreed
                looked_at += 1
                if not looked_at % _LOOKED_AT_PER_STEP:
                    yield
            if stamp == _Stamp.of(log, cache):
                self._known = stamp, end_offset
                return end_offset
        return log.local_log_start_offset  # another time: nothing is deleted until then
