"""CreateAcls, 0 to 3: adds rules to ZooKeeper and announces them; any broker does, as in Kafka's ZooKeeper mode.

Answered when they are written, and hold on this broker; the others hear of them soon. Without an authorizer it is
SECURITY_DISABLED.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from barnabas.api.acl_elements import binding_of, no_authorizer
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each
from barnabas.security.acl_store import AclStore
from barnabas.security.acls import CLUSTER_NAME, AclBinding, AclBindingError, AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import CreateAclsRequest, CreateAclsResponse

Result = CreateAclsResponse.AclCreationResult
_OF_CLUSTER: Final = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"


class CreateAclsHandler:
    """Adds rules."""

    api_key = ApiKey.CREATE_ACLS
    versions = (0, 3)

    def __init__(self, acls: AclStore | None) -> None:
        """None where there is no authorizer."""
        self._acls = acls

    def handle(
        self, context: RequestContext, request: CreateAclsRequest
    ) -> Steps[Coroutine[Any, Any, CreateAclsResponse]]:
        bindings = yield from each(binding_of, request.creations)
        check_cluster(context, AclOperation.ALTER)
        if self._acls is None:
            raise no_authorizer()
        context.park()  # it waits for ZooKeeper, which is not this broker's work
        return self._create(self._acls, context, bindings)

    def error_response(
        self, _context: RequestContext, request: CreateAclsRequest, error: KafkaError
    ) -> Steps[CreateAclsResponse]:
        results = yield from each(lambda _: _failed(error), request.creations)
        return CreateAclsResponse(results=results)

    async def _create(self, acls: AclStore, context: RequestContext, bindings: list[AclBinding]) -> CreateAclsResponse:
        refusals = await context.in_steps(each(_refusal, bindings))
        valid = [binding for binding, refusal in zip(bindings, refusals, strict=True) if refusal is None]
        outcomes = iter(await acls.create(valid))
        results = each(lambda refusal: _result(next(outcomes)) if refusal is None else refusal, refusals)
        return CreateAclsResponse(results=await context.in_steps(results))


def _refusal(binding: AclBinding) -> Result | None:
    pattern = binding.pattern
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        return _failed(KafkaError(ErrorCode.INVALID_REQUEST, _OF_CLUSTER))
    if not pattern.name:
        return _failed(KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty resource name"))
    return None


def _result(outcome: Exception | None) -> Result:
    if outcome is None:
        return Result(error_message=None)
    is_request = isinstance(outcome, AclBindingError)
    code = ErrorCode.INVALID_REQUEST if is_request else ErrorCode.UNKNOWN_SERVER_ERROR
    return _failed(KafkaError(code, str(outcome)))


def _failed(error: KafkaError) -> Result:
    return Result(error_code=error.code, error_message=error.message)
