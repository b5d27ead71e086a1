"""The configs of groups and their offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from barnabas.config.kafka_versions import is_at_least
from barnabas.config.settings import setting
from barnabas.coordinators.consumer_group.targets import ASSIGNOR_CLASSES
from barnabas.coordinators.group.records import ValueVersions
from barnabas.wire.compression_types import CompressionType

CONSUMER_PROTOCOL: Final = "consumer"
_MINUTE_MS: Final = 60_000
_QUIET_MS: Final = 100
_WAIT_MS_MAX: Final = 10_000
"""Clients wait for 30 s."""
_SESSION_PART: Final = 3
"""Of the session of whoever waits no more than a third passes: he says nothing until he is answered."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's keys `group.*` and `offsets.*`."""

    session_timeout_min_ms: int = setting("group.min.session.timeout.ms", int)
    session_timeout_max_ms: int = setting("group.max.session.timeout.ms", int)
    initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms", int)
    size_max: int = setting("group.max.size", int)
    offset_metadata_max: int = setting("offset.metadata.max.bytes", int)
    """Kafka counts UTF-16 code units, whatever the key's name says."""
    load_buffer_bytes: int = setting("offsets.load.buffer.size", int)
    retention_minutes: int = setting("offsets.retention.minutes", int)
    retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms", int)
    compression_codec: int = setting("offsets.topic.compression.codec", int)
    commit_timeout_ms: int = setting("offsets.commit.timeout.ms", int)
    rebalance_protocols: tuple[str, ...] = setting("group.coordinator.rebalance.protocols", tuple)
    consumer_session_timeout_ms: int = setting("group.consumer.session.timeout.ms", int)
    consumer_heartbeat_interval_ms: int = setting("group.consumer.heartbeat.interval.ms", int)
    consumer_min_heartbeat_interval_ms: int = setting("group.consumer.min.heartbeat.interval.ms", int)
    consumer_size_max: int = setting("group.consumer.max.size", int)
    consumer_assignors: tuple[str, ...] = setting("group.consumer.assignors", tuple)
    migration_policy: str = setting("group.consumer.migration.policy", str)
    inter_broker_protocol_version: str = setting("inter.broker.protocol.version", str)

    @property
    def retention_ms(self) -> int:
        return self.retention_minutes * _MINUTE_MS

    @property
    def offers_consumer_protocol(self) -> bool:
        return CONSUMER_PROTOCOL in {name.lower() for name in self.rebalance_protocols}

    @property
    def waiting_heartbeat_interval_ms(self) -> int:
        """What members of the consumer protocol are told while they wait for what others are yet to give up."""
        return min(self.consumer_heartbeat_interval_ms, self.consumer_min_heartbeat_interval_ms)

    @property
    def quiet_before_first_assignment_ms(self) -> int:
        """How long nobody is to have joined before a group of the consumer protocol in which nobody is to own anything
        yet has its first assignment."""
        return min(_QUIET_MS, self.first_assignment_wait_ms_max)

    @property
    def first_assignment_wait_ms_max(self) -> int:
        """How long those are waited for at most; it is the first of them whose request waits."""
        return min(_WAIT_MS_MAX, self.initial_rebalance_delay_ms, self.consumer_session_timeout_ms // _SESSION_PART)

    @property
    def upgrades_groups(self) -> bool:
        """Whether a classic group with members becomes a consumer group when a consumer of that protocol joins it."""
        return self.migration_policy.lower() in ("upgrade", "bidirectional")

    @property
    def downgrades_groups(self) -> bool:
        """Whether it becomes a classic group again when the last of those is gone."""
        return self.migration_policy.lower() in ("downgrade", "bidirectional")

    @property
    def assignors(self) -> tuple[str, ...]:
        """By their own names; the first is the default."""
        return tuple(ASSIGNOR_CLASSES[name] for name in self.consumer_assignors)

    @property
    def compression(self) -> CompressionType:
        return CompressionType(self.compression_codec)

    @property
    def value_versions(self) -> ValueVersions:
        return ValueVersions.of(self.inter_broker_protocol_version)

    @property
    def allows_static_members(self) -> bool:
        """Not below 2.3: a coordinator of an older broker would load static members as dynamic ones (KIP-345)."""
        return is_at_least(self.inter_broker_protocol_version, "2.3-IV0")
