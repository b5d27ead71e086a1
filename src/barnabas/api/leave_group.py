"""LeaveGroup, 0 to 5: members leave a classic group, or are removed from it by the names of static members.

So do members of a consumer group that use the classic protocol. Before version 3 there is one member, and its error is
that of the response. Nothing is left out.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaveGroupRequest, LeaveGroupResponse

_BATCHED_SINCE: Final = 3


class LeaveGroupHandler:
    """Hands the request to the coordinator."""

    api_key = ApiKey.LEAVE_GROUP
    versions = (0, 5)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: LeaveGroupRequest) -> Steps[None]:
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if context.api_version >= _BATCHED_SINCE:
            leave, leaving = self._group_coordinator.leave_group, request.members
            members = leave(request.group_id, leaving[:STEP_ELEMENTS])
            for start in range(STEP_ELEMENTS, len(leaving), STEP_ELEMENTS):
                yield
                members += leave(request.group_id, leaving[start : start + STEP_ELEMENTS])
            self._answer(context, request.group_id, LeaveGroupResponse(members=members))
            return
        only = LeaveGroupRequest.MemberIdentity(member_id=request.member_id)
        (member,) = self._group_coordinator.leave_group(request.group_id, [only])
        self._answer(context, request.group_id, LeaveGroupResponse(error_code=member.error_code))

    def _answer(self, context: RequestContext, group_id: str, response: LeaveGroupResponse) -> None:
        """Now, or when it is committed that members have left a consumer group."""
        responder = context.park()

        def known(error: ErrorCode) -> None:
            responder.respond(response if error is ErrorCode.NONE else LeaveGroupResponse(error_code=error))

        self._group_coordinator.when_known(group_id, known)

    def error_response(
        self, _context: RequestContext, _request: LeaveGroupRequest, error: KafkaError
    ) -> LeaveGroupResponse:
        return LeaveGroupResponse(error_code=error.code)
