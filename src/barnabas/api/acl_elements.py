"""What requests say of ACLs, as `barnabas.security` has it: rules, and filters that pick them.

As in Kafka, a request with an element that is UNKNOWN (0) ends its connection, while a code that this version does not
know is taken for UNKNOWN: such a rule is refused, and such a filter picks nothing that a client can have made.
"""

from __future__ import annotations

from typing import Protocol

from barnabas.security.acls import (
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import CreateAclsRequest
from barnabas.wire.primitives import ProtocolError


class Filter(Protocol):
    """Fields of DescribeAcls and DeleteAcls."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def filter_of(fields: Filter) -> AclBindingFilter:
    """Raises ProtocolError where an element is UNKNOWN."""
    _check(fields.resource_type_filter, fields.pattern_type_filter, fields.operation, fields.permission_type)
    return AclBindingFilter(
        ResourcePatternFilter(
            ResourceType(fields.resource_type_filter),
            fields.resource_name_filter,
            PatternType(fields.pattern_type_filter),
        ),
        AccessControlEntryFilter(
            fields.principal_filter,
            fields.host_filter,
            AclOperation(fields.operation),
            AclPermissionType(fields.permission_type),
        ),
    )


def binding_of(fields: CreateAclsRequest.AclCreation) -> AclBinding:
    """Raises ProtocolError where an element is UNKNOWN."""
    _check(fields.resource_type, fields.resource_pattern_type, fields.operation, fields.permission_type)
    return AclBinding(
        ResourcePattern(
            ResourceType(fields.resource_type), fields.resource_name, PatternType(fields.resource_pattern_type)
        ),
        AccessControlEntry(
            fields.principal,
            fields.host,
            AclOperation(fields.operation),
            AclPermissionType(fields.permission_type),
        ),
    )


def no_authorizer() -> KafkaError:
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")


def can_be_told(entry: AccessControlEntry) -> bool:
    """Clients do not take a rule with words that nobody knows, which only somebody else's znode can have."""
    return bool(entry.operation and entry.permission_type)


def _check(*codes: int) -> None:
    if not all(codes):
        raise ProtocolError(f"an ACL, or a filter of ACLs, has an element that is UNKNOWN: {codes}")
