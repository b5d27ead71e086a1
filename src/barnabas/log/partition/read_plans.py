"""Which bytes a read of a log gets: by offset and by what the reader may see (KIP-98)."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, Protocol

from barnabas.log.partition.log_state import LogState
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.log.segments.segment import ReadPlan, Segment


class ReadIsolation(enum.Enum):
    """How far a reader sees."""

    LOG_END = enum.auto()
    """A follower: everything."""
    HIGH_WATERMARK = enum.auto()
    """A consumer of `read_uncommitted`: what is replicated."""
    COMMITTED = enum.auto()
    """A consumer of `read_committed`: up to the last stable offset, and told which transactions were aborted."""


_LOG_END: Final = ReadIsolation.LOG_END
_HIGH_WATERMARK: Final = ReadIsolation.HIGH_WATERMARK


class LogOffsets(Protocol):
    """Up to where a log goes."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...


class LogRead(NamedTuple):
    """Where the data is, and what belongs beside it into a Fetch response."""

    plan: ReadPlan | None
    """None where there is nothing (yet) that the reader may see."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: list[AbortedTransaction] | None
    """The aborted transactions among what is read; None for readers who do not ask."""

    @property
    def available_bytes(self) -> int:
        return 0 if self.plan is None else self.plan.length_bytes


def visible_end(log: LogOffsets, isolation: ReadIsolation) -> int:
    """The offset before which the reader sees everything."""
    if isolation is _LOG_END:
        return log.log_end_offset
    return log.high_watermark if isolation is _HIGH_WATERMARK else log.last_stable_offset


def plan_log_read(
    log: LogState, log_end_offset: int, offset: int, bytes_max: int, isolation: ReadIsolation, has_minimum: bool
) -> LogRead:
    """`PartitionLog.read`, whose checks have been made, of a log that ends at `log_end_offset` for whoever reads."""
    end_offset = log_end_offset if isolation is _LOG_END else visible_end(log, isolation)
    plan = None
    aborted: list[AbortedTransaction] | None = None
    if offset < end_offset:
        plan, segment = _find(log, offset, end_offset, bytes_max, has_minimum)
        if isolation is ReadIsolation.COMMITTED:
            aborted = [] if plan is None else _aborted(log, offset, plan, segment)
    elif isolation is ReadIsolation.COMMITTED:
        aborted = []
    return LogRead(plan, log.high_watermark, log.last_stable_offset, log.log_start_offset, log_end_offset, aborted)


def available_bytes(log: LogState, log_end_offset: int, offset: int, isolation: ReadIsolation) -> int:
    """The bytes between `offset` and what the reader may see, over all segments; `log_end_offset` as above."""
    end_offset = log_end_offset if isolation is _LOG_END else visible_end(log, isolation)
    if offset >= end_offset:
        return 0
    first = log.segments.floor(offset)
    total = _end_position(first, end_offset) - first.position_of(offset)
    segment = log.segments.after(first)
    while segment is not None and segment.base_offset < end_offset:
        total += _end_position(segment, end_offset)
        segment = log.segments.after(segment)
    return total


def _find(
    log: LogState, offset: int, end_offset: int, bytes_max: int, has_minimum: bool
) -> tuple[ReadPlan | None, Segment]:
    """The plan within the segment that has `offset` or, where the cleaner has left a gap, the next record."""
    segment = log.segments.floor(offset)
    while True:
        end_position = None if segment.next_offset <= end_offset else segment.position_of(end_offset)
        plan = segment.plan_read(offset, bytes_max, end_position, has_minimum=has_minimum)
        if plan is not None:
            return (plan if plan.length_bytes else None), segment
        following = log.segments.after(segment)
        if following is None or following.base_offset >= end_offset:
            return None, segment
        segment = following


def _end_position(segment: Segment, end_offset: int) -> int:
    return segment.size_bytes if segment.next_offset <= end_offset else segment.position_of(end_offset)


def _aborted(log: LogState, offset: int, plan: ReadPlan, segment: Segment) -> list[AbortedTransaction]:
    """The aborted transactions that overlap what is read. The end of that is known from the index only roughly, as in
    Kafka: a transaction too many does no harm.
    """
    if not any(each.transaction_index for each in log.segments.from_offset(segment.base_offset)):
        return []
    entry = segment.offset_index.first_from_position(plan.position + plan.length_bytes)
    following = log.segments.after(segment)
    if entry is not None:
        upper = entry.offset
    else:
        upper = log.log_end_offset if following is None else following.base_offset
    found: list[AbortedTransaction] = []
    each: Segment | None = segment
    while each is not None:
        some, is_complete = each.transaction_index.collect(offset, upper)
        found += some
        if is_complete:
            break
        each = log.segments.after(each)
    return found
