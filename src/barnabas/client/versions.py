"""The APIs that this client uses, each with the lowest and the highest version that it can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.wire.api_keys import ApiKey

VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (7, 11),
    ApiKey.FETCH: (11, 17),
    ApiKey.LIST_OFFSETS: (4, 9),
    ApiKey.METADATA: (7, 12),
    ApiKey.OFFSET_COMMIT: (7, 9),
    ApiKey.OFFSET_FETCH: (8, 9),
    ApiKey.FIND_COORDINATOR: (4, 6),
    ApiKey.JOIN_GROUP: (5, 9),
    ApiKey.HEARTBEAT: (3, 4),
    ApiKey.LEAVE_GROUP: (3, 5),
    ApiKey.SYNC_GROUP: (3, 5),
    ApiKey.DESCRIBE_GROUPS: (4, 5),
    ApiKey.LIST_GROUPS: (3, 5),
    ApiKey.CREATE_TOPICS: (5, 7),
    ApiKey.DELETE_TOPICS: (4, 6),
    ApiKey.DELETE_RECORDS: (1, 2),
    ApiKey.INIT_PRODUCER_ID: (3, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (3, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (2, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (2, 4),
    ApiKey.END_TXN: (2, 4),
    ApiKey.TXN_OFFSET_COMMIT: (3, 4),
    ApiKey.DESCRIBE_CONFIGS: (3, 4),
    ApiKey.ALTER_CONFIGS: (1, 2),
    ApiKey.CREATE_PARTITIONS: (1, 3),
    ApiKey.DELETE_GROUPS: (1, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.WRITE_TXN_MARKERS: (0, 1),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_CLUSTER: (0, 1),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 1),
    ApiKey.DESCRIBE_CONTROLLER: (0, 0),
    ApiKey.DESCRIBE_LEADERSHIP_CHANGES: (0, 0),
}
"""All but some admin APIs are there in Apache Kafka since 3.0, and the last two in Barnabas only."""
