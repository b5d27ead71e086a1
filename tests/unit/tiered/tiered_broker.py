"""A log, its remote storage, and what copies and reads it, for tests on any host; the metadata topic is played."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.serving.remote_fetch import RemoteFetch
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.metadata_records import decode_metadata, encode_metadata
from barnabas.tiered.object_names import object_names
from barnabas.tiered.remote_log_manager import RemoteLogManager
from barnabas.tiered.remote_metrics import RemoteMetrics
from barnabas.tiered.remote_quotas import RemoteQuotas
from barnabas.tiered.remote_reads import RemoteReads
from barnabas.tiered.segment_metadata import (
    RemoteLogMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
    partition_of,
)
from barnabas.tiered.settings import TieredSettings
from barnabas.tiered.storage import open_store
from barnabas.wire.batch_formats import read_records
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.records import Record
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker

TOPIC_ID = Uuid(bytes(range(16)))
TIERED = LogConfig(
    remote_storage_enable=True,
    segment_bytes=1500,
    index_interval_bytes=300,
    file_delete_delay_ms=100,
    retention_ms=-1,
    local_retention_bytes=3000,
)
SETTINGS = LogSettings(cleaner_enable=False, remote_storage_system_enable=True, directory_patience_ms=0)
REMOTE_URL = "file:///tier"


@dataclass(slots=True)
class PlayedRecords:
    """`__remote_log_metadata`, which is replicated, and outlives every broker."""

    values: list[bytes] = field(default_factory=list)


class PlayedTopic:
    """One broker's view of it. It is `metadata_topic.MetadataTopic`."""

    def __init__(self, records: PlayedRecords, outcome: Callable[[], tuple[bool, bool]] = lambda: (True, True)) -> None:
        """`outcome` says of each record whether it is written, and whether its publisher hears of that."""
        self.records = records
        self.outcome = outcome
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._read = 0
        self.refused = 0

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        return self._caches.setdefault(partition, RemoteLogMetadataCache())

    async def catch_up(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        await asyncio.sleep(0.001)
        self.read()
        return self.cache(partition)

    async def publish(self, metadata: RemoteLogMetadata) -> None:
        await asyncio.sleep(0.001)
        is_written, is_heard = self.outcome()
        if is_written:
            self.records.values.append(encode_metadata(metadata))
        await asyncio.sleep(0.001)
        if not is_heard or not is_written:
            raise TimeoutError
        self.read()

    async def close(self) -> None:
        pass

    def read(self) -> None:
        for value in self.records.values[self._read :]:
            metadata = decode_metadata(value)
            try:
                self.cache(partition_of(metadata)).apply(metadata)
            except IllegalTransitionError:
                self.refused += 1
        self._read = len(self.records.values)


class PlayedPartition:
    """A partition that this broker leads."""

    def __init__(self, log: PartitionLog, leader_epoch: int) -> None:
        self.log: PartitionLog | None = log
        self.is_leader = True
        self.leader_id = 1
        self.leader_epoch = leader_epoch
        self.topic_partition = log.partition
        self.topic = log.partition.topic


class TieredBroker:
    """A leader with one log."""

    def __init__(self, broker: LogBroker, records: PlayedRecords, leader_epoch: int, **options: Any) -> None:
        host = broker.host
        self.host = host
        self.broker = broker
        self.log = broker.log(topic_id=TOPIC_ID)
        if self.log.topic_id is None:
            # As a replica does that is told to lead: a crash may have come before the id was written.
            self.log.assign_topic_id(TOPIC_ID)
        self.log.begin_epoch(leader_epoch, self.log.log_end_offset)
        self.partition = PlayedPartition(self.log, leader_epoch)
        self.topic = PlayedTopic(records, **options)
        self.settings = replace(TieredSettings(), url=REMOTE_URL)
        logger = logging.getLogger("barnabas.tests.tiered")
        self.metrics = RemoteMetrics(MetricsRegistry(host.loop.time))
        self.quotas = RemoteQuotas(broker.timers, host.loop.time, self.settings)
        self.reads = RemoteReads(
            host,
            broker.timers,
            self.settings,
            self.topic,  # type: ignore[arg-type]
            self.quotas.fetch,
            logger,
            self.metrics.fetched,
        )
        self.manager = RemoteLogManager(
            host,
            broker.timers,
            1,
            self.settings,
            self.topic,  # type: ignore[arg-type]
            self.reads,
            lambda: [self.partition],  # type: ignore[list-item]
            self.quotas.copy,
            self.metrics,
            logger,
        )

    async def round(self) -> None:
        """What the manager does from time to time."""
        await self.manager.copy_once()
        await self.manager.expire_once()

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(TOPIC_ID, FLIGHTS)

    @property
    def cache(self) -> RemoteLogMetadataCache:
        return self.topic.cache(self.key)

    def reconfigure(self, **changes: Any) -> None:
        self.log.reconfigure(replace(self.log.config, **changes))

    async def delete_locally(self) -> None:
        """Local retention."""
        await self.broker.manager.delete_old_segments()

    async def everything(self, offset: int | None = None, bytes_max: int = 700) -> list[Record]:
        """What a consumer reads from the start on, wherever it is."""
        at = self.log.log_start_offset if offset is None else offset
        found: list[Record] = []
        while at < self.log.high_watermark:
            try:
                plan = self.log.read(at, bytes_max, ReadIsolation.HIGH_WATERMARK, has_minimum=True).plan
                assert plan is not None, f"nothing at {at} of {self.log.high_watermark}"
                data = bytes(await self.broker.manager.reader.read(plan))
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                    raise
                fetch = RemoteFetch(self.log, at, bytes_max, has_minimum=True, is_committed=False)
                data = (await self.reads.read(fetch)).data
            records = [record for record in read_records(data) if record.offset >= at]
            assert records, f"nothing at {at}, local start {self.log.local_log_start_offset}"
            assert records[0].offset == at
            found += records
            at = records[-1].offset + 1
        return found

    def objects(self) -> list[str]:
        """What is in the storage."""
        store = open_store(self.host.files, REMOTE_URL)
        return [name for prefix in store.names("") for name in store.names(prefix)]

    def check_objects(self) -> None:
        """Nothing is there but what the metadata say is whole, and of that nothing is missing."""
        there = set(self.objects())
        for segment in self.cache.segments():
            assert segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED, segment
            assert there.issuperset(object_names(segment))
            there.difference_update(object_names(segment))
        assert not there, f"left over: {sorted(there)}"


@asynccontextmanager
async def tiered_broker(
    host: Host,
    records: PlayedRecords,
    *,
    directory: str = "/data/logs",
    config: LogConfig = TIERED,
    leader_epoch: int = 0,
    is_clean: bool = True,
    **options: Any,
) -> AsyncIterator[TieredBroker]:
    """A leader that has begun an epoch; its logs are abandoned at the end where `is_clean` is False."""
    async with log_broker(host, directory, config=config, settings=SETTINGS, is_clean=is_clean) as broker:
        tiered = TieredBroker(broker, records, leader_epoch, **options)
        try:
            yield tiered
        finally:
            await tiered.manager.stop()
