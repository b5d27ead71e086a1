"""Whether who has sent a request may do what it asks for. Without an authorizer everybody may do everything.

What a denial looks like is each API's own: as in Kafka's `KafkaApis`, whose questions these are. `quietly` is for what
the client has not asked for by its name, or need not be allowed; it is not logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext


def may(
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    *,
    quietly: bool = False,
) -> bool:
    """Whether it may do `operation` with one resource, existing or not."""
    authorizer = context.authorizer
    return authorizer is None or authorizer.authorize(
        context.principal, context.client_host, operation, resource_type, name, quietly=quietly
    )


def may_with_cluster(context: RequestContext, operation: AclOperation, *, quietly: bool = False) -> bool:
    return may(context, operation, ResourceType.CLUSTER, CLUSTER_NAME, quietly=quietly)


def check_cluster(context: RequestContext, operation: AclOperation) -> None:
    """Raises KafkaError, with CLUSTER_AUTHORIZATION_FAILED, where it may not do `operation` with the cluster."""
    if not may_with_cluster(context, operation):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{context.principal} may not do {operation.spelling} with the cluster",
        )


def may_with_any(context: RequestContext, operation: AclOperation, resource_type: ResourceType) -> bool:
    """Whether there is at least one resource of the type with which it may do `operation`."""
    authorizer = context.authorizer
    return authorizer is None or authorizer.authorize_by_resource_type(
        context.principal, context.client_host, operation, resource_type
    )


class Decisions:
    """What it may do with resources of a type, of which a request names many: each name is asked for once."""

    __slots__ = ("_context", "_decided", "_operation", "_quietly", "_resource_type")

    def __init__(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType, *, quietly: bool = False
    ) -> None:
        self._context = context
        self._operation = operation
        self._resource_type = resource_type
        self._quietly = quietly
        self._decided: dict[str, bool] = {}

    @property
    def allow_all(self) -> bool:
        """Nobody need be asked."""
        return self._context.authorizer is None

    def allow(self, name: str) -> bool:
        decided = self._decided.get(name)
        if decided is None:
            decided = self._decided[name] = may(
                self._context, self._operation, self._resource_type, name, quietly=self._quietly
            )
        return decided
