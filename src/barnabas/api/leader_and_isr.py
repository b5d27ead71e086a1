"""LeaderAndIsr, 0 to 7: the controller tells this broker what it leads and what it follows.

Refused as a whole for a former life of this broker (STALE_BROKER_EPOCH) and from a controller that has been replaced
(STALE_CONTROLLER_EPOCH); otherwise each partition has its own outcome. Applied without a break, so the configs of
topics that are new here are read before. Left out: the full requests of a migration from ZooKeeper to KRaft, which are
taken for partial ones.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from barnabas.api.context import RequestContext
from barnabas.api.control_requests import BrokerEpoch, TopicConfigLoader, check_broker_epoch
from barnabas.replication.leader_and_isr import response, told_partitions
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaderAndIsrRequest, LeaderAndIsrResponse


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
    ) -> LeaderAndIsrResponse | Coroutine[Any, Any, LeaderAndIsrResponse]:
        check_broker_epoch(request.broker_epoch, self._broker_epoch())
        topics = self._topics_to_read(request)
        if topics:
            # The controller sends its next request to this broker after the answer, so the order is kept.
            return self._handle_after_reading(topics, context, request)
        return self._replica_manager.become_leader_or_follower(request, context.api_version)

    def error_response(
        self, context: RequestContext, request: LeaderAndIsrRequest, error: KafkaError
    ) -> LeaderAndIsrResponse:
        return response(told_partitions(request), {}, context.api_version, ErrorCode.for_code(error.code))

    async def _handle_after_reading(
        self, topics: list[str], context: RequestContext, request: LeaderAndIsrRequest
    ) -> LeaderAndIsrResponse:
        await self._configs.prefetch(topics)
        # The broker may have registered anew meanwhile.
        check_broker_epoch(request.broker_epoch, self._broker_epoch())
        return self._replica_manager.become_leader_or_follower(request, context.api_version)

    def _topics_to_read(self, request: LeaderAndIsrRequest) -> list[str]:
        """Topics that are new, which may have had a namesake, and topics that nothing is known of."""
        new: dict[str, None] = {}
        named: dict[str, None] = {}
        for told in told_partitions(request):
            (new if told.state.is_new else named)[told.topic_partition.topic] = None
        new.update(dict.fromkeys(self._configs.unknown(named)))
        return list(new)
