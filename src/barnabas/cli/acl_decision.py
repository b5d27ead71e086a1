"""What the ACLs of a resource mean for one principal, by the rules by which our brokers decide."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.cli.acl_words import pattern_of
from barnabas.security.acl_rules import AclRules
from barnabas.security.acls import (
    WILDCARD_HOST,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    ResourcePattern,
)

if TYPE_CHECKING:
    from barnabas.client.acl_admin import Acl

_NO_HOST: Final = "an address that no ACL has"


class Reason(enum.Enum):
    """What decides."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NOTHING_ALLOWS = "nothing_allows"
    """ACLs are about the resource, and none of them allows this."""
    NO_ACL = "no_acl"
    """No ACL is about the resource."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it is allowed, why, and by which ACLs. Those `elsewhere` would decide, but hold for single addresses."""

    reason: Reason
    deciding: tuple[Acl, ...]
    elsewhere: tuple[Acl, ...]

    @property
    def is_allowed(self) -> bool:
        return self.reason is Reason.ALLOWED

    def said(self, what: str) -> str:
        """For people; `what` is `User:alice read topic:flights`."""
        match self.reason:
            case Reason.ALLOWED:
                line = f"{what}: allowed by these ACLs."
            case Reason.DENIED:
                line = f"{what}: these ACLs deny it, whatever others allow; super users may all the same."
            case Reason.NOTHING_ALLOWS:
                line = f"{what}: no ACL allows it; super users may all the same."
            case _:
                line = (
                    f"{what}: no ACL is about it. Super users may all the same, and everybody where brokers have "
                    "allow.everyone.if.no.acl.found=true."
                )
        if self.elsewhere:
            hosts = ", ".join(sorted({acl.host or "" for acl in self.elsewhere}))
            line += f" It may be otherwise from {hosts}: ask again with --host."
        return line


def decide(
    covering: Sequence[Acl], principal: str, host: str | None, operation: AclOperation, resource: ResourcePattern
) -> Decision:
    """The decision of the ACLs that cover a resource; without a host, for one that none of them names."""
    address = _NO_HOST if host is None else host
    rules = _rules(covering)
    is_allowed = rules.authorize(principal, address, operation, resource.resource_type, resource.name)
    fitting = [acl for acl in covering if acl.principal in (principal, WILDCARD_PRINCIPAL)]
    here = [acl for acl in fitting if acl.host in (address, WILDCARD_HOST)]
    wanted = AclPermissionType.ALLOW if is_allowed else AclPermissionType.DENY
    deciding = tuple(acl for acl in here if acl.permission_type == wanted and _decides(acl, principal, operation))
    elsewhere = tuple(
        acl for acl in fitting if host is None and acl not in here and _decides(acl, principal, operation)
    )
    if is_allowed:
        reason = Reason.ALLOWED
    elif deciding:
        reason = Reason.DENIED
    else:
        reason = Reason.NOTHING_ALLOWS if covering else Reason.NO_ACL
    return Decision(reason, deciding, elsewhere)


# Inside.


def _rules(acls: Sequence[Acl]) -> AclRules:
    entries: dict[ResourcePattern, set[AccessControlEntry]] = {}
    for acl in acls:
        entries.setdefault(pattern_of(acl), set()).add(_entry(acl))
    rules = AclRules()
    for pattern, of_pattern in entries.items():
        rules.replace(pattern, of_pattern)
    return rules


def _entry(acl: Acl) -> AccessControlEntry:
    return AccessControlEntry(
        acl.principal or "", acl.host or "", AclOperation(acl.operation), AclPermissionType(acl.permission_type)
    )


def _decides(acl: Acl, principal: str, operation: AclOperation) -> bool:
    """Whether this ACL alone, were it for every address, would allow it, or deny what all else allowed."""
    pattern, entry = pattern_of(acl), _entry(acl)._replace(host=WILDCARD_HOST)
    rules = AclRules()
    everything = AccessControlEntry(WILDCARD_PRINCIPAL, WILDCARD_HOST, AclOperation.ALL, AclPermissionType.ALLOW)
    is_denial = entry.permission_type is AclPermissionType.DENY
    rules.replace(pattern, {entry, everything} if is_denial else {entry})
    found = rules.authorize(principal, WILDCARD_HOST, operation, pattern.resource_type, pattern.name)
    return found is not is_denial
