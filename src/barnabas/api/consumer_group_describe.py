"""ConsumerGroupDescribe, 0: the state and the members of groups of the consumer protocol (KIP-848).

A group of the classic protocol is GROUP_ID_NOT_FOUND, as one that does not exist. Refused as ConsumerGroupHeartbeat is.
Nothing is left out.
"""

from __future__ import annotations

from functools import partial

from barnabas.api.authorization import may
from barnabas.api.authorized_operations import authorized_operations
from barnabas.api.consumer_group_heartbeat import Refusal, check_served
from barnabas.api.context import RequestContext
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

DescribedGroup = ConsumerGroupDescribeResponse.DescribedGroup


class ConsumerGroupDescribeHandler:
    """Asks the coordinator, and answers when all that it tells is committed."""

    api_key = ApiKey.CONSUMER_GROUP_DESCRIBE
    versions = (0, 0)

    def __init__(self, group_coordinator: GroupCoordinator, refusal: Refusal) -> None:
        self._group_coordinator = group_coordinator
        self._refusal = refusal

    def handle(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> Steps[ConsumerGroupDescribeResponse | None]:
        check_served(self._refusal)
        groups: list[DescribedGroup] = []
        unknown: set[int] = set()
        """The positions of groups of which it is not known whether what is told is committed."""

        def known(position: int, error: ErrorCode) -> None:
            unknown.discard(position)
            if error is not ErrorCode.NONE:
                uncommitted[position] = error
            if not unknown and responder is not None:
                responder.respond(self._response(groups, uncommitted))

        uncommitted: dict[int, ErrorCode] = {}
        responder = None
        for position, group_id in enumerate(request.group_ids):
            unknown.add(position)
            if may(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
                group = yield from self._group_coordinator.describe_consumer_group(group_id, partial(known, position))
                if request.include_authorized_operations and not group.error_code:
                    group.authorized_operations = authorized_operations(context, ResourceType.GROUP, group_id)
            else:
                group = DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
                unknown.discard(position)
            groups.append(group)
            if position % STEP_ELEMENTS == STEP_ELEMENTS - 1:
                yield
        if not unknown:
            return self._response(groups, uncommitted)
        responder = context.park()
        return None

    def _response(
        self, groups: list[DescribedGroup], uncommitted: dict[int, ErrorCode]
    ) -> ConsumerGroupDescribeResponse:
        for position, error in uncommitted.items():
            groups[position] = DescribedGroup(group_id=groups[position].group_id, error_code=error)
        return ConsumerGroupDescribeResponse(groups=groups)

    def error_response(
        self, _context: RequestContext, request: ConsumerGroupDescribeRequest, error: KafkaError
    ) -> Steps[ConsumerGroupDescribeResponse]:
        def failed(group_id: str) -> DescribedGroup:
            return DescribedGroup(group_id=group_id, error_code=error.code)

        return ConsumerGroupDescribeResponse(groups=(yield from each(failed, request.group_ids)))
