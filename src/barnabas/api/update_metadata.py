"""UpdateMetadata, 0 to 8: the controller tells this broker of brokers, topics and leaders.

Refused, up to its last step, for a former life of this broker (STALE_BROKER_EPOCH) and from a controller that has been
replaced (STALE_CONTROLLER_EPOCH). A full request, which a controller sends to a broker that was away, has it forget
what is not named. Nothing is left out.
"""

from __future__ import annotations

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.api.control_requests import BrokerEpoch, check_broker_epoch
from barnabas.kernel.steps import Steps
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import UpdateMetadataRequest, UpdateMetadataResponse


class UpdateMetadataHandler:
    """Hands the request to the replica manager, which knows the newest controller. Who wants to know of changes listens
    to the metadata cache."""

    api_key = ApiKey.UPDATE_METADATA
    versions = (0, 8)

    def __init__(self, replica_manager: ReplicaManager, broker_epoch: BrokerEpoch) -> None:
        self._replica_manager = replica_manager
        self._broker_epoch = broker_epoch

    def handle(self, context: RequestContext, request: UpdateMetadataRequest) -> Steps[UpdateMetadataResponse]:
        check_cluster(context, AclOperation.CLUSTER_ACTION)

        def check() -> None:
            # The broker may have registered anew between two steps.
            check_broker_epoch(request.broker_epoch, self._broker_epoch())

        check()
        yield from self._replica_manager.update_metadata_in_steps(request, check)
        return UpdateMetadataResponse()

    def error_response(
        self, _context: RequestContext, _request: UpdateMetadataRequest, error: KafkaError
    ) -> UpdateMetadataResponse:
        return UpdateMetadataResponse(error_code=error.code)
