"""ACLs as the znodes of Kafka's `AclAuthorizer` hold them, and back.

Words that this version does not know are read as UNKNOWN, as in Kafka, and permit nothing. A znode that cannot be read
at all denies everything that it is about to everybody but super users: `DENY_ALL` stands for it, is listed like a rule,
and can be deleted like one, which removes the znode. Kafka takes data that are no JSON for no rules, which opens the
resource where `allow.everyone.if.no.acl.found`, and does not start with others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from barnabas.coordination.layout.acls import AclEntry, AclPatternType, AclResource, AclResourceType, ResourceAcls
from barnabas.coordination.layout.payload import LayoutError
from barnabas.kernel.steps import Steps, at_once, each
from barnabas.security.acl_rules import Entries
from barnabas.security.acls import (
    WILDCARD_HOST,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclBindingError,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
    check_principal,
)

DENY_ALL: Final = AccessControlEntry(WILDCARD_PRINCIPAL, WILDCARD_HOST, AclOperation.ALL, AclPermissionType.DENY)

_READ_PER_STEP: Final = 1024


class ReadEntries(NamedTuple):
    """What a znode says; where it cannot be read, `damage` says why, and `entries` deny all."""

    entries: Entries
    damage: str | None = None


def read_entries(data: bytes | None, path: str) -> ReadEntries:
    """The rules in the payload of the znode at `path`; one without data has none."""
    return at_once(read_in_steps(data, path))


def read_in_steps(data: bytes | None, path: str) -> Steps[ReadEntries]:
    """`read_entries`, where there may be very many."""
    try:
        acls = yield from ResourceAcls.decode_in_steps(data, path)
        entries = yield from each(_entry, acls.acls, _READ_PER_STEP)
        return ReadEntries(frozenset(entries))
    except LayoutError as error:
        return ReadEntries(frozenset({DENY_ALL}), str(error))
    except AclBindingError as error:
        return ReadEntries(frozenset({DENY_ALL}), f"{path}: {error}")


def encode_entries(entries: Iterable[AccessControlEntry]) -> bytes:
    """The payload, always the same for the same rules."""
    return ResourceAcls(
        tuple(
            AclEntry(entry.principal, entry.permission_type.spelling, entry.host, entry.operation.spelling)
            for entry in sorted(entries)
        )
    ).encode()


def resource_of(pattern: ResourcePattern) -> AclResource:
    """What the znode's path is made of. The pattern is one that a rule can have."""
    return AclResource(
        AclResourceType[pattern.resource_type.name], pattern.name, AclPatternType[pattern.pattern_type.name]
    )


def pattern_of(resource: AclResource) -> ResourcePattern:
    return ResourcePattern(
        ResourceType[resource.resource_type.name], resource.name, PatternType[resource.pattern_type.name]
    )


def _entry(entry: AclEntry) -> AccessControlEntry:
    return AccessControlEntry(
        check_principal(entry.principal),
        entry.host,
        AclOperation.of(entry.operation),
        AclPermissionType.of(entry.permission_type),
    )
