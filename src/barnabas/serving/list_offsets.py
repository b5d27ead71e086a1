"""Which offset belongs to a time or a place of a partition, and what of it a client may know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.log.partition.read_plans import ReadIsolation, visible_end
from barnabas.log.partition.timestamp_lookup import ListedOffset
from barnabas.wire.errors import KafkaError
from barnabas.wire.sentinels import EARLIEST_LOCAL_TIMESTAMP, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_TIMESTAMP

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.serving.remote_fetch import RemoteReader

_ALWAYS_KNOWN: Final = frozenset((EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP))


def latest_offset(
    partition: Partition, isolation: ReadIsolation, current_leader_epoch: int, *, leader_only: bool
) -> ListedOffset:
    """The end of what the reader may see, which is never looked up.

    Raises KafkaError as `Partition.readable_log`, and OFFSET_NOT_AVAILABLE for clients of a leader that does not know
    yet how far its predecessor's records were committed (KIP-207).
    """
    log = partition.readable_log(current_leader_epoch, leader_only=leader_only)
    _check_known(partition, isolation)
    return ListedOffset(NO_TIMESTAMP, visible_end(log, isolation), partition.leader_epoch)


async def find_offset(
    partition: Partition,
    timestamp_ms: int,
    isolation: ReadIsolation,
    current_leader_epoch: int,
    *,
    leader_only: bool,
    remote: RemoteReader | None = None,
) -> ListedOffset | None:
    """The first record at or after a time, or a special place (`log.timestamp_lookup`); None if there is none.

    Raises KafkaError as `latest_offset`; the log's beginning is known in any case.
    """
    if timestamp_ms == LATEST_TIMESTAMP:
        return latest_offset(partition, isolation, current_leader_epoch, leader_only=leader_only)
    log = partition.readable_log(current_leader_epoch, leader_only=leader_only)
    found = None
    if remote is not None and timestamp_ms >= 0 and log.log_start_offset < log.local_log_start_offset:
        found = await remote.find_timestamp(log, timestamp_ms)
    if found is None:
        found = await log.list_offset(timestamp_ms)
    if timestamp_ms in _ALWAYS_KNOWN:
        return found
    if found is not None and found.offset < visible_end(log, isolation):
        return found
    _check_known(partition, isolation)
    return None


def offsets_before(
    partition: Partition,
    now_ms: int,
    timestamp_ms: int,
    count_max: int,
    *,
    is_client: bool,
    leader_only: bool,
) -> list[int]:
    """Where segments begin that were last changed at or before a time (-1: any; -2: the first alone), the latest first:
    what ListOffsets answered before version 1. Raises KafkaError as `Partition.readable_log`.
    """
    log = partition.readable_log(leader_only=leader_only)
    starts = _segment_starts(log, now_ms)
    if timestamp_ms == LATEST_TIMESTAMP:
        chosen = starts
    elif timestamp_ms == EARLIEST_TIMESTAMP:
        chosen = starts[:1]
    else:
        last = max((place for place, (_, modified_ms) in enumerate(starts) if modified_ms <= timestamp_ms), default=-1)
        chosen = starts[: last + 1]
    offsets = sorted((offset for offset, _ in chosen[max(0, len(chosen) - max(0, count_max)) :]), reverse=True)
    high_watermark = log.high_watermark
    if is_client and any(offset > high_watermark for offset in offsets):
        return [high_watermark, *(offset for offset in offsets if offset <= high_watermark)]
    return offsets


def _segment_starts(log: PartitionLog, now_ms: int) -> list[tuple[int, int]]:
    """First offset and time of the last change of each segment, and the end of the log, as of now."""
    files = log.log_directory.loop_files  # the last of them may be yet to be made
    starts = [
        (max(segment.base_offset, log.log_start_offset), files.status(segment.path).modified_ms)
        for segment in log.segments
    ]
    if log.segments.active.size_bytes:
        starts.append((log.log_end_offset, now_ms))
    return starts


def _check_known(partition: Partition, isolation: ReadIsolation) -> None:
    if isolation is not ReadIsolation.LOG_END:
        code = partition.latest_offset_error()
        if code is not None:
            raise KafkaError(code, f"{partition!r} does not know yet what its predecessor committed")
