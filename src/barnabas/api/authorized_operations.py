"""What a client may do with a resource, as the bits that responses have for it (KIP-430).

Without an authorizer everybody may do everything that there is to do with a resource of a kind.
"""

from __future__ import annotations

from typing import Final

from barnabas.security.acls import AclOperation


def bits(*operations: AclOperation) -> int:
    """The operations as an int32."""
    return sum(1 << operation for operation in operations)


CLUSTER_OPERATIONS: Final = bits(
    AclOperation.CREATE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)
GROUP_OPERATIONS: Final = bits(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)
TOPIC_OPERATIONS: Final = bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
