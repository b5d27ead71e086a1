"""Which log is due for compaction, and how far: Apache Kafka's LogCleanerManager, of what is known without reading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

GROUP_SEGMENTS_MAX: Final = 100
"""So many are replaced in one turn of the loop, in a few milliseconds; the next cleaning joins what they became."""


class SegmentFacts(NamedTuple):
    """One segment, as far as the choice goes by it. A tuple, because there may be very many."""

    base_offset: int
    size_bytes: int
    index_bytes: int
    end_offset: int
    """Where the next segment begins."""
    max_timestamp_ms: int
    first_timestamp_ms: int = 0
    """Of the first batch; 0 and less where none is known."""


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """What may be compacted of a log."""

    first_dirty_offset: int
    end_offset: int
    ratio: float
    """Of the bytes that would be read, those that are not compacted yet."""
    is_overdue: bool
    """A record has waited for `max.compaction.lag.ms`."""


def cleanable_range(
    inactive: Sequence[SegmentFacts],
    first_dirty_offset: int,
    *,
    stable_offset: int,
    min_lag_ms: int,
    max_lag_ms: int,
    now_ms: int,
) -> CleanableRange | None:
    """`inactive` are all segments but the active one, in order; None where there is nothing to compact.

    Invariant: nothing at or behind `stable_offset` (not committed, of an open transaction, or not durable) is in it.
    """
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty_offset
    is_overdue = False
    for segment in inactive:
        if segment.end_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        if segment.end_offset > stable_offset or (min_lag_ms > 0 and segment.max_timestamp_ms > now_ms - min_lag_ms):
            break
        dirty_bytes += segment.size_bytes
        end_offset = segment.end_offset
        is_overdue = is_overdue or 0 < segment.first_timestamp_ms < now_ms - max_lag_ms
    if not dirty_bytes:
        return None
    return CleanableRange(first_dirty_offset, end_offset, dirty_bytes / (clean_bytes + dirty_bytes), is_overdue)


def group_segments(
    segments: Iterable[SegmentFacts], *, size_bytes_max: int, index_bytes_max: int, offsets_max: int
) -> list[list[SegmentFacts]]:
    """Segments that become one each, in order: small ones join as long as the whole is no larger than a segment."""
    groups: list[list[SegmentFacts]] = []
    size_bytes = index_bytes = 0
    for segment in segments:
        size_bytes += segment.size_bytes
        index_bytes += segment.index_bytes
        if (
            groups
            and len(groups[-1]) < GROUP_SEGMENTS_MAX
            and size_bytes <= size_bytes_max
            and index_bytes <= index_bytes_max
            and segment.end_offset - groups[-1][0].base_offset <= offsets_max
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes, index_bytes = segment.size_bytes, segment.index_bytes
    return groups
