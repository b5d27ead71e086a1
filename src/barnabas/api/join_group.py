"""JoinGroup, 0 to 9: a member joins a classic group, or joins it again for a rebalance.

Answered at once with an error or the present generation, otherwise when the next generation begins. From version 4 a
dynamic member is given its id first (MEMBER_ID_REQUIRED), from 5 static members are known, from 9 a leader may be told
to skip the assignment. Nothing is left out.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import may
from barnabas.api.client_identity import client_of
from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import JoinGroupRequest, JoinGroupResponse

_NULL_PROTOCOL_SINCE: Final = 7
PROTOCOLS_MAX: Final = 1000
"""Protocols of one member; the clients there are name one to four."""


class JoinGroupHandler:
    """Hands the request to the coordinator."""

    api_key = ApiKey.JOIN_GROUP
    versions = (0, 9)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: JoinGroupRequest) -> None:
        self._group_coordinator.check_static_name(request.group_instance_id)
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if len(request.protocols) > PROTOCOLS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A member with {len(request.protocols)} protocols; at most {PROTOCOLS_MAX} can be named",
            )
        version = context.api_version
        responder = context.park()

        def reply(response: JoinGroupResponse) -> None:
            responder.respond(_readable_in(version, response))

        self._group_coordinator.join_group(request, client_of(context), version, reply)

    def error_response(
        self, context: RequestContext, _request: JoinGroupRequest, error: KafkaError
    ) -> JoinGroupResponse:
        return _readable_in(context.api_version, JoinGroupResponse(error_code=error.code, protocol_name=None))


def _readable_in(version: int, response: JoinGroupResponse) -> JoinGroupResponse:
    """Before version 7 there is no null protocol."""
    if version < _NULL_PROTOCOL_SINCE and response.protocol_name is None:
        response.protocol_name = ""
    return response
