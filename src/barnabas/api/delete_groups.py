"""DeleteGroups, 0 to 2: deletes empty groups with their offsets.

Answered when the tombstones are committed, where Apache Kafka answers when its leader has them. Nothing is left out.
"""

from __future__ import annotations

from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse


class DeleteGroupsHandler:
    """Hands the request to the coordinator."""

    api_key = ApiKey.DELETE_GROUPS
    versions = (0, 2)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: DeleteGroupsRequest) -> None:
        responder = context.park()
        self._group_coordinator.delete_groups(
            dict.fromkeys(request.groups_names), lambda outcomes: responder.respond(_response(outcomes))
        )

    def error_response(
        self, _context: RequestContext, request: DeleteGroupsRequest, error: KafkaError
    ) -> DeleteGroupsResponse:
        return _response(dict.fromkeys(request.groups_names, error.code))


def _response(outcomes: dict[str, ErrorCode]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in outcomes.items()
        ]
    )
