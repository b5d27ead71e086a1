"""The messages that are measured, filled with plausible values of stated sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from barnabas.wire import catalogue

RECORDS: Final = bytes(range(256)) * 4
"""1 KiB in place of a record batch, which no codec of messages looks into."""


@dataclass(frozen=True, slots=True)
class Case:
    """One message in one version; `tree` holds its fields as `tests.support.wire_values` describes."""

    message: str
    version: int
    what: str
    tree: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.message} v{self.version}, {self.what}"


def cases() -> list[Case]:
    """Every case, requests and responses."""
    return [*_produce(), *_fetch(), *_metadata(), *_join_group(), *_leader_and_isr(), *_api_versions()]


def _produce() -> list[Case]:
    partition = {"index": 3, "records": RECORDS}
    request = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": "orders", "partition_data": [partition]}],
    }
    answer = {
        "index": 3,
        "error_code": 0,
        "base_offset": 123_456,
        "log_append_time_ms": -1,
        "log_start_offset": 0,
        "record_errors": [],
        "error_message": None,
    }
    response = {"responses": [{"name": "orders", "partition_responses": [answer]}], "throttle_time_ms": 0}
    return [
        Case("ProduceRequest", 9, "1 partition", request),
        Case("ProduceResponse", 9, "1 partition", response),
    ]


def _fetch() -> list[Case]:
    def asked(partition: int) -> dict[str, Any]:
        return {
            "partition": partition,
            "current_leader_epoch": 7,
            "fetch_offset": 1_000_000 + partition,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }

    def answered(partition: int) -> dict[str, Any]:
        return {
            "partition_index": partition,
            "error_code": 0,
            "high_watermark": 1_000_500,
            "last_stable_offset": 1_000_500,
            "log_start_offset": 0,
            "diverging_epoch": None,
            "current_leader": None,
            "snapshot_id": None,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": RECORDS,
        }

    request = {
        "cluster_id": None,
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "session_id": 4711,
        "session_epoch": 12,
        "topics": [{"topic": "orders", "partitions": [asked(number) for number in range(100)]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    response = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "session_id": 4711,
        "responses": [{"topic": "orders", "partitions": [answered(number) for number in range(100)]}],
    }
    return [
        Case("FetchRequest", 12, "100 partitions", request),
        Case("FetchResponse", 12, "100 partitions of 1 KiB", response),
    ]


def _metadata() -> list[Case]:
    def partition(number: int) -> dict[str, Any]:
        return {
            "error_code": 0,
            "partition_index": number,
            "leader_id": number % 3,
            "leader_epoch": 5,
            "replica_nodes": [0, 1, 2],
            "isr_nodes": [0, 1, 2],
            "offline_replicas": [],
        }

    def topic(number: int) -> dict[str, Any]:
        return {
            "error_code": 0,
            "name": f"topic-{number}",
            "topic_id": number.to_bytes(16, "big"),
            "is_internal": False,
            "partitions": [partition(each) for each in range(10)],
            "topic_authorized_operations": -2_147_483_648,
        }

    request = {
        "topics": [{"topic_id": bytes(16), "name": f"topic-{number}"} for number in range(100)],
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
    }
    response = {
        "throttle_time_ms": 0,
        "brokers": [{"node_id": each, "host": f"kafka-{each}", "port": 9092, "rack": f"r{each}"} for each in range(3)],
        "cluster_id": "fV1gG4mQRzq6mZP2Yp9r6w",
        "controller_id": 1,
        "topics": [topic(number) for number in range(100)],
    }
    return [
        Case("MetadataRequest", 12, "100 topics", request),
        Case("MetadataResponse", 12, "100 topics of 10 partitions", response),
    ]


def _join_group() -> list[Case]:
    subscription = bytes(80)
    member_id = "consumer-orders-1-6f1f4bb2-6d4e-4b0b-9d8e-111111111111"
    request = {
        "group_id": "orders",
        "session_timeout_ms": 45_000,
        "rebalance_timeout_ms": 300_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": subscription} for name in ("range", "cooperative-sticky")],
        "reason": None,
    }
    response = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "generation_id": 42,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": member_id,
        "skip_assignment": False,
        "member_id": member_id,
        "members": [
            {"member_id": f"{member_id}{number}", "group_instance_id": None, "metadata": subscription}
            for number in range(10)
        ],
    }
    return [
        Case("JoinGroupRequest", 9, "2 protocols", request),
        Case("JoinGroupResponse", 9, "10 members", response),
    ]


def _leader_and_isr() -> list[Case]:
    def partition(number: int) -> dict[str, Any]:
        return {
            "partition_index": number,
            "controller_epoch": 9,
            "leader": number % 3,
            "leader_epoch": 5,
            "isr": [0, 1, 2],
            "partition_epoch": 17,
            "replicas": [0, 1, 2],
            "adding_replicas": [],
            "removing_replicas": [],
            "is_new": False,
            "leader_recovery_state": 0,
        }

    topics = [(f"topic-{number}", number.to_bytes(16, "big")) for number in range(100)]
    request = {
        "controller_id": 1,
        "is_kraft_controller": False,
        "controller_epoch": 9,
        "broker_epoch": 8_589_934_600,
        "type": 0,
        "topic_states": [
            {"topic_name": name, "topic_id": uuid, "partition_states": [partition(each) for each in range(10)]}
            for name, uuid in topics
        ],
        "live_leaders": [{"broker_id": each, "host_name": f"kafka-{each}", "port": 9092} for each in range(3)],
    }
    errors = [{"partition_index": each, "error_code": 0} for each in range(10)]
    response = {"error_code": 0, "topics": [{"topic_id": uuid, "partition_errors": errors} for _, uuid in topics]}
    return [
        Case("LeaderAndIsrRequest", 7, "1,000 partitions", request),
        Case("LeaderAndIsrResponse", 7, "1,000 partitions", response),
    ]


def _api_versions() -> list[Case]:
    keys = [
        {"api_key": key, "min_version": 0, "max_version": catalogue.request(key).versions.high}
        for key in sorted(catalogue.api_names())
    ]
    request = {"client_software_name": "apache-kafka-java", "client_software_version": "3.9.1"}
    response = {
        "error_code": 0,
        "api_keys": keys,
        "throttle_time_ms": 0,
        "supported_features": [],
        "finalized_features_epoch": -1,
        "finalized_features": [],
        "zk_migration_ready": False,
    }
    return [
        Case("ApiVersionsRequest", 3, "a client's first", request),
        Case("ApiVersionsResponse", 3, f"{len(keys)} keys", response),
    ]
