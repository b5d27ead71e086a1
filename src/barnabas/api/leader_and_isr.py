"""LeaderAndIsr, 0 to 7: the controller tells this broker what it leads and what it follows.

Refused as a whole for a former life of this broker (STALE_BROKER_EPOCH) and from a controller that has been replaced
(STALE_CONTROLLER_EPOCH); otherwise each partition has its own outcome. Applied some partitions at a time, without
waiting for anything, so the configs of topics that are new here are read before. Left out: the full requests of a
migration from ZooKeeper to KRaft, which are taken for partial ones.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.api.control_requests import BrokerEpoch, TopicConfigLoader, check_broker_epoch
from barnabas.kernel.steps import Steps
from barnabas.replicas.leader_and_isr import in_pieces, joined, refusal_in_steps, requested_partitions
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaderAndIsrRequest, LeaderAndIsrResponse

PARTITIONS_PER_STEP: Final = 10
"""And half as many new ones: a log that is made takes a tenth of a millisecond, and several, of the processor too,
while the machine is busy.
"""


class LeaderAndIsrHandler:
    """Hands the request to the replica manager."""

    api_key = ApiKey.LEADER_AND_ISR
    versions = (0, 7)

    def __init__(self, replica_manager: ReplicaManager, broker_epoch: BrokerEpoch, configs: TopicConfigLoader) -> None:
        self._replica_manager = replica_manager
        self._broker_epoch = broker_epoch
        self._configs = configs

    def handle(
        self, context: RequestContext, request: LeaderAndIsrRequest
    ) -> Steps[LeaderAndIsrResponse] | Coroutine[Any, Any, LeaderAndIsrResponse]:
        check_cluster(context, AclOperation.CLUSTER_ACTION)
        check_broker_epoch(request.broker_epoch, self._broker_epoch())
        topics = self._topics_to_read(request)
        if topics:
            # The controller sends its next request to this broker after the answer, so the order is kept.
            return self._handle_after_reading(topics, context, request)
        return self._handle_in_steps(context, request)

    def error_response(
        self, context: RequestContext, request: LeaderAndIsrRequest, error: KafkaError
    ) -> Steps[LeaderAndIsrResponse]:
        return refusal_in_steps(request, context.api_version, ErrorCode.for_code(error.code))

    async def _handle_after_reading(
        self, topics: list[str], context: RequestContext, request: LeaderAndIsrRequest
    ) -> LeaderAndIsrResponse:
        await self._configs.prefetch(topics)
        return await context.in_steps(self._handle_in_steps(context, request))

    def _handle_in_steps(self, context: RequestContext, request: LeaderAndIsrRequest) -> Steps[LeaderAndIsrResponse]:
        """Some partitions in each step: logs may have to be made for them."""
        answers: list[LeaderAndIsrResponse] = []
        for piece in in_pieces(request, PARTITIONS_PER_STEP):
            if answers:
                yield
            # The broker may have registered anew meanwhile.
            check_broker_epoch(request.broker_epoch, self._broker_epoch())
            answers.append(self._replica_manager.become_leader_or_follower(piece, context.api_version))
        return joined(answers)

    def _topics_to_read(self, request: LeaderAndIsrRequest) -> list[str]:
        """Topics that are new, which may have had a namesake, and topics that nothing is known of."""
        new: dict[str, None] = {}
        named: dict[str, None] = {}
        for told in requested_partitions(request):
            (new if told.state.is_new else named)[told.topic_partition.topic] = None
        new.update(dict.fromkeys(self._configs.unknown(named)))
        return list(new)
