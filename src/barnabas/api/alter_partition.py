"""AlterPartition (key 56, versions 0 to 3): a leader asks the controller to change who is in sync.

Version 1 brings the leader recovery state (KIP-704), 2 topic ids and INELIGIBLE_REPLICA (KIP-841), 3 the broker epochs
of the ISR's members (KIP-903). Refusals of single partitions are in the response of the controller.
"""

from __future__ import annotations

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.controller.controller import Controller
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse


class AlterPartitionHandler:
    """Hands the request to the controller of this broker, if it is the active one."""

    api_key = ApiKey.ALTER_PARTITION
    versions = (0, 3)

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(self, context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
        check_cluster(context, AclOperation.CLUSTER_ACTION)
        return await self._controller.alter_partition(request, context.api_version)

    def error_response(
        self, _context: RequestContext, _request: AlterPartitionRequest, error: KafkaError
    ) -> AlterPartitionResponse:
        return AlterPartitionResponse(error_code=error.code)
