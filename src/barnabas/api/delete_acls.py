"""DeleteAcls, 0 to 3: removes the rules that filters pick; any broker does, as in Kafka's ZooKeeper mode.

Answered when they are gone from ZooKeeper, and hold no more on this broker; the others hear of it soon. Without an
authorizer it is SECURITY_DISABLED.

Rules that this broker has not heard of yet are found by filters that name their resource and no MATCH. A rule with
words that this version does not know is deleted without being told: no client would take the list.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from barnabas.api.acl_elements import can_be_told, filter_of, no_authorizer
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each, each_within
from barnabas.security.acl_store import AclDeletion, AclStore
from barnabas.security.acls import AclBindingFilter, AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DeleteAclsRequest, DeleteAclsResponse

Result = DeleteAclsResponse.DeleteAclsFilterResult
Matching = DeleteAclsResponse.DeleteAclsMatchingAcl


class DeleteAclsHandler:
    """Removes rules."""

    api_key = ApiKey.DELETE_ACLS
    versions = (0, 3)

    def __init__(self, acls: AclStore | None) -> None:
        """None where there is no authorizer."""
        self._acls = acls

    def handle(
        self, context: RequestContext, request: DeleteAclsRequest
    ) -> Steps[Coroutine[Any, Any, DeleteAclsResponse]]:
        filters = yield from each(filter_of, request.filters)
        check_cluster(context, AclOperation.ALTER)
        if self._acls is None:
            raise no_authorizer()
        context.park()  # it waits for ZooKeeper, which is not this broker's work
        return self._delete(self._acls, context, filters)

    def error_response(
        self, _context: RequestContext, request: DeleteAclsRequest, error: KafkaError
    ) -> Steps[DeleteAclsResponse]:
        results = yield from each(
            lambda _: Result(error_code=error.code, error_message=error.message, matching_acls=[]), request.filters
        )
        return DeleteAclsResponse(filter_results=results)

    async def _delete(
        self, acls: AclStore, context: RequestContext, filters: list[AclBindingFilter]
    ) -> DeleteAclsResponse:
        deletions = await acls.delete(filters)
        results = each_within(
            deletions,
            lambda of_filter: (deletion for deletion in of_filter if can_be_told(deletion.binding.entry)),
            lambda _, deletion: _matching(deletion),
            lambda _, matching: Result(error_message=None, matching_acls=matching),
        )
        return DeleteAclsResponse(filter_results=await context.in_steps(results))


def _matching(deletion: AclDeletion) -> Matching:
    pattern, entry = deletion.binding
    failure = None
    if deletion.error is not None:
        failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(deletion.error))
    return Matching(
        error_code=ErrorCode.NONE if failure is None else failure.code,
        error_message=None if failure is None else failure.message,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )
