"""Which versions a follower speaks with its leaders: not negotiated, but set by `inter.broker.protocol.version`, so
that all brokers of a cluster change together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from barnabas.config.kafka_versions import request_version

OLDEST_VERSION: Final = "2.3-IV1"
"""Older brokers do not say in Fetch which leader epoch they believe in."""
_FETCH: Final = (
    ("3.9-IV0", 17),
    ("3.7-IV4", 16),
    ("3.5-IV1", 15),
    ("3.5-IV0", 14),
    ("3.1-IV0", 13),
    ("2.7-IV1", 12),
    (OLDEST_VERSION, 11),
)
_OFFSET_FOR_LEADER_EPOCH: Final = (("2.8-IV0", 4), (OLDEST_VERSION, 3))
_LIST_OFFSETS: Final = (("3.9-IV0", 9), ("3.5-IV0", 8), ("3.0-IV1", 7), ("2.8-IV1", 6), (OLDEST_VERSION, 5))
FETCH_WITH_TOPIC_IDS: Final = 13
FETCH_WITH_REPLICA_STATE: Final = 15
FETCH_WITHOUT_TOPIC_IDS: Final = 12
FETCH_WITH_LAST_EPOCH: Final = 12


@dataclass(frozen=True, slots=True)
class FetchProtocol:
    """Versions of a follower's requests."""

    fetch_version: int = 17
    offset_for_leader_epoch_version: int = 4
    list_offsets_version: int = 9

    @property
    def truncates_on_fetch(self) -> bool:
        """The leader tells in its answer to Fetch where the logs part (KIP-595); before, followers ask ahead."""
        return self.fetch_version >= FETCH_WITH_LAST_EPOCH


def fetch_protocol(inter_broker_protocol_version: str) -> FetchProtocol:
    """The versions for a value of `inter.broker.protocol.version`. Raises ValueError for one before 2.3-IV1."""
    return FetchProtocol(
        request_version(inter_broker_protocol_version, _FETCH),
        request_version(inter_broker_protocol_version, _OFFSET_FOR_LEADER_EPOCH),
        request_version(inter_broker_protocol_version, _LIST_OFFSETS),
    )
