"""ListOffsets: the offset of a place or of a time in one log (KIP-79, KIP-405, KIP-734, KIP-1005)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.kernel.host import Files, Host, OffloadKind
from barnabas.log.partition.log_state import LogState
from barnabas.log.segments.batch_scan import (
    FoundTimestamp,
    TimestampSearch,
    search_largest_timestamp,
    search_timestamp,
)
from barnabas.log.segments.segment import Segment
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP

_LARGEST: Final = -3


class ListedOffset(NamedTuple):
    """The answer of ListOffsets; -1 where there is no timestamp, offset or epoch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def is_searched(timestamp_ms: int) -> bool:
    """Whether files are read for the answer."""
    return timestamp_ms >= 0 or timestamp_ms == _LARGEST


async def list_offset(log: LogState, host: Host, timestamp_ms: int) -> ListedOffset | None:
    """`PartitionLog.list_offset`, for a log that is online. Raises KafkaError for a number without a meaning."""
    match timestamp_ms:
        case _ if timestamp_ms >= 0:
            return await _by_time(log, host, timestamp_ms)
        case -1:
            return ListedOffset(NO_TIMESTAMP, log.log_end_offset, log.leader_epochs.latest_epoch)
        case -2:
            earliest = log.leader_epochs.earliest()
            is_known = earliest is not None and earliest.start_offset <= log.log_start_offset
            epoch = earliest.epoch if earliest is not None and is_known else NO_EPOCH
            return ListedOffset(NO_TIMESTAMP, log.log_start_offset, epoch)
        case -4:
            local_start = log.local_start_offset
            return ListedOffset(NO_TIMESTAMP, local_start, log.leader_epochs.epoch_for_offset(local_start))
        case _ if timestamp_ms == _LARGEST:
            return await _largest(log, host)
        case -5:
            last = log.remote_end_offset - 1 if log.is_tiered and log.remote_end_offset else NO_OFFSET
            return ListedOffset(NO_TIMESTAMP, last, log.leader_epochs.epoch_for_offset(last))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"ListOffsets has no place for timestamp {timestamp_ms}")


async def _by_time(log: LogState, host: Host, timestamp_ms: int) -> ListedOffset | None:
    """Looks on from segment to segment, since the records that made one look right may lie below the log's start."""
    for segment in log.segments:
        search = segment.plan_timestamp_search(timestamp_ms, log.log_start_offset)
        if search is None:
            continue
        found = await _search(host, search_timestamp, segment, search)
        if found is not None:
            return _listed(found)
    return None


async def _largest(log: LogState, host: Host) -> ListedOffset | None:
    newest = max(log.segments, key=lambda segment: segment.max_timestamp.timestamp_ms)
    timestamp_ms = newest.max_timestamp.timestamp_ms
    search = newest.plan_timestamp_search(timestamp_ms, newest.base_offset)
    if search is None:
        return None
    found = await _search(host, search_largest_timestamp, newest, search)
    return None if found is None else _listed(found)


async def _search(
    host: Host,
    function: Callable[[Files, TimestampSearch], FoundTimestamp | None],
    segment: Segment,
    search: TimestampSearch,
) -> FoundTimestamp | None:
    work = host.offload(OffloadKind.DISK, function, host.files, search, lane=os.path.dirname(segment.directory))
    segment.pin()
    work.add_done_callback(lambda _: segment.unpin())
    return await asyncio.shield(work)


def _listed(found: FoundTimestamp) -> ListedOffset:
    return ListedOffset(found.timestamp_ms, found.offset, found.leader_epoch)
