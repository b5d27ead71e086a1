"""ListGroups, 0 to 5: the groups that this broker coordinates, from version 4 by state, from 5 by type.

Whoever may not describe the cluster is told of the groups that he may describe. While a partition of
`__consumer_offsets` is loading, the error says so beside the groups that are there. Nothing is left out.
"""

from __future__ import annotations

from barnabas.api.authorization import Decisions, may_with_cluster
from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import ListGroupsRequest, ListGroupsResponse


class ListGroupsHandler:
    """Asks the coordinator."""

    api_key = ApiKey.LIST_GROUPS
    versions = (0, 5)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
        error, groups = yield from self._group_coordinator.list_groups_in_steps(
            request.states_filter, request.types_filter
        )
        if not may_with_cluster(context, AclOperation.DESCRIBE, quietly=True):
            may_describe = Decisions(context, AclOperation.DESCRIBE, ResourceType.GROUP, quietly=True)
            shown = yield from each(lambda group: group if may_describe.allow(group.group_id) else None, groups)
            groups = [group for group in shown if group is not None]
        return ListGroupsResponse(error_code=error, groups=groups)

    def error_response(
        self, _context: RequestContext, _request: ListGroupsRequest, error: KafkaError
    ) -> ListGroupsResponse:
        return ListGroupsResponse(error_code=error.code)
