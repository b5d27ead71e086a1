"""SyncGroup, 0 to 5: a member asks for its assignment; the leader brings those of all members.

Answered when the assignment is committed to `__consumer_offsets`. From version 5 the member names the protocol it takes
part in, which must be the group's. Nothing is left out.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import SyncGroupRequest, SyncGroupResponse

_PROTOCOL_SINCE: Final = 5
ASSIGNMENTS_MAX: Final = 100_000
"""Members of one group that a leader can assign something to."""


class SyncGroupHandler:
    """Hands the request to the coordinator."""

    api_key = ApiKey.SYNC_GROUP
    versions = (0, 5)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: SyncGroupRequest) -> None:
        self._group_coordinator.check_static_name(request.group_instance_id)
        if context.api_version >= _PROTOCOL_SINCE and (request.protocol_type is None or request.protocol_name is None):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if len(request.assignments) > ASSIGNMENTS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Assignments of {len(request.assignments)} members; at most {ASSIGNMENTS_MAX} can be brought",
            )
        self._group_coordinator.sync_group(request, context.park().respond)

    def error_response(
        self, _context: RequestContext, _request: SyncGroupRequest, error: KafkaError
    ) -> SyncGroupResponse:
        return SyncGroupResponse(error_code=error.code, assignment=b"")
