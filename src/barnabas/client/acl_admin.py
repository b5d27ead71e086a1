"""What an administrator asks for about ACLs (KIP-140, KIP-290).

Types of resources and patterns, operations and permissions are the protocol's numbers; `security.acls` names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.client.admin_calls import AdminCalls
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode

_ANY: Final = 1
_CHANGED_AT_A_TIME: Final = 500
"""Brokers write each ACL to ZooKeeper before they answer."""


class Acl(NamedTuple):
    """One ACL, or a filter of them, in which None and 1 (ANY) are any."""

    resource_type: int = _ANY
    resource_name: str | None = None
    pattern_type: int = _ANY
    principal: str | None = None
    host: str | None = None
    operation: int = _ANY
    permission_type: int = _ANY


class AclAdmin(AdminCalls):
    """Calls about ACLs; use it as a context, or `close` it.

    Each raises KafkaError with SECURITY_DISABLED where brokers have no authorizer.
    """

    async def describe_acls(self, filter_: Acl = Acl(), timeout_ms: float | None = None) -> list[Acl]:  # noqa: B008 - immutable
        """The ACLs that match, in their order. With a pattern type of 2 (MATCH) the name is that of a resource."""
        request = messages.DescribeAclsRequest(
            resource_type_filter=filter_.resource_type,
            resource_name_filter=filter_.resource_name,
            pattern_type_filter=filter_.pattern_type,
            principal_filter=filter_.principal,
            host_filter=filter_.host,
            operation=filter_.operation,
            permission_type=filter_.permission_type,
        )

        async def ask(node: BrokerNode, attempt_ms: float) -> list[Acl]:
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            _check(response.error_code, response.error_message)
            return sorted(
                Acl(
                    *(resource.resource_type, resource.resource_name, resource.pattern_type),
                    *(acl.principal, acl.host, acl.operation, acl.permission_type),
                )
                for resource in response.resources
                for acl in resource.acls
            )

        return await self._somewhere("describing ACLs", ask, timeout_ms)

    async def create_acls(self, acls: Iterable[Acl], timeout_ms: float | None = None) -> None:
        """Creates ACLs; those that exist stay as they are."""

        def build(part: Sequence[Acl]) -> messages.CreateAclsRequest:
            creation = messages.CreateAclsRequest.AclCreation
            return messages.CreateAclsRequest(
                creations=[
                    creation(
                        resource_type=acl.resource_type,
                        resource_name=acl.resource_name or "",
                        resource_pattern_type=acl.pattern_type,
                        principal=acl.principal or "",
                        host=acl.host or "",
                        operation=acl.operation,
                        permission_type=acl.permission_type,
                    )
                    for acl in part
                ]
            )

        async def change(part: Sequence[Acl]) -> None:
            request = build(part)

            async def ask(node: BrokerNode, attempt_ms: float) -> Any:
                return await self._client.ask(node, self._lane, request, attempt_ms)

            response = await self._somewhere("creating ACLs", ask, timeout_ms, is_change=True)
            for result in response.results:
                _check(result.error_code, result.error_message)

        await _in_parts(acls, change)

    async def delete_acls(self, filters: Iterable[Acl], timeout_ms: float | None = None) -> list[Acl]:
        """Deletes what matches one of the filters, and returns that, in its order."""
        gone: set[Acl] = set()

        async def change(part: Sequence[Acl]) -> None:
            filter_of = messages.DeleteAclsRequest.DeleteAclsFilter
            request = messages.DeleteAclsRequest(
                filters=[
                    filter_of(
                        resource_type_filter=each.resource_type,
                        resource_name_filter=each.resource_name,
                        pattern_type_filter=each.pattern_type,
                        principal_filter=each.principal,
                        host_filter=each.host,
                        operation=each.operation,
                        permission_type=each.permission_type,
                    )
                    for each in part
                ]
            )

            async def ask(node: BrokerNode, attempt_ms: float) -> Any:
                return await self._client.ask(node, self._lane, request, attempt_ms)

            response = await self._somewhere("deleting ACLs", ask, timeout_ms, is_change=True)
            errors: list[KafkaError] = []
            for result in response.filter_results:
                for answer in (result, *result.matching_acls):
                    try:
                        _check(answer.error_code, answer.error_message)
                    except KafkaError as error:
                        errors.append(error)
                gone.update(
                    Acl(
                        *(acl.resource_type, acl.resource_name, acl.pattern_type),
                        *(acl.principal, acl.host, acl.operation, acl.permission_type),
                    )
                    for acl in result.matching_acls
                    if acl.error_code == ErrorCode.NONE
                )
            if errors:
                raise errors[0]

        await _in_parts(filters, change)
        return sorted(gone)


def _check(code: int, message: str | None) -> None:
    raise_for_code(code, f"ACLs: {message or ErrorCode.for_code(code).message}")


async def _in_parts(acls: Iterable[Acl], change: Any) -> None:
    every = list(acls)
    for first in range(0, len(every), _CHANGED_AT_A_TIME):
        await change(every[first : first + _CHANGED_AT_A_TIME])
