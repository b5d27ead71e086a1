"""The configs of a broker that the controller depends on."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.controller.protocol import NEWEST, ControllerProtocol

PARTITIONS_PER_BATCH = 500
"""How many partitions a controller handles at a time. Between two batches the broker's loop serves everything else, so
that a cluster of many partitions does not cost the controller its session.
"""
READ_AGAIN_MS = 5_000
"""How often it tries again to read znodes that it could not read; no watch tells when they are mended."""
VERSIONS_PER_READING = 10_000
"""How many versions of states that somebody has deleted it writes until then,"""
WRITE_ON_MS = 50
"""and how soon it goes on with those where that was not enough, behind the events that have come."""
FIRST_LEADER_IMBALANCE_CHECK_MS = 5_000
"""After the takeover; brokers that started with the controller have joined the ISRs by then, as Kafka has it."""
TOPICS_PER_BATCH = 50
"""How many topics it reads at a time."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`inter_broker_listener_name` is the listener by which brokers reach each other, `control_plane_listener_name`
    the one by which the controller reaches them where it has its own (control.plane.listener.name).

    `unclean_leader_election_enable` holds for topics that do not set it. For `unclean_election_delay_ms` after it took
    over, a controller elects no replica that is out of sync (see `PartitionStateMachine`); later, such a leader is
    marked as recovering where `leader_recovery_supported` (KIP-704). An attempt to send a request to a broker takes
    `request_timeout_ms` at most, and the next one comes `retry_backoff_ms` later. `zookeeper_connection_timeout_ms` is
    how long the broker's own cache of `/feature` may take to follow.

    With `auto_leader_rebalance_enable` the controller looks every `leader_imbalance_check_interval_ms` for brokers that
    do not lead more than `leader_imbalance_per_broker_percentage` of the partitions of which they are the preferred
    leaders, and has them led by these again. `protocol` is what it
    speaks with brokers.
    """

    broker_id: int
    inter_broker_listener_name: str
    unclean_leader_election_enable: bool = False
    unclean_election_delay_ms: int = 18_000
    leader_recovery_supported: bool = True
    control_plane_listener_name: str | None = None
    delete_topic_enable: bool = True
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    zookeeper_connection_timeout_ms: int = 18_000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: int = 300_000
    leader_imbalance_per_broker_percentage: int = 10
    protocol: ControllerProtocol = NEWEST

    @property
    def controller_to_broker_listener_name(self) -> str:
        return self.control_plane_listener_name or self.inter_broker_listener_name
