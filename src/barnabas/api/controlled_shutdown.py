"""ControlledShutdown (key 7, versions 0 to 3): a broker that is about to stop has its leadership moved away.

The answer names the partitions that it leads still, because nobody else is in sync; the broker asks again, or stops
nevertheless. Version 2 brings the broker epoch (KIP-380).
"""

from __future__ import annotations

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.controller.controller import Controller
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import ControlledShutdownRequest, ControlledShutdownResponse


class ControlledShutdownHandler:
    """Hands the request to the controller of this broker, if it is the active one."""

    api_key = ApiKey.CONTROLLED_SHUTDOWN
    versions = (0, 3)

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(self, context: RequestContext, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        check_cluster(context, AclOperation.CLUSTER_ACTION)
        remaining = await self._controller.controlled_shutdown(request.broker_id, request.broker_epoch)
        return ControlledShutdownResponse(
            remaining_partitions=[
                ControlledShutdownResponse.RemainingPartition(topic_name=topic, partition_index=partition)
                for topic, partition in remaining
            ]
        )

    def error_response(
        self, _context: RequestContext, _request: ControlledShutdownRequest, error: KafkaError
    ) -> ControlledShutdownResponse:
        return ControlledShutdownResponse(error_code=error.code)
