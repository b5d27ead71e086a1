"""Which znodes a cluster needs from the start, and who may read and write them."""

from __future__ import annotations

from barnabas.coordination.layout import (
    acls,
    admin,
    brokers,
    cluster,
    configs,
    controller,
    delegation_tokens,
    notifications,
    topics,
)
from barnabas.coordination.protocol import CREATOR_ALL_ACL, OPEN_ACL, READ_ACL, Acl

# Made, without data, by every broker that starts.
PERSISTENT_PATHS: tuple[str, ...] = (
    cluster.CONSUMERS_PATH,
    brokers.BROKER_IDS_PATH,
    topics.TOPICS_PATH,
    configs.CONFIG_CHANGES_PATH,
    admin.DELETE_TOPICS_PATH,
    brokers.BROKER_SEQUENCE_ID_PATH,
    notifications.ISR_CHANGES_PATH,
    cluster.PRODUCER_ID_BLOCK_PATH,
    notifications.LOG_DIR_EVENTS_PATH,
    *(configs.config_type_path(entity_type) for entity_type in configs.ConfigEntityType),
)

# The tops of all that is Kafka's; `zookeeper.set.acl` protects what is below.
SECURE_ROOT_PATHS: tuple[str, ...] = (
    admin.ADMIN_PATH,
    brokers.BROKERS_PATH,
    cluster.CLUSTER_PATH,
    configs.CONFIG_PATH,
    controller.CONTROLLER_PATH,
    controller.CONTROLLER_EPOCH_PATH,
    notifications.ISR_CHANGES_PATH,
    cluster.PRODUCER_ID_BLOCK_PATH,
    notifications.LOG_DIR_EVENTS_PATH,
    delegation_tokens.DELEGATION_TOKEN_PATH,
    acls.EXTENDED_ACLS_PATH,
    cluster.MIGRATION_PATH,
    cluster.FEATURE_PATH,
    acls.LITERAL_ACLS_PATH,
    acls.LITERAL_ACL_CHANGES_PATH,
    acls.acls_root_path(acls.AclPatternType.PREFIXED),
    acls.EXTENDED_ACL_CHANGES_PATH,
)

# Credentials are below; the world may not even read them.
SENSITIVE_ROOT_PATHS: tuple[str, ...] = (
    configs.config_type_path(configs.ConfigEntityType.USERS),
    configs.config_type_path(configs.ConfigEntityType.BROKERS),
    delegation_tokens.TOKENS_PATH,
)


def is_sensitive(path: str) -> bool:
    """Whether the znode may hold credentials."""
    return path.startswith(SENSITIVE_ROOT_PATHS)


def default_acl(path: str, *, secure: bool) -> tuple[Acl, ...]:
    """The access control list for a new znode; `secure` is Kafka's `zookeeper.set.acl`.

    Secure znodes belong to the session's identities, and are readable by the world unless they are sensitive.
    `/consumers` stays open, because old consumers write below it.
    """
    if not secure or path == cluster.CONSUMERS_PATH:
        return OPEN_ACL
    return CREATOR_ALL_ACL if is_sensitive(path) else CREATOR_ALL_ACL + READ_ACL
