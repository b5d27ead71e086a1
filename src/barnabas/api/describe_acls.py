"""DescribeAcls, 0 to 3: the ACLs that a filter picks, as this broker knows them; any broker answers.

Without an authorizer it is SECURITY_DISABLED. A rule with words that this version does not know makes it
UNKNOWN_SERVER_ERROR, as in Kafka, with the resource's name: no client would take the list.
"""

from __future__ import annotations

from barnabas.api.acl_elements import can_be_told, filter_of, no_authorizer
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps
from barnabas.security.acl_rules import AclRules
from barnabas.security.acls import AccessControlEntry, AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeAclsRequest, DescribeAclsResponse


class DescribeAclsHandler:
    """Looks the rules up."""

    api_key = ApiKey.DESCRIBE_ACLS
    versions = (0, 3)

    def __init__(self, rules: AclRules | None) -> None:
        """None where there is no authorizer."""
        self._rules = rules

    def handle(self, context: RequestContext, request: DescribeAclsRequest) -> Steps[DescribeAclsResponse]:
        filter_ = filter_of(request)
        check_cluster(context, AclOperation.DESCRIBE)
        if self._rules is None:
            raise no_authorizer()
        resources: list[DescribeAclsResponse.DescribeAclsResource] = []
        for found in self._rules.matching_in_pieces(filter_):
            for pattern, entries in found:
                if not all(map(can_be_told, entries)):
                    raise KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"an ACL of {pattern.resource_type.spelling} {pattern.name!r} has an operation or permission "
                        "that this version does not know; mend its znode, or delete the ACL",
                    )
                resources.append(
                    DescribeAclsResponse.DescribeAclsResource(
                        resource_type=pattern.resource_type,
                        resource_name=pattern.name,
                        pattern_type=pattern.pattern_type,
                        acls=list(map(_described, entries)),
                    )
                )
            yield
        return DescribeAclsResponse(error_message=None, resources=resources)

    def error_response(
        self, _context: RequestContext, _request: DescribeAclsRequest, error: KafkaError
    ) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=error.code, error_message=error.message, resources=[])


def _described(entry: AccessControlEntry) -> DescribeAclsResponse.AclDescription:
    return DescribeAclsResponse.AclDescription(
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )
