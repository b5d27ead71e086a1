"""Which remote segments a leader deletes: by time, by size, and what lies before the start of the log. Without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.kernel.steps import Steps
from barnabas.tiered.lineage import is_within
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState

_UNLIMITED: Final = -1
_LOOKED_AT_PER_STEP: Final = 200


@dataclass(frozen=True, slots=True)
class RetentionView:
    """What the decision depends on beside the segments."""

    lineage: Mapping[int, int]
    """First offset by leader epoch of the leader's log, without epochs that have no records."""
    log_start_offset: int
    log_end_offset: int
    remote_end_offset: int
    """Up to where everything can be read from remote storage."""
    local_only_bytes: int
    """Of the segments that were not copied."""
    retention_bytes: int
    retention_ms: int
    now_ms: int


@dataclass(slots=True)
class Expired:
    """What is to be deleted, oldest first, after the log's start has moved."""

    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    log_start_offset: int | None = None
    """Where the log is to start; None for where it does."""


def counted_bytes(cache: RemoteLogMetadataCache, view: RetentionView) -> Steps[dict[RemoteLogSegmentId, int]]:
    """What of each segment counts: of those whose records the log has, in the order of its history.

    Invariant: no record counts twice, whether two leaders have copied it, or it is behind a hole and so counted with
    the local segments; nothing that must stay is deleted for that. Of a segment that overlaps the one before it counts
    what is behind that, by its share of the offsets.
    """
    counted: dict[RemoteLogSegmentId, int] = {}
    reached = 0
    for epoch in view.lineage:
        for number, segment in enumerate(cache.segments_of(epoch), start=1):
            if not number % _LOOKED_AT_PER_STEP:
                yield
            if (
                segment.segment_id in counted
                or segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                or not is_within(segment, view.log_end_offset, view.lineage)
            ):
                continue
            end_offset = segment.end_offset + 1
            added = min(end_offset, view.remote_end_offset) - max(segment.start_offset, reached)
            share = segment.size_bytes * added // (end_offset - segment.start_offset)
            counted[segment.segment_id] = max(share, 1) if added > 0 else 0
            reached = max(reached, end_offset)
    return counted


def expired(
    cache: RemoteLogMetadataCache,
    view: RetentionView,
    counted: Mapping[RemoteLogSegmentId, int],
    being_copied: Collection[RemoteLogSegmentId] = (),
) -> Steps[Expired]:
    """What retention gives up; `counted` is `counted_bytes`.

    Invariant: along the log's history nothing is deleted behind a segment that stays, so that what is left of the log
    has no hole; nor anything that is being copied. What was copied in part goes when all of its records can be read
    from other segments: whoever copied it may have said that it is whole by then, and another may rely on that.
    """
    found = Expired()
    chosen: set[RemoteLogSegmentId] = set()
    excess_bytes = 0
    if view.retention_bytes > _UNLIMITED:
        excess_bytes = view.local_only_bytes + sum(counted.values()) - view.retention_bytes
    first_epoch = min(view.lineage, default=None)
    goes_on = True
    for epoch in view.lineage:
        for number, segment in enumerate(cache.segments_of(epoch) if goes_on else (), start=1):
            if not number % _LOOKED_AT_PER_STEP:
                yield
            if segment.segment_id in chosen or segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                continue
            size_bytes = counted.get(segment.segment_id)
            if _is_before_start(segment, view.log_start_offset, first_epoch):
                is_doomed = True
            elif size_bytes is None:
                continue
            elif not size_bytes:
                # All of it is in others, too: it goes after them.
                if segment.end_offset >= max(found.log_start_offset or 0, view.log_start_offset):
                    continue
                is_doomed = True
            else:
                is_old = view.retention_ms > _UNLIMITED and segment.max_timestamp_ms <= view.now_ms - view.retention_ms
                is_doomed = is_old or size_bytes <= excess_bytes
                if is_doomed:
                    excess_bytes -= size_bytes
                    found.log_start_offset = max(found.log_start_offset or 0, segment.end_offset + 1)
            if not is_doomed:
                goes_on = False
                break
            chosen.add(segment.segment_id)
            found.segments.append(segment)
    for number, segment in enumerate(cache.segments(), start=1):
        if not number % _LOOKED_AT_PER_STEP:
            yield
        if segment.segment_id in chosen or segment.segment_id in being_copied:
            continue
        is_partial = segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED and (
            segment.end_offset < max(view.remote_end_offset, view.log_start_offset)
        )
        is_begun = segment.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        is_forgotten = first_epoch is not None and max(segment.leader_epochs) < first_epoch
        if is_partial or is_begun or is_forgotten:
            found.segments.append(segment)
    return found


def _is_before_start(segment: RemoteLogSegmentMetadata, log_start_offset: int, first_epoch: int | None) -> bool:
    return (
        first_epoch is not None
        and segment.end_offset < log_start_offset
        and all(epoch <= first_epoch for epoch in segment.leader_epochs)
    )
