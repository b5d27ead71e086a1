"""What a topic's configs mean to its logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.config.key_table import broker_keys, topic_keys
from barnabas.config.keys import Required
from barnabas.config.settings import take, taken_keys
from barnabas.config.topic_config import topic_config
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.log_keys import DIRECTORY_PATIENCE, DIRECTORY_WRITES
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.records import TimestampType

BROKER_VALUES = {
    name: None if isinstance(key.default, Required) else key.default for name, key in broker_keys().items()
} | {key.name: key.default for key in (DIRECTORY_PATIENCE, DIRECTORY_WRITES)}


def test_is_taken_from_the_configs_of_a_topic() -> None:
    values = topic_config({"retention.ms": "1000", "cleanup.policy": "compact,delete"}, BROKER_VALUES)
    config = take(LogConfig, values)
    assert (config.retention_ms, config.is_compacted, config.is_deleted) == (1000, True, True)
    assert take(LogConfig, topic_config({}, BROKER_VALUES)) == LogConfig()
    assert take(LogSettings, BROKER_VALUES) == LogSettings()
    assert {key.name for key in taken_keys(LogConfig)} <= set(topic_keys())


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("producer", None),
        ("uncompressed", Compression(CompressionType.NONE)),
        ("gzip", Compression(CompressionType.GZIP, -1)),
        ("snappy", Compression(CompressionType.SNAPPY)),
        ("lz4", Compression(CompressionType.LZ4, 9)),
        ("zstd", Compression(CompressionType.ZSTD, 3)),
    ],
)
def test_every_codec_has_its_level(name: str, compression: Compression | None) -> None:
    assert LogConfig(compression_type=name).append_rules.compression == compression


def test_the_rules_of_appends_and_segments_follow() -> None:
    config = replace(
        LogConfig(),
        message_timestamp_type="LogAppendTime",
        message_bytes_max=5,
        cleanup_policy=("compact",),
        segment_index_bytes=80,
    )
    rules = config.append_rules
    assert (rules.batch_bytes_max, rules.timestamp_type, rules.is_compacted) == (5, TimestampType.LOG_APPEND_TIME, True)
    assert config.segment_config.index_bytes_max == 80
    with pytest.raises(ValueError, match="not known"):
        LogConfig(compression_type="brotli").append_rules  # noqa: B018 - a property that raises


def test_the_rules_are_made_once_for_all_logs_of_a_topic() -> None:
    config = LogConfig()
    assert config.append_rules is config.append_rules
    assert config.segment_config is config.segment_config
    assert replace(config, message_bytes_max=7).append_rules.batch_bytes_max == 7


@pytest.mark.parametrize(
    ("writes", "directories", "are_queued"),
    [
        *(("auto", 1, False), ("auto", 2, True), ("loop", 1, False), ("loop", 2, False)),
        *(("offload", 1, True), ("offload", 2, True)),
    ],
)
def test_writes_leave_the_loop_where_there_are_several_directories(
    writes: str, directories: int, are_queued: bool
) -> None:
    assert LogSettings(directory_writes=writes).queues_writes(directories) is are_queued
