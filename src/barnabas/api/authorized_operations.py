"""What a client may do with a resource, as the bits that responses have for it (KIP-430).

Without an authorizer everybody may do everything that there is to do with a resource of a type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.api.authorization import may, may_with_cluster
from barnabas.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext

OPERATIONS: Final[Mapping[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
}
"""What there is to do with a resource of a type."""


def bits(*operations: AclOperation) -> int:
    """The operations as an int32."""
    return sum(1 << operation for operation in operations)


_ALL: Final = {resource_type: bits(*operations) for resource_type, operations in OPERATIONS.items()}


def authorized_operations(context: RequestContext, resource_type: ResourceType, name: str) -> int:
    """Those that the sender of the request may do with one resource."""
    if context.authorizer is None:
        return _ALL[resource_type]
    return bits(
        *(
            operation
            for operation in OPERATIONS[resource_type]
            if may(context, operation, resource_type, name, quietly=True)
        )
    )


def cluster_operations(context: RequestContext) -> int:
    """Those that it may do with the cluster: none, where it may not describe it."""
    if not may_with_cluster(context, AclOperation.DESCRIBE):
        return 0
    return authorized_operations(context, ResourceType.CLUSTER, CLUSTER_NAME)
