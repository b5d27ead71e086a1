"""Which of a log's oldest segments go: by size, by time, and what lies before the start of the log."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.log.partition.log_config import UNLIMITED
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.segment import Segment


def delete_old_segments(log: PartitionLog, now_ms: int, modified_ms: Callable[[Segment], int]) -> int:
    """Deletes what retention gives up; returns how many segments went. Raises KafkaError when the directory fails.

    `modified_ms` says when a segment without any timestamps was written last.
    """
    config = log.config
    deleted = 0
    if config.is_deleted:
        excess_bytes = log.size_bytes - config.retention_bytes

        def is_excess(segment: Segment) -> bool:
            nonlocal excess_bytes
            if excess_bytes < segment.size_bytes:
                return False
            excess_bytes -= segment.size_bytes
            return True

        def is_old(segment: Segment) -> bool:
            youngest_ms = segment.max_timestamp.timestamp_ms
            return now_ms - (youngest_ms if youngest_ms >= 0 else modified_ms(segment)) > config.retention_ms

        if config.retention_bytes > UNLIMITED:
            deleted += _delete(log, is_excess, f"log retention size {config.retention_bytes} breach")
        if config.retention_ms > UNLIMITED:
            deleted += _delete(log, is_old, f"log retention time {config.retention_ms}ms breach")
    return deleted + _delete(log, lambda segment: _is_before_start(log, segment), "log start offset breach")


def _is_before_start(log: PartitionLog, segment: Segment) -> bool:
    following = log.segments.after(segment)
    return following is not None and following.base_offset <= log.log_start_offset


def _delete(log: PartitionLog, is_doomed: Callable[[Segment], bool], reason: str) -> int:
    """Deletes the oldest segments for as long as the predicate holds.

    Invariant: a segment goes only when all of it lies below the high watermark; and an empty active one stays.
    """
    count = 0
    for segment in log.segments:
        following = log.segments.after(segment)
        end = log.log_end_offset if following is None else following.base_offset
        if end > log.high_watermark or (following is None and not segment.size_bytes) or not is_doomed(segment):
            break
        count += 1
    return log.delete_first_segments(count, reason)
