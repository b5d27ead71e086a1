"""What the controller speaks with brokers and writes for them: not negotiated, but set by
`inter.broker.protocol.version`, so that all brokers of a cluster change together. Source: Apache Kafka 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from barnabas.config.kafka_versions import is_at_least, request_version

OLDEST_VERSION: Final = "2.3-IV1"
"""Brokers of older versions do not replicate with ours."""
LEADER_AND_ISR_WITH_RECOVERY_STATE: Final = 6
UPDATE_METADATA_WITH_TYPE: Final = 8
STOP_REPLICA_WITH_STATES: Final = 3
"""Before it, all partitions of a request are deleted or none, whatever their leader epochs are."""
FIRST_VERSION_WITH_ALTER_PARTITION: Final = 5
"""Version of a registration since inter.broker.protocol.version 2.7: from here on leaders ask the controller (KIP-497).
"""
_LEADER_AND_ISR: Final = (
    *(("3.4-IV0", 7), ("3.2-IV0", 6), ("2.8-IV1", 5), ("2.4-IV1", 4), ("2.4-IV0", 3), (OLDEST_VERSION, 2)),
)
_UPDATE_METADATA: Final = (("3.4-IV0", 8), ("2.8-IV1", 7), ("2.4-IV1", 6), (OLDEST_VERSION, 5))
_STOP_REPLICA: Final = (("3.4-IV0", 4), ("2.6-IV0", 3), ("2.4-IV1", 2), (OLDEST_VERSION, 1))
_FEATURE_ZNODE: Final = (("3.3-IV0", 2), (OLDEST_VERSION, 1))


@dataclass(frozen=True, slots=True)
class ControllerProtocol:
    """Versions of the controller's requests and of `/feature`; whether features may be finalized (KIP-584), and whether
    topics without an id get one (KIP-516).
    """

    leader_and_isr_version: int = 7
    update_metadata_version: int = 8
    stop_replica_version: int = 4
    feature_znode_version: int = 2
    has_features: bool = True
    gives_topic_ids: bool = True


NEWEST: Final = ControllerProtocol()


def controller_protocol(inter_broker_protocol_version: str) -> ControllerProtocol:
    """For a value of `inter.broker.protocol.version`. Raises ValueError for one before 2.3-IV1."""
    return ControllerProtocol(
        leader_and_isr_version=request_version(inter_broker_protocol_version, _LEADER_AND_ISR),
        update_metadata_version=request_version(inter_broker_protocol_version, _UPDATE_METADATA),
        stop_replica_version=request_version(inter_broker_protocol_version, _STOP_REPLICA),
        feature_znode_version=request_version(inter_broker_protocol_version, _FEATURE_ZNODE),
        has_features=is_at_least(inter_broker_protocol_version, "2.7-IV0"),
        gives_topic_ids=is_at_least(inter_broker_protocol_version, "2.8-IV0"),
    )
