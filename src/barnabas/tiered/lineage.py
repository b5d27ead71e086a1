"""Whether a remote segment is of the history that a leader's log has: by leader epochs. Without I/O."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping

from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.tiered.segment_metadata import RemoteLogSegmentMetadata


def with_records(epochs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """First offset by leader epoch, without the epochs that have no record: another begins where they do."""
    found: dict[int, int] = {}
    last: int | None = None
    for epoch, start_offset in epochs:
        if last is not None and found[last] == start_offset:
            del found[last]
        found[epoch] = start_offset
        last = epoch
    return found


def is_within(segment: RemoteLogSegmentMetadata, log_end_offset: int, lineage: Mapping[int, int]) -> bool:
    """Whether every record of the segment is one that the log has, or has had before it was deleted.

    `lineage` is `with_records` of the log's epochs. Invariant: a segment that a deposed leader has copied, with records
    that an unclean election has given up, is not.
    """
    if not lineage or segment.end_offset >= log_end_offset:
        return False
    own = with_records(segment.leader_epochs.items())
    epochs = list(lineage)
    last = max(own)
    if not epochs[0] <= last <= epochs[-1]:
        return False
    first = min((epoch for epoch in own if epoch >= epochs[0]), default=None)
    if first is None:
        return False
    for epoch, offset in own.items():
        if epoch < first:
            continue
        if epoch not in lineage:
            return False
        if epoch == first and epoch != epochs[0] and offset < lineage[epoch]:
            return False
        following = min(((each, start) for each, start in lineage.items() if each > epoch), default=None)
        if epoch == last:
            if following is not None and segment.end_offset >= following[1]:
                return False
        elif following != min((each, start) for each, start in own.items() if each > epoch):
            return False
    return True


def agreed_end_offset(
    segment: RemoteLogSegmentMetadata, cache: LeaderEpochCache, log_end_offset: int, offset: int
) -> int:
    """The first offset, from `offset` on, of which the segment need not have the record that the log has; `offset`
    itself where it has not that one.

    Invariant: what lies between is of the same leader epochs in both. A segment may go on with records that the log has
    lost since: in an unclean election, or with the power of all replicas.
    """
    own = sorted(segment.leader_epochs.items())
    entries = cache.entries
    while offset <= segment.end_offset:
        epoch = cache.epoch_for_offset(offset)
        start = segment.leader_epochs.get(epoch)
        if start is None or offset < start:
            break
        own_end = next((first for each, first in own if each > epoch), segment.end_offset + 1)
        following = bisect.bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        log_end = entries[following].start_offset if following < len(entries) else log_end_offset
        if min(own_end, log_end) <= offset:
            break
        offset = min(own_end, log_end)
        if own_end != log_end:
            break
    return offset


def epochs_between(cache: LeaderEpochCache, start_offset: int, end_offset: int) -> dict[int, int]:
    """First offset by leader epoch of the records from `start_offset` up to, not including, `end_offset`; the epoch
    that lasts at `start_offset` begins there."""
    found: dict[int, int] = {}
    for epoch, offset in cache.entries:
        if offset >= end_offset:
            break
        if offset <= start_offset:
            found = {epoch: start_offset}
        else:
            found[epoch] = offset
    return found


def epochs_before(cache: LeaderEpochCache, end_offset: int) -> list[EpochEntry]:
    """All entries of the log's history that begin before an offset: what a follower needs that goes on there."""
    return [entry for entry in cache.entries if entry.start_offset < end_offset]
