"""Configs of tiered storage: Kafka's, and where the storage is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from barnabas.config.keys import Between, ConfigKey, ConfigType, Importance
from barnabas.config.settings import own_setting, setting

STORAGE_URL: Final[ConfigKey[str]] = ConfigKey(
    name="barnabas.remote.storage.url",
    type=ConfigType.STRING,
    default="",
    documentation=(
        "Where the segments of tiered topics are copied to: file:///path of a directory that all brokers share, or a"
        " URL of fsspec such as s3://bucket/prefix. It takes the place of Kafka's storage manager class."
    ),
    importance=Importance.HIGH,
)
STORAGE_OPTIONS: Final[ConfigKey[str]] = ConfigKey(
    name="barnabas.remote.storage.options",
    type=ConfigType.STRING,
    default="{}",
    documentation="What fsspec is to give to the file system of barnabas.remote.storage.url, as a JSON object.",
    importance=Importance.LOW,
)
METADATA_PARTITIONS: Final[ConfigKey[int]] = ConfigKey(
    name="rlmm.config.remote.log.metadata.topic.num.partitions",
    type=ConfigType.INT,
    default=50,
    documentation="Partitions of __remote_log_metadata, where it is made; never to be changed afterwards.",
    importance=Importance.LOW,
    validator=Between(1, 10_000),
)
METADATA_REPLICATION_FACTOR: Final[ConfigKey[int]] = ConfigKey(
    name="rlmm.config.remote.log.metadata.topic.replication.factor",
    type=ConfigType.SHORT,
    default=3,
    documentation="Replicas of __remote_log_metadata, where it is made.",
    importance=Importance.LOW,
    validator=Between(1, 32_767),
)
METADATA_RETENTION: Final[ConfigKey[int]] = ConfigKey(
    name="rlmm.config.remote.log.metadata.topic.retention.ms",
    type=ConfigType.LONG,
    default=-1,
    documentation=(
        "retention.ms of __remote_log_metadata, where it is made; longer than that of every tiered topic, or -1."
    ),
    importance=Importance.LOW,
    validator=Between(-1, 2**63 - 1),
)
TIERED_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    STORAGE_URL,
    STORAGE_OPTIONS,
    METADATA_PARTITIONS,
    METADATA_REPLICATION_FACTOR,
    METADATA_RETENTION,
)


@dataclass(frozen=True, slots=True)
class TieredSettings:
    """Taken from the broker's values."""

    url: str = own_setting(STORAGE_URL)
    options: str = own_setting(STORAGE_OPTIONS)
    metadata_partitions: int = own_setting(METADATA_PARTITIONS)
    metadata_replication_factor: int = own_setting(METADATA_REPLICATION_FACTOR)
    metadata_retention_ms: int = own_setting(METADATA_RETENTION)
    index_cache_bytes: int = setting("remote.log.index.file.cache.total.size.bytes", int)
    task_interval_ms: int = setting("remote.log.manager.task.interval.ms", int)
    threads: int = setting("remote.log.manager.thread.pool.size", int)
    copier_threads: int = setting("remote.log.manager.copier.thread.pool.size", int)
    copy_bytes_per_second: int = setting("remote.log.manager.copy.max.bytes.per.second", int)
    copy_window_count: int = setting("remote.log.manager.copy.quota.window.num", int)
    copy_window_seconds: int = setting("remote.log.manager.copy.quota.window.size.seconds", int)
    fetch_bytes_per_second: int = setting("remote.log.manager.fetch.max.bytes.per.second", int)
    fetch_window_count: int = setting("remote.log.manager.fetch.quota.window.num", int)
    fetch_window_seconds: int = setting("remote.log.manager.fetch.quota.window.size.seconds", int)
    reads_pending_max: int = setting("remote.log.reader.max.pending.tasks", int)
    fetch_wait_max_ms: int = setting("remote.fetch.max.wait.ms", int)
    producer_id_expiration_ms: int = setting("producer.id.expiration.ms", int)
    transaction_timeout_max_ms: int = setting("transaction.max.timeout.ms", int)
