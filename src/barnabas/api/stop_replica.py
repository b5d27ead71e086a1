"""StopReplica, 0 to 4: the controller has this broker stop replicas, and delete those of topics that go.

Refused as a whole for a former life of this broker (STALE_BROKER_EPOCH) and from a controller that has been replaced
(STALE_CONTROLLER_EPOCH); otherwise each partition has its own outcome. A request that becomes stale while it is carried
out stops there; what it has deleted by then was to be deleted. Answered when the logs to be deleted are out of the way.
Nothing is left out.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.api.control_requests import BrokerEpoch, check_broker_epoch
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import StopReplicaRequest, StopReplicaResponse


class StopReplicaHandler:
    """Hands the request to the replica manager."""

    api_key = ApiKey.STOP_REPLICA
    versions = (0, 4)

    def __init__(self, replica_manager: ReplicaManager, broker_epoch: BrokerEpoch) -> None:
        self._replica_manager = replica_manager
        self._broker_epoch = broker_epoch

    def handle(self, context: RequestContext, request: StopReplicaRequest) -> Coroutine[Any, Any, StopReplicaResponse]:
        check_cluster(context, AclOperation.CLUSTER_ACTION)

        def check() -> None:
            # The broker may have registered anew between two pieces.
            check_broker_epoch(request.broker_epoch, self._broker_epoch())

        check()
        return self._replica_manager.stop_replicas(request, check)

    def error_response(
        self, _context: RequestContext, _request: StopReplicaRequest, error: KafkaError
    ) -> StopReplicaResponse:
        return StopReplicaResponse(error_code=error.code)
