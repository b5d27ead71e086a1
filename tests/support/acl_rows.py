"""Every API, what its sender must be allowed, and what a denial looks like: as `kafka.server.KafkaApis` has it.

`needs` are asked for in this order; each names the operation, the type and the name of the resource, and the code that
a client is answered that lacks only this one (and who has nothing is answered the first one's). `hidden` says that what
may not be seen is left out instead: `shows` tells whether it is in a response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from barnabas.api.config_resources import ResourceType as ConfigResourceType
from barnabas.security.acls import CLUSTER_NAME, AclOperation, AclPermissionType, PatternType, ResourceType
from barnabas.wire import messages
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support.made_messages import made

TOPIC, NEW, GROUP, TRANSACTION = "orders", "new", "readers", "payments"
BY_NAME, BY_ID = "doomed", "doomed-by-id"
LOGGER: Final = "kafka.controller.KafkaController"

Need = tuple[AclOperation, ResourceType, str, ErrorCode]
Shows = Callable[[Any], bool]

_TOPIC_FAILED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP_FAILED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_ID_FAILED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_CLUSTER_FAILED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def on_topic(operation: AclOperation, name: str = TOPIC) -> Need:
    return operation, ResourceType.TOPIC, name, _TOPIC_FAILED


def on_group(operation: AclOperation) -> Need:
    return operation, ResourceType.GROUP, GROUP, _GROUP_FAILED


def on_id(operation: AclOperation) -> Need:
    return operation, ResourceType.TRANSACTIONAL_ID, TRANSACTION, _ID_FAILED


def on_cluster(operation: AclOperation, code: ErrorCode = _CLUSTER_FAILED) -> Need:
    return operation, ResourceType.CLUSTER, CLUSTER_NAME, code


@dataclass(frozen=True, slots=True)
class Row:
    """One request of one API."""

    api_key: ApiKey
    version: int
    fields: dict[str, Any]
    needs: tuple[Need, ...]
    what: str = ""
    shows: Shows | None = None
    """What is hidden is in the response."""

    @property
    def name(self) -> str:
        needs = ",".join(f"{operation.spelling}-{kind.spelling}" for operation, kind, _, _ in self.needs)
        return f"{self.api_key.api_name}-v{self.version}{self.what and '-' + self.what}-{needs}"

    def request(self, ids: dict[str, bytes]) -> Any:
        """`ids` are those of the topics."""
        return made(getattr(messages, f"{self.api_key.api_name}Request"), self.fields, ids)


def names(key: str) -> Callable[[str], Shows]:
    """Whether one of the list `path`, as in `topics.name`, is that."""
    path, _, field = key.rpartition(".")

    def shows(name: str) -> Shows:
        return lambda response: any(getattr(each, field) == name for each in getattr(response, path))

    return shows


def _batch(**options: Any) -> bytes:
    builder = RecordBatchBuilder(**options)
    builder.append(1_700_000_000_000, None, b"x")
    return bytes(builder.build())


_RECORDS: Final = _batch()
_TRANSACTIONAL: Final = _batch(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
_PARTITION: Final = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
_OFFSETS: Final = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
_FETCHED: Final = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
_FETCH: Final = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000}
_BY_ID: Final = [{"name": None, "topic_id": f"ID:{TOPIC}"}]
_MEMBER: Final = {"group_id": GROUP, "generation_id": 1, "member_id": "m"}
_MORE: Final = [{"name": TOPIC, "count": 2, "assignments": None}]
_PRODUCER: Final = {"transactional_id": TRANSACTION, "producer_id": 5, "producer_epoch": 0}
_OLD_CONTROLLER: Final = {"controller_id": 1, "controller_epoch": 0}
_CONFIG: Final = [{"name": "retention.ms", "value": "60000000"}]
_OWNER: Final = (ResourceType.USER, "User:bob", ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
_TOKENS: Final = (ResourceType.DELEGATION_TOKEN, "*", ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
FOR_BOB: Final = {"owner_principal_type": "User", "owner_principal_name": "bob", "max_lifetime_ms": -1}
_ACL_FILTER: Final = {
    "resource_type_filter": ResourceType.TOPIC,
    "resource_name_filter": "nothing",
    "pattern_type_filter": PatternType.LITERAL,
    "principal_filter": None,
    "host_filter": None,
    "operation": AclOperation.ANY,
    "permission_type": AclPermissionType.ANY,
}
_ACL: Final = {
    "resource_type": ResourceType.TOPIC,
    "resource_name": "nothing",
    "resource_pattern_type": PatternType.LITERAL,
    "principal": "User:nobody",
    "host": "*",
    "operation": AclOperation.READ,
    "permission_type": AclPermissionType.ALLOW,
}


def _produced(records: bytes, **fields: Any) -> dict[str, Any]:
    partition = {"index": 0, "records": records}
    return {"acks": 1, "timeout_ms": 1000, "topic_data": [{"name": TOPIC, "partition_data": [partition]}], **fields}


PRODUCED: Final = _produced(_RECORDS)


def _resource(kind: ConfigResourceType, name: str, **fields: Any) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, **fields}], "validate_only": True}


def _described(kind: ConfigResourceType, name: str) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}


def _creation(name: str) -> dict[str, Any]:
    return {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}], "validate_only": True}


def _tells_configs(response: Any) -> bool:
    (topic,) = response.topics
    return bool(topic.topic_config_error_code != _TOPIC_FAILED and topic.num_partitions == 1)


def _tells_partitions(response: Any) -> bool:
    (group,) = response.groups
    return bool(group.topics)


def _cluster_operations(response: Any) -> bool:
    return bool(response.cluster_authorized_operations)


def _topic_operations(response: Any) -> bool:
    (topic,) = response.topics
    return bool(topic.topic_authorized_operations & 1 << AclOperation.DELETE)


def _group_operations(response: Any) -> bool:
    (group,) = response.groups
    return bool(group.authorized_operations & 1 << AclOperation.DELETE)


def _has_topics(response: Any) -> bool:
    (state,) = response.transaction_states
    return bool(state.topics)


def _has_directories(response: Any) -> bool:
    return bool(response.results)


_A: Final = AclOperation
ROWS: Final = (
    Row(ApiKey.PRODUCE, 9, _produced(_RECORDS), (on_topic(_A.WRITE),)),
    Row(ApiKey.PRODUCE, 3, _produced(_RECORDS), (on_topic(_A.WRITE),)),
    Row(
        ApiKey.PRODUCE,
        9,
        _produced(_TRANSACTIONAL, transactional_id=TRANSACTION),
        (on_id(_A.WRITE), on_topic(_A.WRITE)),
        "transactional",
    ),
    *(
        Row(
            ApiKey.FETCH,
            version,
            {
                "max_wait_ms": 0,
                "min_bytes": 1,
                "max_bytes": 1000,
                **fields,
                "topics": [{**topic, "partitions": _FETCHED}],
            },
            (need,),
            what,
        )
        for version, topic, fields, need, what in (
            (4, {"topic": TOPIC}, {}, on_topic(_A.READ), "consumer"),
            (12, {"topic": TOPIC}, {}, on_topic(_A.READ), "consumer"),
            (17, {"topic_id": f"ID:{TOPIC}"}, {}, on_topic(_A.READ), "consumer"),
            (12, {"topic": TOPIC}, {"replica_id": 7}, on_cluster(_A.CLUSTER_ACTION, _TOPIC_FAILED), "follower"),
            (
                17,
                {"topic_id": f"ID:{TOPIC}"},
                {"replica_state": {"replica_id": 7, "replica_epoch": 1}},
                on_cluster(_A.CLUSTER_ACTION, _TOPIC_FAILED),
                "follower",
            ),
        )
    ),
    *(
        Row(
            ApiKey.LIST_OFFSETS,
            version,
            {
                "replica_id": -1,
                "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
            },
            (on_topic(_A.DESCRIBE),),
            what,
        )
        for version, timestamp, what in ((0, -1, ""), (1, -1, "latest"), (9, 5, "by time"))
    ),
    Row(ApiKey.METADATA, 1, {"topics": [{"name": TOPIC}]}, (on_topic(_A.DESCRIBE),)),
    Row(ApiKey.METADATA, 12, {"topics": _BY_ID}, (on_topic(_A.DESCRIBE),), "by id"),
    Row(
        ApiKey.METADATA,
        12,
        {"topics": [{"name": NEW}], "allow_auto_topic_creation": True},
        (on_topic(_A.DESCRIBE, NEW), on_topic(_A.CREATE, NEW)),
        "created",
    ),
    Row(
        ApiKey.METADATA,
        12,
        {"topics": [{"name": f"{NEW}-2"}], "allow_auto_topic_creation": True},
        (on_topic(_A.DESCRIBE, f"{NEW}-2"), on_cluster(_A.CREATE, _TOPIC_FAILED)),
        "created",
    ),
    Row(ApiKey.METADATA, 0, {"topics": []}, (on_topic(_A.DESCRIBE),), "all", names("topics.name")(TOPIC)),
    Row(ApiKey.METADATA, 12, {"topics": None}, (on_topic(_A.DESCRIBE),), "all", names("topics.name")(TOPIC)),
    Row(
        ApiKey.METADATA,
        8,
        {"topics": [{"name": TOPIC}], "include_topic_authorized_operations": True},
        (on_topic(_A.DELETE),),
        "operations",
        _topic_operations,
    ),
    Row(
        ApiKey.METADATA,
        8,
        {"topics": [{"name": "none"}], "include_cluster_authorized_operations": True},
        (on_cluster(_A.DESCRIBE),),
        "operations",
        _cluster_operations,
    ),
    Row(ApiKey.LEADER_AND_ISR, 7, _OLD_CONTROLLER, (on_cluster(_A.CLUSTER_ACTION),)),
    Row(ApiKey.STOP_REPLICA, 4, _OLD_CONTROLLER, (on_cluster(_A.CLUSTER_ACTION),)),
    Row(ApiKey.UPDATE_METADATA, 8, _OLD_CONTROLLER, (on_cluster(_A.CLUSTER_ACTION),)),
    Row(ApiKey.CONTROLLED_SHUTDOWN, 3, {"broker_id": 99}, (on_cluster(_A.CLUSTER_ACTION),)),
    Row(ApiKey.ALTER_PARTITION, 3, {"broker_id": 99}, (on_cluster(_A.CLUSTER_ACTION),)),
    Row(ApiKey.ALLOCATE_PRODUCER_IDS, 0, {"broker_id": 99}, (on_cluster(_A.CLUSTER_ACTION),)),
    *(
        Row(
            ApiKey.OFFSET_COMMIT,
            version,
            {"group_id": GROUP, "topics": _OFFSETS},
            (on_group(_A.READ), on_topic(_A.READ)),
        )
        for version in (0, 2, 8)
    ),
    *(
        Row(
            ApiKey.OFFSET_FETCH,
            version,
            {"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]},
            (on_group(_A.DESCRIBE), on_topic(_A.DESCRIBE)),
        )
        for version in (0, 1, 7)
    ),
    Row(
        ApiKey.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]},
        (on_group(_A.DESCRIBE), on_topic(_A.DESCRIBE)),
    ),
    Row(ApiKey.OFFSET_FETCH, 8, {"groups": [{"group_id": GROUP, "topics": None}]}, (on_group(_A.DESCRIBE),), "all"),
    Row(
        ApiKey.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": GROUP, "topics": None}]},
        (on_group(_A.DESCRIBE), on_topic(_A.DESCRIBE)),
        "all",
        _tells_partitions,
    ),
    Row(ApiKey.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": _PARTITION}, (on_group(_A.DELETE), on_topic(_A.READ))),
    *(
        Row(ApiKey.FIND_COORDINATOR, version, {"key_type": key_type, **keys}, (need,), what)
        for version, key_type, keys, need, what in (
            (0, 0, {"key": GROUP}, on_group(_A.DESCRIBE), "group"),
            (3, 1, {"key": TRANSACTION}, on_id(_A.DESCRIBE), "id"),
            (4, 0, {"coordinator_keys": [GROUP]}, on_group(_A.DESCRIBE), "group"),
            (4, 1, {"coordinator_keys": [TRANSACTION]}, on_id(_A.DESCRIBE), "id"),
            (6, 2, {"coordinator_keys": ["g:t:0"]}, on_cluster(_A.CLUSTER_ACTION), "share"),
        )
    ),
    Row(
        ApiKey.JOIN_GROUP,
        9,
        {
            "group_id": GROUP,
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        (on_group(_A.READ),),
    ),
    Row(
        ApiKey.SYNC_GROUP,
        5,
        {
            "group_id": GROUP,
            "generation_id": 1,
            "member_id": "m",
            "protocol_type": "consumer",
            "protocol_name": "range",
        },
        (on_group(_A.READ),),
    ),
    Row(ApiKey.HEARTBEAT, 4, {"group_id": GROUP, "generation_id": 1, "member_id": "m"}, (on_group(_A.READ),)),
    Row(ApiKey.LEAVE_GROUP, 2, {"group_id": GROUP, "member_id": "m"}, (on_group(_A.READ),)),
    Row(ApiKey.LEAVE_GROUP, 5, {"group_id": GROUP, "members": [{"member_id": "m"}]}, (on_group(_A.READ),)),
    Row(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [GROUP]}, (on_group(_A.DESCRIBE),)),
    Row(
        ApiKey.DESCRIBE_GROUPS,
        5,
        {"groups": [GROUP], "include_authorized_operations": True},
        (on_group(_A.DELETE),),
        "operations",
        _group_operations,
    ),
    Row(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, {"group_id": GROUP, "member_epoch": 1}, (on_group(_A.READ),)),
    Row(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": [GROUP]}, (on_group(_A.DESCRIBE),)),
    Row(ApiKey.LIST_GROUPS, 5, {}, (on_group(_A.DESCRIBE),), "", names("groups.group_id")(GROUP)),
    Row(ApiKey.LIST_GROUPS, 5, {}, (on_cluster(_A.DESCRIBE),), "", names("groups.group_id")(GROUP)),
    Row(ApiKey.CREATE_TOPICS, 7, _creation(f"{NEW}-3"), (on_topic(_A.CREATE, f"{NEW}-3"),)),
    Row(ApiKey.CREATE_TOPICS, 7, _creation(f"{NEW}-3"), (on_cluster(_A.CREATE, _TOPIC_FAILED),)),
    Row(
        ApiKey.CREATE_TOPICS,
        7,
        _creation(f"{NEW}-3"),
        (on_topic(_A.CREATE, f"{NEW}-3"), on_topic(_A.DESCRIBE_CONFIGS, f"{NEW}-3")),
        "configs",
        _tells_configs,
    ),
    Row(ApiKey.DELETE_TOPICS, 5, {"topic_names": [BY_NAME], "timeout_ms": 0}, (on_topic(_A.DELETE, BY_NAME),)),
    Row(
        ApiKey.DELETE_TOPICS,
        6,
        {"topics": [{"topic_id": f"ID:{BY_ID}"}], "timeout_ms": 0},
        (on_topic(_A.DELETE, BY_ID),),
        "by id",
    ),
    Row(
        ApiKey.DELETE_RECORDS,
        2,
        {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}], "timeout_ms": 1000},
        (on_topic(_A.DELETE),),
    ),
    Row(
        ApiKey.CREATE_PARTITIONS,
        3,
        {"topics": _MORE, "timeout_ms": 0, "validate_only": True},
        (on_topic(_A.ALTER),),
    ),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        4,
        {"transactional_id": "other", "transaction_timeout_ms": 1000},
        ((_A.WRITE, ResourceType.TRANSACTIONAL_ID, "other", _ID_FAILED),),
        "transactional",
    ),
    Row(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None}, (on_cluster(_A.IDEMPOTENT_WRITE),)),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        4,
        {"transactional_id": None},
        ((_A.WRITE, ResourceType.TOPIC, "any", _CLUSTER_FAILED),),
    ),
    *(
        Row(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
            (need,),
        )
        for need in (on_topic(_A.DESCRIBE), on_cluster(_A.CLUSTER_ACTION, _TOPIC_FAILED))
    ),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {
            "v3_and_below_transactional_id": TRANSACTION,
            "v3_and_below_producer_id": 5,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
        },
        (on_id(_A.WRITE), on_topic(_A.WRITE)),
    ),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        {"transactions": [{**_PRODUCER, "verify_only": True, "topics": [{"name": TOPIC, "partitions": [0]}]}]},
        (on_cluster(_A.CLUSTER_ACTION),),
        "from a broker",
    ),
    Row(ApiKey.ADD_OFFSETS_TO_TXN, 4, {**_PRODUCER, "group_id": GROUP}, (on_id(_A.WRITE), on_group(_A.READ))),
    Row(ApiKey.END_TXN, 4, {**_PRODUCER, "committed": True}, (on_id(_A.WRITE),)),
    *(
        Row(
            ApiKey.WRITE_TXN_MARKERS,
            1,
            {
                "markers": [
                    {
                        "producer_id": 5,
                        "producer_epoch": 0,
                        "transaction_result": False,
                        "topics": [{"name": "none", "partition_indexes": [0]}],
                        "coordinator_epoch": 0,
                    }
                ]
            },
            (on_cluster(operation),),
        )
        for operation in (_A.CLUSTER_ACTION, _A.ALTER)
    ),
    Row(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        {**_PRODUCER, "group_id": GROUP, "topics": _OFFSETS},
        (on_id(_A.WRITE), on_group(_A.READ), on_topic(_A.READ)),
    ),
    Row(ApiKey.DESCRIBE_ACLS, 3, _ACL_FILTER, (on_cluster(_A.DESCRIBE),)),
    Row(ApiKey.CREATE_ACLS, 3, {"creations": [_ACL]}, (on_cluster(_A.ALTER),)),
    Row(ApiKey.DELETE_ACLS, 3, {"filters": [_ACL_FILTER]}, (on_cluster(_A.ALTER),)),
    *(
        Row(key, version, request, (need,), kind.name.lower())
        for kind, name, of_cluster in (
            (ConfigResourceType.TOPIC, TOPIC, False),
            (ConfigResourceType.BROKER, "", True),
            (ConfigResourceType.BROKER_LOGGER, "1", True),
        )
        for key, version, operation, request in (
            (ApiKey.DESCRIBE_CONFIGS, 4, _A.DESCRIBE_CONFIGS, _described(kind, name)),
            (ApiKey.ALTER_CONFIGS, 2, _A.ALTER_CONFIGS, _resource(kind, name, configs=_CONFIG)),
            (
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                _A.ALTER_CONFIGS,
                _resource(kind, name, configs=[{**each, "config_operation": 0} for each in _CONFIG]),
            ),
        )
        for need in ((on_cluster(operation) if of_cluster else on_topic(operation)),)
        if (key, kind) != (ApiKey.ALTER_CONFIGS, ConfigResourceType.BROKER_LOGGER)
    ),
    Row(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        {"dirs": [{"path": "/data/none", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
        (on_cluster(_A.ALTER),),
    ),
    Row(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}, (on_cluster(_A.DESCRIBE),)),
    Row(
        ApiKey.DESCRIBE_LOG_DIRS, 1, {"topics": None}, (on_cluster(_A.DESCRIBE),), "", lambda found: bool(found.results)
    ),
    Row(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["none"]}, ((_A.DELETE, ResourceType.GROUP, "none", _GROUP_FAILED),)),
    Row(
        ApiKey.ELECT_LEADERS,
        2,
        {"election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout_ms": 1000},
        (on_cluster(_A.ALTER),),
    ),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": []}, (on_cluster(_A.ALTER),)),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None}, (on_cluster(_A.DESCRIBE),)),
    Row(ApiKey.UPDATE_FEATURES, 1, {}, (on_cluster(_A.ALTER),)),
    Row(
        ApiKey.DESCRIBE_CLUSTER,
        1,
        {"include_cluster_authorized_operations": True},
        (on_cluster(_A.DESCRIBE),),
        "operations",
        _cluster_operations,
    ),
    Row(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}, (on_topic(_A.READ),)),
    Row(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [TRANSACTION]}, (on_id(_A.DESCRIBE),)),
    Row(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        {"transactional_ids": [TRANSACTION]},
        (on_id(_A.DESCRIBE), on_topic(_A.DESCRIBE)),
        "topics",
        _has_topics,
    ),
    Row(
        ApiKey.LIST_TRANSACTIONS,
        1,
        {},
        (on_id(_A.DESCRIBE),),
        "",
        names("transaction_states.transactional_id")(TRANSACTION),
    ),
    # Kafka gives no answer at all to a denied request for all users.
    Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": "nobody"}]}, (on_cluster(_A.DESCRIBE),)),
    Row(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        {"deletions": [{"name": "nobody", "mechanism": 1}]},
        (on_cluster(_A.ALTER),),
    ),
    Row(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": []}, (on_cluster(_A.DESCRIBE_CONFIGS),)),
    Row(
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ],
            "validate_only": True,
        },
        (on_cluster(_A.ALTER_CONFIGS),),
    ),
    Row(ApiKey.DESCRIBE_CONTROLLER, 0, {}, (on_cluster(_A.DESCRIBE),)),
    Row(ApiKey.DESCRIBE_LEADERSHIP_CHANGES, 0, {}, (on_cluster(_A.DESCRIBE),)),
    Row(ApiKey.CREATE_DELEGATION_TOKEN, 3, FOR_BOB, ((_A.CREATE_TOKENS, *_OWNER),), "for another"),
    *(
        Row(
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
            3,
            {"owners": None},
            ((operation, *of_what),),
            "of others",
            lambda found: bool(found.tokens),
        )
        for operation, of_what in ((_A.DESCRIBE_TOKENS, _OWNER), (_A.DESCRIBE, _TOKENS))
    ),
)
OPEN: Final = {
    ApiKey.API_VERSIONS: "everybody is answered",
    ApiKey.ENVELOPE: "nobody is answered",
    ApiKey.SASL_HANDSHAKE: "it comes before it is known who somebody is",
    ApiKey.SASL_AUTHENTICATE: "as SaslHandshake",
    ApiKey.RENEW_DELEGATION_TOKEN: "who owns a token may, and its renewers",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "as RenewDelegationToken",
}
"""APIs that need no permission, and why."""
