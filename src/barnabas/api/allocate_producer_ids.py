"""AllocateProducerIds (key 67, version 0): a broker takes a block of producer ids from the controller (KIP-730)."""

from __future__ import annotations

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.controller.controller import Controller
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse


class AllocateProducerIdsHandler:
    """Hands the request to the controller of this broker, if it is the active one."""

    api_key = ApiKey.ALLOCATE_PRODUCER_IDS
    versions = (0, 0)

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(self, context: RequestContext, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        check_cluster(context, AclOperation.CLUSTER_ACTION)
        block = await self._controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
        return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.last - block.first + 1)

    def error_response(
        self, _context: RequestContext, _request: AllocateProducerIdsRequest, error: KafkaError
    ) -> AllocateProducerIdsResponse:
        return AllocateProducerIdsResponse(error_code=error.code)
