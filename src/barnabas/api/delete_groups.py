"""DeleteGroups, 0 to 2: deletes empty groups with their offsets.

Answered when the tombstones are committed, where Apache Kafka answers when its leader has them. Nothing is left out.
"""

from __future__ import annotations

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext, Responder
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse


class DeleteGroupsHandler:
    """Hands the request to the coordinator."""

    api_key = ApiKey.DELETE_GROUPS
    versions = (0, 2)

    def __init__(self, group_coordinator: GroupCoordinator) -> None:
        self._group_coordinator = group_coordinator

    def handle(self, context: RequestContext, request: DeleteGroupsRequest) -> Steps[None]:
        outcomes: dict[str, ErrorCode] = {}
        named: list[str] = []

        def sort(group_id: str) -> None:
            if group_id in outcomes:
                return
            if may(context, AclOperation.DELETE, ResourceType.GROUP, group_id):
                outcomes[group_id] = ErrorCode.NONE
                named.append(group_id)
            else:
                outcomes[group_id] = ErrorCode.GROUP_AUTHORIZATION_FAILED

        yield from each(sort, request.groups_names)
        missing = len(named)
        responder: Responder | None = None

        def deleted(some: dict[str, ErrorCode]) -> None:
            nonlocal missing
            outcomes.update(some)
            missing -= len(some)
            if not missing and responder is not None:
                responder.respond(_response(outcomes))

        for start in range(0, len(named), STEP_ELEMENTS):
            if start:
                yield
            self._group_coordinator.delete_groups(named[start : start + STEP_ELEMENTS], deleted)
        responder = context.park()
        if not missing:
            responder.respond(_response(outcomes))

    def error_response(
        self, _context: RequestContext, request: DeleteGroupsRequest, error: KafkaError
    ) -> Steps[DeleteGroupsResponse]:
        return _response(dict.fromkeys(request.groups_names, error.code))


def _response(outcomes: dict[str, ErrorCode]) -> Steps[DeleteGroupsResponse]:
    def result(named: tuple[str, ErrorCode]) -> DeleteGroupsResponse.DeletableGroupResult:
        return DeleteGroupsResponse.DeletableGroupResult(group_id=named[0], error_code=named[1])

    return DeleteGroupsResponse(results=(yield from each(result, outcomes.items())))
