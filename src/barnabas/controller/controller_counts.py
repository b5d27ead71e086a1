"""The figures of the controller's gauges that come from what it knows about the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerCounts:
    """As they are at one moment."""

    global_topic_count: int
    global_partition_count: int
    offline_partitions_count: int
    preferred_replica_imbalance_count: int
    topics_to_delete_count: int
    replicas_to_delete_count: int
    topics_ineligible_to_delete_count: int
    replicas_ineligible_to_delete_count: int
    active_broker_count: int
    """Including those that are shutting down."""
