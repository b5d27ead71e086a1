"""DescribeGroups, 0 to 5: the state and the members of classic groups.

A group that does not exist is Dead.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import may
from barnabas.api.authorized_operations import authorized_operations
from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse

_OPERATIONS_SINCE: Final = 3


DescribedGroup = DescribeGroupsResponse.DescribedGroup


class DescribeGroupsHandler:
    """Asks the coordinator."""

    api_key = ApiKey.DESCRIBE_GROUPS
    versions = (0, 5)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: DescribeGroupsRequest) -> Steps[DescribeGroupsResponse]:
        tells_operations = context.api_version >= _OPERATIONS_SINCE and request.include_authorized_operations

        def described(group_id: str) -> DescribedGroup:
            if not may(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
                return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            group = self._group_coordinator.describe_group(group_id)
            if tells_operations and group.error_code == ErrorCode.NONE:
                group.authorized_operations = authorized_operations(context, ResourceType.GROUP, group_id)
            return group

        return DescribeGroupsResponse(groups=(yield from each(described, request.groups)))

    def error_response(
        self, _context: RequestContext, request: DescribeGroupsRequest, error: KafkaError
    ) -> Steps[DescribeGroupsResponse]:
        def failed(group_id: str) -> DescribedGroup:
            return DescribedGroup(group_id=group_id, error_code=error.code)

        return DescribeGroupsResponse(groups=(yield from each(failed, request.groups)))
