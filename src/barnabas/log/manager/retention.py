"""Which of a log's oldest segments go: by size, by time, and what lies before the start of the log."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.log.partition.log_config import UNLIMITED
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.segment import Segment


def delete_old_segments(
    log: PartitionLog, now_ms: int, modified_ms: Callable[[Segment], int], checkpointed: int = 0
) -> int:
    """Deletes what retention gives up; returns how many segments went. Raises KafkaError when the directory fails.

    `modified_ms` says when a segment without any timestamps was written last. Of a tiered log it is the local
    retention, and what is not copied stays; what it deletes here can be read from remote storage. `checkpointed` is, of
    a tiered log, up to where its recovery point is in its checkpoint.
    """
    config = log.config
    deleted = 0
    if config.is_deleted:
        retention_bytes = config.effective_local_retention_bytes if log.is_tiered else config.retention_bytes
        retention_ms = config.effective_local_retention_ms if log.is_tiered else config.retention_ms
        kind = "local log" if log.is_tiered else "log"
        excess_bytes = log.size_bytes - retention_bytes

        def is_excess(segment: Segment) -> bool:
            nonlocal excess_bytes
            if excess_bytes < segment.size_bytes:
                return False
            excess_bytes -= segment.size_bytes
            return True

        def is_old(segment: Segment) -> bool:
            youngest_ms = segment.max_timestamp.timestamp_ms
            return now_ms - (youngest_ms if youngest_ms >= 0 else modified_ms(segment)) > retention_ms

        if retention_bytes > UNLIMITED:
            deleted += _delete(log, is_excess, checkpointed, f"{kind} retention size {retention_bytes} breach")
        if retention_ms > UNLIMITED:
            deleted += _delete(log, is_old, checkpointed, f"{kind} retention time {retention_ms}ms breach")
    return deleted + _delete(
        log, lambda segment: _is_before_start(log, segment), checkpointed, "log start offset breach"
    )


def _is_before_start(log: PartitionLog, segment: Segment) -> bool:
    following = log.segments.after(segment)
    return following is not None and following.base_offset <= log.log_start_offset


def _delete(log: PartitionLog, is_doomed: Callable[[Segment], bool], checkpointed: int, reason: str) -> int:
    """Deletes the oldest segments for as long as the predicate holds.

    Invariants: a segment goes only when all of it lies below the high watermark; and an empty active one stays. Of a
    tiered log, one goes only when all of it is in remote storage, or before the start of the log; and when all of it
    lies below the recovery point in the checkpoint. Then its leader epochs are in theirs, without which nobody finds it
    in remote storage; and a load after a loss of power, which may undo some of the deletions and not others, sees that
    the gap is no hole.
    """
    count = 0
    for segment in log.segments:
        following = log.segments.after(segment)
        end = log.log_end_offset if following is None else following.base_offset
        if end > log.high_watermark or (following is None and not segment.size_bytes):
            break
        if log.is_tiered and end > min(
            max(log.remote_end_offset, log.log_start_offset), log.recovery_point, checkpointed
        ):
            break
        if not is_doomed(segment):
            break
        count += 1
    return log.delete_first_segments(count, reason)
