"""Reads from remote storage: for consumers, for look-ups by time, and for followers. Off the loop, and bounded."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.follower.ports import AuxiliaryState
from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.partition.timestamp_lookup import ListedOffset
from barnabas.log.producers.producer_snapshot import CorruptSnapshotError, parse_snapshot
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.serving.remote_fetch import RemoteFetch, RemoteRecords
from barnabas.tiered.auxiliary_state import plan_producers, read_history, read_producers
from barnabas.tiered.lineage import agreed_end_offset
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.metadata_topic import MetadataTopic
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.remote_quotas import RemoteQuota
from barnabas.tiered.remote_segment import SegmentIndexes, cut_at, find_timestamp, load_indexes, read_batches
from barnabas.tiered.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from barnabas.tiered.settings import TieredSettings
from barnabas.tiered.storage import RemoteStore, open_store
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import RecordsError

if TYPE_CHECKING:
    from barnabas.log.partition.partition_log import PartitionLog

Result = TypeVar("Result")
_LOOKED_AT_PER_TURN: Final = 1000
_READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of what one fetch gets at a time, but for a batch that is larger."""
_CACHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Indexes are kept in memory: of `remote.log.index.file.cache.total.size.bytes`, which Kafka keeps on disks, at most
this much."""

_FIRST_OPEN_MAX: Final = 10_000


class RemoteReads:
    """Those of one broker. It is `serving.remote_fetch.RemoteReader`."""

    def __init__(
        self,
        host: Host,
        timers: Timers,
        settings: TieredSettings,
        topic: MetadataTopic,
        quota: RemoteQuota,
        logger: logging.Logger,
        count_fetched: Callable[[str, int], object] = lambda _topic, _size_bytes: None,
    ) -> None:
        self._host = host
        self._timers = timers
        self._settings = settings
        self._topic = topic
        self._quota = quota
        self._logger = logger
        self._count_fetched = count_fetched
        self._indexes: OrderedDict[RemoteLogSegmentId, SegmentIndexes] = OrderedDict()
        self._indexes_bytes = 0
        self._loading: dict[RemoteLogSegmentId, asyncio.Task[SegmentIndexes]] = {}
        self._pending = 0
        self._first_open: dict[RemoteLogSegmentId, int] = {}

    def reconfigure(self, settings: TieredSettings) -> None:
        """Takes other settings: how long a fetch waits, and how large the cache of indexes is."""
        self._settings = settings

    async def read(self, fetch: RemoteFetch) -> RemoteRecords:
        """What a consumer gets; nothing where that takes longer than `remote.fetch.max.wait.ms`, also because of the
        quota, or too many wait: it comes back. Raises KafkaError: OFFSET_OUT_OF_RANGE, and UNKNOWN_SERVER_ERROR where
        the storage fails."""
        try:
            async with asyncio.timeout(self._settings.fetch_wait_max_ms / 1000):
                await self._quota.passable()
                found = await self._read_in_time(fetch)
        except TimeoutError:
            return RemoteRecords(b"", [])
        self._quota.record(len(found.data))
        return found

    async def _read_in_time(self, fetch: RemoteFetch) -> RemoteRecords:
        if self._pending >= self._settings.reads_pending_max:
            return RemoteRecords(b"", [])
        self._pending += 1
        try:
            return await self._read(fetch)
        except (TimeoutError, OffloadFullError):
            return RemoteRecords(b"", [])
        except (OSError, RecordsError) as error:
            self._logger.warning("Reading %r at %d from remote storage failed: %s", fetch.log, fetch.offset, error)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"remote storage cannot be read: {error}") from error
        finally:
            self._pending -= 1

    async def find_timestamp(self, log: PartitionLog, timestamp_ms: int) -> ListedOffset | None:
        """The first record in remote storage that is not older, and not in the local log; None where there is none.

        Invariant: what is found is what a read at its offset gets: of a segment that goes on with records which the log
        has lost, those before them are looked at. Raises KafkaError as `read`.
        """
        cache: RemoteLogMetadataCache = await self._caught_up(topic_id_partition(log))
        offset: int | None = log.log_start_offset
        looked_at = 0
        while offset is not None and offset < log.local_log_start_offset:
            looked_at += 1
            if not looked_at % _LOOKED_AT_PER_TURN:
                await yield_to_loop()
            epoch = log.leader_epochs.epoch_for_offset(offset)
            segment = cache.find(epoch, offset)
            if segment is None:
                offset = _behind_hole(log, cache, epoch, offset)
                continue
            end_offset = agreed_end_offset(segment, log.leader_epochs, log.log_end_offset, offset)
            if segment.max_timestamp_ms >= timestamp_ms:
                try:
                    indexes = await self._indexes_of(segment)
                    found = await self._off_loop(
                        find_timestamp, segment, indexes, timestamp_ms, max(offset, log.log_start_offset), end_offset
                    )
                except (OSError, RecordsError) as error:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR, f"remote storage cannot be read: {error}"
                    ) from error
                if found is not None:
                    return ListedOffset(found.timestamp_ms, found.offset, found.leader_epoch)
            offset = end_offset
        return None

    async def auxiliary_state(self, log: PartitionLog, leader_epoch: int, last_offset: int) -> AuxiliaryState | None:
        """What a follower needs that goes on behind `last_offset`; None where no segment has that yet.

        Raises KafkaError where the storage fails.
        """
        partition = topic_id_partition(log)
        cache = await self._caught_up(partition)
        segment = cache.find(leader_epoch, last_offset)
        if segment is None:
            return None
        settings, end_offset = self._settings, last_offset + 1
        try:
            history = await self._off_loop(read_history, segment, leader_epoch, last_offset)
            plan = plan_producers(cache, history, segment, end_offset)
            producers = await self._off_loop(
                read_producers,
                plan,
                settings.producer_id_expiration_ms,
                settings.transaction_timeout_max_ms,
                self._host.clock.time_ms(),
            )
            return AuxiliaryState(end_offset, history, producers)
        except Exception as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"remote storage cannot be read: {error}") from error

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """The segment is deleted."""
        self._first_open.pop(segment_id, None)
        indexes = self._indexes.pop(segment_id, None)
        if indexes is not None:
            self._indexes_bytes -= indexes.size_bytes

    async def _read(self, fetch: RemoteFetch) -> RemoteRecords:
        log, offset = fetch.log, fetch.offset
        cache = self._topic.cache(topic_id_partition(log))
        segment = cache.find(log.leader_epochs.epoch_for_offset(offset), offset)
        if segment is None:
            # It may have begun to lead, or to follow, a moment ago.
            cache = await self._caught_up(topic_id_partition(log))
            segment = cache.find(log.leader_epochs.epoch_for_offset(offset), offset)
        following = offset
        while segment is not None:
            indexes = await self._indexes_of(segment)
            found = await self._off_loop(
                _read_batches, segment, indexes, offset, min(fetch.bytes_max, _READ_BYTES_MAX), fetch.has_minimum
            )
            end_offset = agreed_end_offset(segment, log.leader_epochs, log.log_end_offset, following)
            if end_offset <= segment.end_offset:
                found = cut_at(found, end_offset)
            if found.is_found:
                aborted = await self._aborted(log, segment, offset, found.end_position) if fetch.is_committed else None
                self._count_fetched(log.partition.topic, len(found.data))
                return RemoteRecords(found.data, aborted)
            if end_offset <= following:
                return RemoteRecords(b"", [])  # it was cut off meanwhile
            following = end_offset
            segment = cache.find(log.leader_epochs.epoch_for_offset(following), following)
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {log.partition} is in no remote segment of leader epoch"
            f" {log.leader_epochs.epoch_for_offset(offset)}",
        )

    async def _aborted(
        self, log: PartitionLog, segment: RemoteLogSegmentMetadata, offset: int, end_position: int
    ) -> list[AbortedTransaction]:
        """Those among what is read: from this segment's index on, up to where no later one can have more.

        Invariant: of what is not known nothing is read. Raises KafkaError, CORRUPT_MESSAGE, where an index is lost that
        could have one of them: a consumer of committed records is told, and need not come back for ever.
        """
        cache = self._topic.cache(segment.segment_id.partition)
        upper = (await self._indexes_of(segment)).end_offset_of(end_position) or segment.end_offset + 1
        found: list[AbortedTransaction] = []
        each: RemoteLogSegmentMetadata | None = segment
        following = max(offset, segment.start_offset)  # a segment may have no record at its last offsets
        while each is not None:
            indexes = await self._indexes_of(each)
            end_offset = agreed_end_offset(each, log.leader_epochs, log.log_end_offset, following)
            if indexes.aborted is None:
                self.forget(each.segment_id)  # it may have been put back
                indexes = await self._indexes_of(each)
                if indexes.aborted is None:
                    raise self._index_lost(log, each, offset, end_offset)
            some, is_complete = indexes.collect_aborted(offset, upper, end_offset)
            found += some
            if is_complete:
                return found
            if end_offset > each.end_offset and await self._first_open_offset(each) >= upper:
                return found
            if end_offset <= following:
                return found  # it was cut off meanwhile
            following = end_offset
            each = cache.find(log.leader_epochs.epoch_for_offset(following), following)
        for local in log.segments.from_offset(following):
            some, is_complete = local.transaction_index.collect(offset, upper)
            found += [entry for entry in some if entry not in found]
            if is_complete:
                break
        return found

    def _index_lost(
        self, log: PartitionLog, segment: RemoteLogSegmentMetadata, offset: int, end_offset: int
    ) -> KafkaError:
        name = object_name(segment, ObjectKind.TRANSACTION_INDEX)
        self._logger.warning(
            "Offset %d of %s is not given to consumers of committed records, since %s is lost: put it back, have them"
            " begin at offset %d, or have them read uncommitted records",
            *(offset, log.partition, name, end_offset),
        )
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{name} is lost")

    async def _first_open_offset(self, segment: RemoteLogSegmentMetadata) -> int:
        """Where the first of the transactions begins that are open at the segment's end: no later segment has more of
        what ends before that. Without this a read would look at all later segments where nothing was aborted."""
        known = self._first_open.get(segment.segment_id)
        if known is None:
            known = await self._off_loop(_first_open_offset, segment)
            while len(self._first_open) >= _FIRST_OPEN_MAX:
                del self._first_open[next(iter(self._first_open))]
            self._first_open[segment.segment_id] = known
        return known

    async def _caught_up(self, partition: TopicIdPartition) -> Any:
        try:
            return await self._topic.catch_up(partition)
        except TimeoutError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "__remote_log_metadata cannot be read now") from error

    async def _indexes_of(self, segment: RemoteLogSegmentMetadata) -> SegmentIndexes:
        known = self._indexes.get(segment.segment_id)
        if known is not None:
            self._indexes.move_to_end(segment.segment_id)
            return known
        loading = self._loading.get(segment.segment_id)
        if loading is None:
            loading = self._host.loop.create_task(self._load_indexes(segment), name="load-remote-indexes")
            self._loading[segment.segment_id] = loading
            loading.add_done_callback(lambda _: self._loading.pop(segment.segment_id, None))
        return await asyncio.shield(loading)

    async def _load_indexes(self, segment: RemoteLogSegmentMetadata) -> SegmentIndexes:
        """Goes on when a fetch has waited for long enough: the next one finds them, however slow the storage is."""
        indexes = await self._off_loop(load_indexes, segment)
        if segment.segment_id not in self._indexes:
            self._indexes[segment.segment_id] = indexes
            self._indexes_bytes += indexes.size_bytes
        limit = min(self._settings.index_cache_bytes, _CACHED_BYTES_MAX)
        while self._indexes_bytes > limit and len(self._indexes) > 1:
            _, dropped = self._indexes.popitem(last=False)
            self._indexes_bytes -= dropped.size_bytes
        return indexes

    async def _off_loop(self, function: Callable[..., Result], *arguments: Any) -> Result:
        settings = self._settings
        work = self._host.offload(
            OffloadKind.REMOTE, _with_store, self._host.files, settings.url, settings.options, function, arguments
        )
        result: Result = await asyncio.shield(work)
        return result


def topic_id_partition(log: PartitionLog) -> TopicIdPartition:
    """The partition of a tiered log. Raises KafkaError where the log has no topic id."""
    if log.topic_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{log!r} has no topic id, which remote storage needs")
    return TopicIdPartition(log.topic_id, log.partition)


def _behind_hole(log: PartitionLog, cache: RemoteLogMetadataCache, leader_epoch: int, offset: int) -> int | None:
    """Where the next segment may have what the log has, of an offset that is in none; None where there is no other."""
    following = [
        start for start in (cache.start_behind(leader_epoch, offset), log.leader_epochs.start_behind(offset)) if start
    ]
    return min(following, default=None)


def _with_store(
    files: Any, url: str, options: str, function: Callable[..., Result], arguments: tuple[Any, ...]
) -> Result:
    return function(open_store(files, url, options), *arguments)


def _read_object(store: RemoteStore, segment: RemoteLogSegmentMetadata, kind: ObjectKind) -> bytes:
    return store.read_all(object_name(segment, kind))


def _first_open_offset(store: RemoteStore, segment: RemoteLogSegmentMetadata) -> int:
    """The start of the segment where its snapshot of producers is lost: then what comes later must be looked at."""
    try:
        producers = parse_snapshot(_read_object(store, segment, ObjectKind.PRODUCER_SNAPSHOT))
    except (FileNotFoundError, CorruptSnapshotError):
        return segment.start_offset
    begun = (each.transaction_first_offset for each in producers)
    return min((each for each in begun if each >= 0), default=segment.end_offset + 1)


def _read_batches(
    store: RemoteStore,
    segment: RemoteLogSegmentMetadata,
    indexes: SegmentIndexes,
    offset: int,
    bytes_max: int,
    has_minimum: bool,
) -> Any:
    return read_batches(store, segment, indexes, offset, bytes_max, has_minimum=has_minimum)
