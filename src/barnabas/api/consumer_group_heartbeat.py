"""ConsumerGroupHeartbeat, 0 to 1: a member of a group of the consumer protocol (KIP-848) joins, says that it is alive
and what it owns, or leaves, and learns what it is to own.

Answered when all that the group has written so far is committed. UNSUPPORTED_VERSION unless
`group.coordinator.rebalance.protocols` has `consumer`, and while a broker of other software is in the cluster. Version
1, of Apache Kafka 4, where members bring ids of their own, is for librdkafka, which speaks no other; it is advertised
only where the protocol is offered. Left out: its patterns, which are refused (INVALID_REQUEST).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.api.authorization import may
from barnabas.api.client_identity import client_of
from barnabas.api.context import RequestContext
from barnabas.coordinators.consumer_group.heartbeats import ConsumerHeartbeat, check_size
from barnabas.coordinators.consumer_group.records import add_listed
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import Steps
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

_OWN_MEMBER_ID_SINCE: Final = 1
_TOPICS_PER_STEP: Final = 4_096

Refusal = Callable[[], ErrorCode]
"""NONE where groups of the consumer protocol are served, otherwise why they are not."""


def check_served(refusal: Refusal) -> None:
    """Raises KafkaError UNSUPPORTED_VERSION, or COORDINATOR_NOT_AVAILABLE while that is not known."""
    error = refusal()
    if error is not ErrorCode.NONE:
        raise KafkaError(error)


class ConsumerGroupHeartbeatHandler:
    """Hands the request to the coordinator."""

    api_key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    versions = (0, 1)

    def __init__(self, group_coordinator: GroupCoordinator, refusal: Refusal, *, is_offered: bool) -> None:
        """Apache Kafka 3.9 has version 0 only, and so have we where such groups are not offered."""
        self._group_coordinator = group_coordinator
        self._refusal = refusal
        if not is_offered:
            self.versions = (0, 0)

    def handle(self, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Steps[None]:
        check_served(self._refusal)
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if request.subscribed_topic_regex:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "SubscribedTopicRegex is not known here: subscribe to names.")
        if context.api_version >= _OWN_MEMBER_ID_SINCE and not request.member_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        client = client_of(context)
        names, listed = request.subscribed_topic_names, request.topic_partitions
        check_size(names or (), listed or ())
        owned: dict[Uuid, frozenset[int]] | None = None
        if listed is not None:
            numbers: dict[Uuid, set[int]] = {}
            for start in range(0, len(listed), _TOPICS_PER_STEP):
                add_listed(numbers, listed[start : start + _TOPICS_PER_STEP])
                if start + _TOPICS_PER_STEP < len(listed):
                    yield
            owned = {topic_id: frozenset(each) for topic_id, each in numbers.items()}
        heartbeat = ConsumerHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            client_id=client.client_id,
            client_host=client.host,
            subscribed=None if names is None else frozenset(names),
            assignor=request.server_assignor,
            owned=owned,
        )
        self._group_coordinator.consumer_group_heartbeat(heartbeat, context.park().respond)

    def error_response(
        self, _context: RequestContext, _request: ConsumerGroupHeartbeatRequest, error: KafkaError
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
