"""Heartbeat, 0 to 4: a member of a classic group says that it is alive, and learns whether it is to join again.

Answered at once. Nothing is left out.
"""

from __future__ import annotations

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import HeartbeatRequest, HeartbeatResponse


class HeartbeatHandler:
    """Hands the request to the coordinator."""

    api_key = ApiKey.HEARTBEAT
    versions = (0, 4)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        self._group_coordinator.check_static_name(request.group_instance_id)
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return HeartbeatResponse(error_code=self._group_coordinator.heartbeat(request))

    def error_response(
        self, _context: RequestContext, _request: HeartbeatRequest, error: KafkaError
    ) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=error.code)
