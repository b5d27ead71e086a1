"""What the configuration says of logs: of each topic's, and of all together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from barnabas.config.settings import own_setting, setting, topic_setting
from barnabas.log.partition.log_keys import DIRECTORY_PATIENCE, DIRECTORY_WRITES
from barnabas.log.segments.segment import SegmentConfig
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.record_validation import AppendRules
from barnabas.wire.records import TimestampType

UNLIMITED: Final = -1
"""`retention.bytes` and `retention.ms` of a topic that keeps everything."""
AS_RETENTION: Final = -2
"""`local.retention.bytes` and `local.retention.ms` that are what `retention.bytes` and `retention.ms` are."""


@dataclass(frozen=True)
class LogConfig:
    """The configs of a topic that concern its logs, by Kafka's names; made by `take` of `config.topic_config`."""

    cleanup_policy: tuple[str, ...] = topic_setting("cleanup.policy", tuple)
    compression_type: str = topic_setting("compression.type", str)
    compression_gzip_level: int = topic_setting("compression.gzip.level", int)
    compression_lz4_level: int = topic_setting("compression.lz4.level", int)
    compression_zstd_level: int = topic_setting("compression.zstd.level", int)
    delete_retention_ms: int = topic_setting("delete.retention.ms", int)
    file_delete_delay_ms: int = topic_setting("file.delete.delay.ms", int)
    flush_messages: int = topic_setting("flush.messages", int)
    flush_ms: int = topic_setting("flush.ms", int)
    index_interval_bytes: int = topic_setting("index.interval.bytes", int)
    local_retention_bytes: int = topic_setting("local.retention.bytes", int)
    local_retention_ms: int = topic_setting("local.retention.ms", int)
    message_bytes_max: int = topic_setting("max.message.bytes", int)
    message_downconversion_enable: bool = topic_setting("message.downconversion.enable", bool)
    message_timestamp_type: str = topic_setting("message.timestamp.type", str)
    message_timestamp_before_max_ms: int = topic_setting("message.timestamp.before.max.ms", int)
    message_timestamp_after_max_ms: int = topic_setting("message.timestamp.after.max.ms", int)
    max_compaction_lag_ms: int = topic_setting("max.compaction.lag.ms", int)
    min_cleanable_dirty_ratio: float = topic_setting("min.cleanable.dirty.ratio", float)
    min_compaction_lag_ms: int = topic_setting("min.compaction.lag.ms", int)
    min_insync_replicas: int = topic_setting("min.insync.replicas", int)
    remote_storage_enable: bool = topic_setting("remote.storage.enable", bool)
    retention_bytes: int = topic_setting("retention.bytes", int)
    retention_ms: int = topic_setting("retention.ms", int)
    segment_bytes: int = topic_setting("segment.bytes", int)
    segment_index_bytes: int = topic_setting("segment.index.bytes", int)
    segment_jitter_ms: int = topic_setting("segment.jitter.ms", int)
    segment_ms: int = topic_setting("segment.ms", int)
    unclean_leader_election_enable: bool = topic_setting("unclean.leader.election.enable", bool)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def effective_local_retention_bytes(self) -> int:
        """How much of a tiered log stays in its directory."""
        return self.retention_bytes if self.local_retention_bytes == AS_RETENTION else self.local_retention_bytes

    @property
    def effective_local_retention_ms(self) -> int:
        """How long what is copied of a tiered log stays in its directory."""
        return self.retention_ms if self.local_retention_ms == AS_RETENTION else self.local_retention_ms

    # Made once for all logs of a topic, of which there may be very many.

    @cached_property
    def segment_config(self) -> SegmentConfig:
        return SegmentConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms,
            index_interval_bytes=self.index_interval_bytes,
            index_bytes_max=self.segment_index_bytes,
        )

    @cached_property
    def append_rules(self) -> AppendRules:
        is_append_time = self.message_timestamp_type == "LogAppendTime"
        return AppendRules(
            batch_bytes_max=self.message_bytes_max,
            timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
            timestamp_before_max_ms=self.message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.message_timestamp_after_max_ms,
            is_compacted=self.is_compacted,
            compression=self._compression(),
        )

    def _compression(self) -> Compression | None:
        match self.compression_type:
            case "producer":
                return None
            case "uncompressed":
                return Compression(CompressionType.NONE)
            case "gzip":
                return Compression(CompressionType.GZIP, self.compression_gzip_level)
            case "lz4":
                return Compression(CompressionType.LZ4, self.compression_lz4_level)
            case "zstd":
                return Compression(CompressionType.ZSTD, self.compression_zstd_level)
            case "snappy":
                return Compression(CompressionType.SNAPPY)
            case other:
                raise ValueError(f"compression.type {other!r} is not known")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The broker's own configs of its logs; made by `take` of the broker's values."""

    recovery_threads_per_data_dir: int = setting("num.recovery.threads.per.data.dir", int)
    retention_check_interval_ms: int = setting("log.retention.check.interval.ms", int)
    flush_scheduler_interval_ms: int = setting("log.flush.scheduler.interval.ms", int)
    flush_offset_checkpoint_interval_ms: int = setting("log.flush.offset.checkpoint.interval.ms", int)
    flush_start_offset_checkpoint_interval_ms: int = setting("log.flush.start.offset.checkpoint.interval.ms", int)
    initial_task_delay_ms: int = setting("log.initial.task.delay.ms", int)
    segment_delete_delay_ms: int = setting("log.segment.delete.delay.ms", int)
    cleaner_enable: bool = setting("log.cleaner.enable", bool)
    cleaner_threads: int = setting("log.cleaner.threads", int)
    cleaner_io_max_bytes_per_second: float = setting("log.cleaner.io.max.bytes.per.second", float)
    cleaner_io_buffer_size: int = setting("log.cleaner.io.buffer.size", int)
    cleaner_backoff_ms: int = setting("log.cleaner.backoff.ms", int)
    cleaner_dedupe_buffer_size: int = setting("log.cleaner.dedupe.buffer.size", int)
    cleaner_io_buffer_load_factor: float = setting("log.cleaner.io.buffer.load.factor", float)
    producer_id_expiration_ms: int = setting("producer.id.expiration.ms", int)
    producer_id_expiration_check_interval_ms: int = setting("producer.id.expiration.check.interval.ms", int)
    transaction_timeout_max_ms: int = setting("transaction.max.timeout.ms", int)
    remote_storage_system_enable: bool = setting("remote.log.storage.system.enable", bool)
    directory_patience_ms: int = own_setting(DIRECTORY_PATIENCE)
    directory_writes: str = own_setting(DIRECTORY_WRITES)

    def queues_writes(self, directories: int) -> bool:
        """Whether the files of partitions are written off the loop, on a broker with so many log directories."""
        return self.directory_writes == "offload" or (self.directory_writes == "auto" and directories > 1)
