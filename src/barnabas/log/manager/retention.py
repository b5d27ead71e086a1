"""Which of a log's oldest segments go: by size, by time, and what lies before the start of the log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from barnabas.log.partition.log_config import UNLIMITED
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.segment import Segment


def doomed_end_offset(log: PartitionLog, now_ms: int, modified_ms: Callable[[Segment], int]) -> int:
    """Up to where retention gives the log up; -1 for nothing. `modified_ms` as of `delete_old_segments`."""
    end_offset = -1
    for segment, _ in _doomed(log, now_ms, modified_ms):
        end_offset = _end_offset(log, segment)
    return end_offset


def delete_old_segments(
    log: PartitionLog, now_ms: int, modified_ms: Callable[[Segment], int], checkpointed: int
) -> int:
    """Deletes what retention gives up; returns how many segments went. Raises KafkaError when the directory fails.

    `modified_ms` says when a segment without any timestamps was written last. `checkpointed` is up to where the log's
    recovery point is in its checkpoint. Of a tiered log it is the local retention; what it deletes here can be read
    from remote storage.

    Invariant: a segment goes only when all of it lies below the recovery point in the checkpoint, and another is behind
    it. A loss of power may undo some of the deletions and not others, in any order: then a load sees that the gap is no
    hole behind which nothing may be kept, and always finds a segment that says where the log goes on. The leader epochs
    of what goes from a tiered log are in their checkpoint by then, without which nobody finds it in remote storage.
    """
    counts: Counter[str] = Counter()
    for segment, reason in _doomed(log, now_ms, modified_ms):
        if segment is log.segments.active or _end_offset(log, segment) > min(log.recovery_point, checkpointed):
            break
        counts[reason] += 1
    return sum(log.delete_first_segments(count, reason) for reason, count in counts.items())


def _doomed(log: PartitionLog, now_ms: int, modified_ms: Callable[[Segment], int]) -> Iterator[tuple[Segment, str]]:
    """The oldest segments, for as long as one rule after the other gives them up, and why.

    Invariants: a segment goes only when all of it lies below the high watermark; and an empty active one stays. Of a
    tiered log, one goes only when all of it is in remote storage, or before the start of the log.
    """
    rules = _rules(log, now_ms, modified_ms)
    for segment in log.segments:
        end = _end_offset(log, segment)
        if end > log.high_watermark or (segment is log.segments.active and not segment.size_bytes):
            return
        if log.is_tiered and end > max(log.remote_end_offset, log.log_start_offset):
            return
        while not rules[0][0](segment):
            rules.popleft()
            if not rules:
                return
        yield segment, rules[0][1]


def _rules(
    log: PartitionLog, now_ms: int, modified_ms: Callable[[Segment], int]
) -> deque[tuple[Callable[[Segment], bool], str]]:
    """What gives a segment up, given that all before it go."""
    config = log.config
    rules: deque[tuple[Callable[[Segment], bool], str]] = deque()
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
            rules.append((is_excess, f"{kind} retention size {retention_bytes} breach"))
        if retention_ms > UNLIMITED:
            rules.append((is_old, f"{kind} retention time {retention_ms}ms breach"))
    rules.append((lambda segment: _is_before_start(log, segment), "log start offset breach"))
    return rules


def _end_offset(log: PartitionLog, segment: Segment) -> int:
    following = log.segments.after(segment)
    return log.append_end_offset if following is None else following.base_offset


def _is_before_start(log: PartitionLog, segment: Segment) -> bool:
    following = log.segments.after(segment)
    return following is not None and following.base_offset <= log.log_start_offset
